"""Limits how often each caller may sign in.

Each sign-in costs a session, a write to disk and two records of the audit trail.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from himalia.errors import RateLimited

PERIOD_S = 60.0
SIGN_INS_MAX = 100
"""Sign-ins of one caller within the period. Without a limit any key, even one without rights, could fill the audit
trail within hours, and so displace older records."""


class SignInLimit:
    """The sign-ins of the last minute, by caller. Belongs to the event loop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._times: dict[str, deque[float]] = {}

    def __len__(self) -> int:
        return len(self._times)

    def count(self, caller: str) -> None:
        """Count a sign-in of this caller; ``RateLimited`` if it has to wait first."""
        now = self._clock()
        times = self._times.setdefault(caller, deque())
        while times and now - times[0] >= PERIOD_S:
            times.popleft()
        if len(times) >= SIGN_INS_MAX:
            wait_s = PERIOD_S - (now - times[0])
            raise RateLimited(
                f"{caller!r} has signed in {len(times)} times within a minute; sign in again in {wait_s:.0f} s",
                retry_after_s=wait_s,
            )
        times.append(now)

    def sweep(self) -> None:
        """Forget callers that have not signed in within the period."""
        now = self._clock()
        for caller in [caller for caller, times in self._times.items() if now - times[-1] >= PERIOD_S]:
            del self._times[caller]
