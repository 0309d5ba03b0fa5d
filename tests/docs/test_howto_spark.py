"""docs/howto/spark.md: its programs, each in a Spark of its own, on a real server."""

from __future__ import annotations

from collections.abc import Callable

import pytest


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_the_guide_does_what_it_shows(read_along: Callable[..., None]) -> None:
    """A batch, a stream that goes on where it was, and its results in a topic: each as the guide shows it."""
    read_along("howto/spark.md", command_max_s=180)
