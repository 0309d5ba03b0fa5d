"""Distinguish a burst of messages from occasional output.

A module of its own, on the standard library only: the keeper imports it as well as the listener.
"""

from __future__ import annotations

BURST_PER_S = 500
"""Messages per second, over a window, that begin a burst; half as many keep it going."""
WINDOW_S = 0.02
"""Fewer messages in quick succession, within such a window, are never delayed."""


class BurstDetector:
    """Whether messages arrive so fast, and for so long, that it pays to batch them before passing them on."""

    def __init__(self) -> None:
        self._began_s = 0.0
        self._count = 0
        self._is_on = False

    def add(self, count: int, now_s: float) -> bool:
        """Count received messages; returns whether to wait for more."""
        self._count += count
        passed_s = now_s - self._began_s
        if passed_s >= WINDOW_S:
            wanted = BURST_PER_S * passed_s / (2 if self._is_on else 1)
            self._is_on = self._count >= wanted
            self._began_s, self._count = now_s, 0
        return self._is_on

    def reset(self, now_s: float) -> None:
        """The kernel began or ended a request: a client waits for that, so the next messages are passed on at once."""
        self._is_on = False
        self._began_s, self._count = now_s, 0
