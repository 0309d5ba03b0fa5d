"""Long work on the event loop, in turns."""

from __future__ import annotations

import asyncio
from time import perf_counter

TURN_S = 0.004


class Turns:
    """Lets the event loop do other things every few milliseconds."""

    __slots__ = ("_ends_s",)

    def __init__(self) -> None:
        self._ends_s = perf_counter() + TURN_S

    async def give_way(self) -> None:
        """Call it often; it waits only when the turn is over."""
        if perf_counter() >= self._ends_s:
            await asyncio.sleep(0)
            self._ends_s = perf_counter() + TURN_S
