"""How long a kernel is kept while no server is connected."""

from __future__ import annotations

import time
from collections.abc import Callable


class Lease:
    """Held while at least one server is connected; over when none has been for ``keep_s``.

    A busy kernel has ``busy_keep_s``, if that is longer; 0 is no limit. Once it is idle it has ``keep_s`` from then on.
    """

    def __init__(
        self, keep_s: float, busy_keep_s: float = 0.0, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._keep_s = keep_s
        self._busy_keep_s = busy_keep_s
        self._clock = clock
        self._holders = 0
        self._is_busy = False
        self._free_since = self._idle_since = clock()

    def acquire(self) -> None:
        self._holders += 1

    def release(self) -> None:
        self._holders -= 1
        if not self._holders:
            self._free_since = self._clock()

    def set_duration(self, keep_s: float) -> None:
        """Change how long the kernel is kept, counted from when the last server left."""
        self._keep_s = keep_s

    def set_busy(self, is_busy: bool) -> None:
        if self._is_busy and not is_busy:
            self._idle_since = self._clock()
        self._is_busy = is_busy

    @property
    def term_s(self) -> float | None:
        """How long it lasts without a server; None without a limit."""
        if not self._is_busy:
            return self._keep_s
        return max(self._busy_keep_s, self._keep_s) if self._busy_keep_s else None

    @property
    def remaining_s(self) -> float | None:
        """Seconds until it is over, 0 if it is; None while it is held, or if it has no limit."""
        term_s = self.term_s
        if self._holders or term_s is None:
            return None
        since = self._free_since if self._is_busy else max(self._free_since, self._idle_since)
        return max(since + term_s - self._clock(), 0.0)

    @property
    def is_over(self) -> bool:
        return self.remaining_s == 0.0
