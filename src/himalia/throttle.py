"""Throttle repeated log messages."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable

EVERY_S = 10.0
WARN_EVERY_S = 60.0


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


class WarningThrottle:
    """Warnings that a peer can cause as often as it likes: each kind once a minute, with how often it was omitted."""

    def __init__(
        self,
        logger: logging.Logger,
        every_s: float = WARN_EVERY_S,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._logger = logger
        self._every_s = every_s
        self._clock = clock
        self._last_s: dict[str, float] = {}
        self._omitted: Counter[str] = Counter()

    def warn(self, kind: str, message: str, *args: object) -> None:
        """Log a warning, or only count it if one of this kind was logged less than ``every_s`` ago."""
        now_s = self._clock()
        if now_s - self._last_s.get(kind, float("-inf")) < self._every_s:
            self._omitted[kind] += 1
            return
        self._last_s[kind] = now_s
        if omitted := self._omitted.pop(kind, 0):
            message, args = f"{message} (and %d times since this was last logged)", (*args, omitted)
        self._logger.warning(message, *args)
