"""Retry: which errors are transient, how long to wait between attempts, and when to give up.

Standard library only: Spark's executors import this module.
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

BUSY_ERRORS = (
    LogUnavailable,
    ShuttingDown,
    RateLimited,
    TooManyBodies,
    TooManyConnections,
    TooManyReaders,
)
"""Errors of a server that is reachable, and is expected to accept the same request shortly."""
TRANSIENT_ERRORS = (ConnectionFailed, *BUSY_ERRORS)
"""Errors after which the same request may succeed. Retrying is safe where a message id makes it idempotent."""

FIRST_WAIT_S = 0.1
WAIT_MAX_S = 2.0
BACKOFF_MAX_S = 5.0

T = TypeVar("T")


class RetryTimer:
    """Waits between attempts, twice as long each time, until nothing has succeeded for ``seconds``. Blocks."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.reset()

    def reset(self) -> None:
        """Start over, after an attempt that succeeded."""
        self._deadline = time.monotonic() + self._seconds
        self._wait_s = FIRST_WAIT_S

    def wait(self, error: HimaliaError) -> None:
        """Wait before the next attempt; raise ``error``, which ended this one, if the time is over by then."""
        if time.monotonic() + self._wait_s > self._deadline:
            raise error
        time.sleep(self._wait_s)
        self._wait_s = min(2 * self._wait_s, WAIT_MAX_S)


def retry(work: Callable[[], T], seconds: float) -> T:
    """Return the result of ``work``, retrying it for so long while it fails with a transient error. Blocks."""
    timer = RetryTimer(seconds)
    while True:
        try:
            return work()
        except TRANSIENT_ERRORS as error:
            timer.wait(error)


class Backoff:
    """Waits that double up to ``BACKOFF_MAX_S``, with jitter so that many clients do not reconnect at once."""

    def __init__(self) -> None:
        self._attempts = 0

    def reset(self) -> None:
        """Start over, after an attempt that succeeded."""
        self._attempts = 0

    def next_s(self) -> float:
        """Return how long to wait before the next attempt; the caller waits."""
        longest: float = min(BACKOFF_MAX_S, FIRST_WAIT_S * 2**self._attempts)
        self._attempts = min(self._attempts + 1, 30)
        return longest * random.uniform(0.5, 1)
