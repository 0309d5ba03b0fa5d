"""Telling a flood of messages from a kernel that says something now and then."""

from __future__ import annotations

FLOOD_PER_S = 500
"""Messages a second, over a window, that are a flood; half as many go on with one."""
WINDOW_S = 0.02
"""Whoever says a few things in quick succession, within such a window, is never kept waiting."""


class Flood:
    """Whether messages come so thick, and for so long, that it pays to let some gather before they are passed on."""

    def __init__(self) -> None:
        self._began_s = 0.0
        self._count = 0
        self._is_on = False

    def took(self, count: int, now_s: float) -> bool:
        """So many messages were taken; says whether to let more gather."""
        self._count += count
        passed_s = now_s - self._began_s
        if passed_s >= WINDOW_S:
            wanted = FLOOD_PER_S * passed_s / (2 if self._is_on else 1)
            self._is_on = self._count >= wanted
            self._began_s, self._count = now_s, 0
        return self._is_on

    def end(self, now_s: float) -> None:
        """The kernel began or ended something. Whoever waits for that asks again at once, and is not to wait."""
        self._is_on = False
        self._began_s, self._count = now_s, 0
