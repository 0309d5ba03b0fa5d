"""Throttle repeated log messages."""

from __future__ import annotations

import time
from collections.abc import Callable

EVERY_S = 10.0


class LogThrottle:
    """Allows one message per interval, so that a repeated failure does not fill the log."""

    def __init__(self, every_s: float = EVERY_S, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._every_s = every_s
        self._clock = clock
        self._last_s = float("-inf")

    def allow(self) -> bool:
        """Whether the message may be logged now; if so, not again until the interval is over."""
        now_s = self._clock()
        if now_s - self._last_s < self._every_s:
            return False
        self._last_s = now_s
        return True
