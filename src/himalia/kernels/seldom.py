"""Saying the same thing again only now and then."""

from __future__ import annotations

import time
from collections.abc import Callable

EVERY_S = 10.0


class Seldom:
    """True at most once in a while: what goes wrong all the time could otherwise fill the server's log."""

    def __init__(self, every_s: float = EVERY_S, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._every_s = every_s
        self._clock = clock
        self._last_s = float("-inf")

    def is_due(self) -> bool:
        """Whether to say it; if so, not again for a while."""
        now_s = self._clock()
        if now_s - self._last_s < self._every_s:
            return False
        self._last_s = now_s
        return True
