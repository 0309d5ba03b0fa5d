"""docs/howto/keys.md: a real server with the keys of the guide, and everybody who has one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

CHANGING = [
    r"hk-[a-z2-9]{6}-[\w-]{43}",
    r"^ ?\w+ [a-z2-9]{6} (?=.*hash ?$)",
    r"^ ?[0-9a-f]{12} (?=key:)",
    r"curl/[\d.]+",
    r"sha256:[0-9a-f]{64}",
]
"""Keys, their ids in the list, sessions, and hashes."""


@pytest.mark.slow
def test_the_guide_does_what_it_shows(read_along: Callable[..., None]) -> None:
    """Each key may do what the guide says, and is refused the rest with the sentence that it shows."""
    read_along("howto/keys.md", also=CHANGING)
