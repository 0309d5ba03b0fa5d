"""How long a kernel is kept when no server asks for it any more."""

from __future__ import annotations

import time
from collections.abc import Callable


class Lease:
    """Held while at least one server is connected; over when none has been for ``keep_s``."""

    def __init__(self, keep_s: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._keep_s = keep_s
        self._clock = clock
        self._holders = 0
        self._free_since = clock()

    def take(self) -> None:
        self._holders += 1

    def let_go(self) -> None:
        self._holders -= 1
        if not self._holders:
            self._free_since = self._clock()

    def stay(self, keep_s: float) -> None:
        """Change how long the kernel is kept, counted from when the last server left."""
        self._keep_s = keep_s

    @property
    def left_s(self) -> float | None:
        """Seconds until it is over, 0 if it is; None while it is held."""
        if self._holders:
            return None
        return max(self._free_since + self._keep_s - self._clock(), 0.0)

    @property
    def is_over(self) -> bool:
        return self.left_s == 0.0
