"""Links between our own documents lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.markdown import ROOT, anchors, without_blocks

_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def documents() -> list[Path]:
    return sorted(
        path
        for path in ROOT.rglob("*.md")
        if not any(part.startswith(".") for part in path.relative_to(ROOT).parts)
    )


@pytest.mark.parametrize("path", documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_relative_links_lead_somewhere(path: Path) -> None:
    """A link to a file or a heading of this repository names one that is there."""
    broken = []
    for target in _LINK.findall(without_blocks(path.read_text())):
        if "://" in target or target.startswith("mailto:"):
            continue
        file, _, anchor = target.partition("#")
        found = path if not file else (path.parent / file).resolve()
        if not found.exists() or (anchor and anchor not in anchors(found.read_text())):
            broken.append(target)
    assert not broken
