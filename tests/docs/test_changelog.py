"""CHANGELOG.md speaks of the version that this is."""

from __future__ import annotations

import re

from himalia import __version__
from tests.docs.markdown import ROOT


def test_this_version_has_a_section() -> None:
    """What is released is described, with its date."""
    text = (ROOT / "CHANGELOG.md").read_text()
    assert re.search(rf"^## \[{re.escape(__version__)}\] - \d{{4}}-\d\d-\d\d$", text, flags=re.MULTILINE)


def test_the_newest_version_comes_first() -> None:
    """Sections are in order, so that the first one below ``Unreleased`` is the newest."""
    text = (ROOT / "CHANGELOG.md").read_text()
    versions = re.findall(r"^## \[(\d+)\.(\d+)\.(\d+)\]", text, flags=re.MULTILINE)
    numbers = [tuple(int(part) for part in version) for version in versions]
    assert numbers == sorted(numbers, reverse=True)
