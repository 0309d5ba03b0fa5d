"""docs/howto/keys.md: a real server with the keys file of the guide, and everybody who has a key."""

from __future__ import annotations

from collections.abc import Callable

import pytest


@pytest.mark.slow
def test_the_guide_does_what_it_shows(read_along: Callable[..., None]) -> None:
    """Each key may do what the guide says, and is refused the rest with the sentence that it shows."""
    read_along("howto/keys.md", also=[r"^[\w-]{32}$"])
