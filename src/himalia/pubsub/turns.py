"""Shares the event loop: long work runs in slices, so that one client's work never keeps the others waiting."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from typing import TypeVar

T = TypeVar("T")

TURN_S = 0.004
"""How long the work of all clients together may occupy the loop before it polls its sockets again."""


class Turns:
    """Work that is too long for one turn of the event loop continues in the next, first come, first served.

    Work checks ``is_over`` after each small unit. If so, a callback passes its continuation to ``later``, and a
    coroutine awaits ``rest``.
    """

    def __init__(self, turn_s: float = TURN_S, clock: Callable[[], float] = time.perf_counter) -> None:
        self.turn_s = turn_s
        self._clock = clock
        self._waiting: deque[Callable[[], None]] = deque()
        self._ends_at = 0.0
        # Whether a turn is running; it lasts until the loop has polled its sockets.
        self._is_on = False

    def is_over(self) -> bool:
        """Whether the time of this turn is used up."""
        if not self._is_on:
            self._begin()
            asyncio.get_running_loop().call_soon(self._next)
        return self._clock() >= self._ends_at

    def later(self, work: Callable[[], None]) -> None:
        """Call ``work`` in a later turn, behind what is waiting already."""
        self._waiting.append(work)
        if not self._is_on:
            self._begin()
            asyncio.get_running_loop().call_soon(self._next)

    async def rest(self) -> None:
        """Wait for a new turn."""
        rested: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def wake() -> None:
            if not rested.done():
                rested.set_result(None)
                self._ends_at = 0.0  # the coroutine runs after this callback, and has the next turn to itself

        self.later(wake)
        await rested
        self._ends_at = self._clock() + self.turn_s

    async def give_way(self) -> None:
        """Yield to other work if this turn is over. Awaited after each small unit of long work."""
        if self.is_over():
            await self.rest()

    async def each(self, items: Iterable[T]) -> AsyncIterator[T]:
        """Yield the items one by one, in as many turns as that takes."""
        for item in items:
            await self.give_way()
            yield item

    def _begin(self) -> None:
        self._is_on = True
        self._ends_at = self._clock() + self.turn_s

    def _next(self) -> None:
        if not self._waiting:
            self._is_on = False
            return
        self._begin()
        try:
            self._waiting.popleft()()
            while self._waiting and self._clock() < self._ends_at:
                self._waiting.popleft()()
        finally:
            asyncio.get_running_loop().call_soon(self._next)
