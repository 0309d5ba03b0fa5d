"""Every dependency has a line in docs/architecture.md that says why it is there."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable

from tests.docs.markdown import ROOT, code_spans, rows, section


def names(requirements: Iterable[str]) -> set[str]:
    found = {re.match(r"[A-Za-z0-9._-]+", requirement) for requirement in requirements}
    return {name[0].lower() for name in found if name}


def test_every_dependency_has_a_reason(architecture: str) -> None:
    """What is installed for running, for extras and for developing is in the table, and nothing else is."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"].values()
    groups = project["dependency-groups"].values()
    wanted = names(project["project"]["dependencies"]) | names(project["build-system"]["requires"])
    for requirements in (*extras, *groups):
        wanted |= names(requirements)
    table = rows(section(architecture, "## Dependencies"))
    assert {name for cells in table for name in code_spans(cells[0])} == wanted
    assert all(cells[-1] for cells in table)
