"""docs/tutorial.md, from the first line to the last: a clone, a server, a kernel, two viewers and Spark."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.docs.markdown import ROOT

INSTALLED = (
    f"mkdir -p .venv && ln -sfn {Path(sys.executable).parent} .venv/bin && touch .venv/.installed && make run"
)
"""``make run`` where ``make setup`` has been: newer than what it is made of, so nothing is installed anew."""


def make_repository(directory: Path) -> Path:
    """Something to clone, with what ``make run`` goes by as it is in this tree, committed or not."""
    repository = directory / "repository"
    repository.mkdir()
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, repository)
    for words in (["init", "--quiet"], ["add", "--all"], ["commit", "--quiet", "--message", "All of it"]):
        subprocess.run(
            ["git", "-c", "user.name=A", "-c", "user.email=a@b", *words], cwd=repository, check=True
        )
    return repository


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_tutorial_does_what_it_shows(
    read_along: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A newcomer who types it sees what it shows."""
    for name in ("HIMALIA_RUNTIME_DIR", "HIMALIA_WAREHOUSE"):
        monkeypatch.delenv(name)  # a reader has neither, and a home of their own
    here = {"REPOSITORY": str(make_repository(tmp_path)), "make run": INSTALLED}
    read_along("tutorial.md", here=here, also=[r"process \d+"], command_max_s=180)
