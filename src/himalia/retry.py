"""Retry: how long to wait between attempts, which errors are transient, and when to give up.

Needs the standard library only: Spark's executors import it.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

from himalia.errors import (
    ConnectionFailed,
    HimaliaError,
    LogUnavailable,
    RateLimited,
    ShuttingDown,
    TooManyBodies,
    TooManyConnections,
    TooManyReaders,
)

FIRST_WAIT_S, LONGEST_WAIT_S = 0.1, 2.0
BUSY = (LogUnavailable, ShuttingDown, RateLimited, TooManyBodies, TooManyConnections, TooManyReaders)
"""What a server answers that will do better in a moment."""
MOMENTARY = (ConnectionFailed, *BUSY)
"""Failures that pass by themselves."""

T = TypeVar("T")


class Patience:
    """Waits between attempts, longer each time; gives up when nothing worked for so many seconds."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.renew()

    def renew(self) -> None:
        """Something worked: the next failure is a first one."""
        self._deadline = time.monotonic() + self._seconds
        self._wait_s = FIRST_WAIT_S

    def wait(self, error: HimaliaError) -> None:
        """Wait before the next attempt, or raise what made this one fail."""
        if time.monotonic() + self._wait_s > self._deadline:
            raise error
        time.sleep(self._wait_s)
        self._wait_s = min(2 * self._wait_s, LONGEST_WAIT_S)


def patiently(work: Callable[[], T], seconds: float) -> T:
    """The result of ``work``, which is tried again while it fails for reasons that pass."""
    patience = Patience(seconds)
    while True:
        try:
            return work()
        except MOMENTARY as error:
            patience.wait(error)


FIRST_S = 0.1
LONGEST_S = 5.0


class Backoff:
    """Waits that double, each shortened by chance so that many clients do not come back all at once."""

    def __init__(self) -> None:
        self._tries = 0

    def reset(self) -> None:
        """It worked: the next failure starts over."""
        self._tries = 0

    def next_s(self) -> float:
        longest: float = min(LONGEST_S, FIRST_S * 2**self._tries)
        self._tries = min(self._tries + 1, 30)
        return longest * random.uniform(0.5, 1)
