"""Shares the event loop: long work runs in time slices, so that one client's work never keeps the others waiting."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from typing import TypeVar

T = TypeVar("T")

SLICE_S = 0.004
"""How long the work of all clients together may occupy the loop before it polls its sockets again."""


class TimeSlices:
    """Work that does not fit into one time slice continues in a later one, first come, first served. On one event loop.

    A slice lasts until the loop has polled its sockets, and is shared by all work. Work checks ``is_over`` after each
    small unit. If the slice is over, a callback passes its continuation to ``defer``, and a coroutine awaits
    ``wait_next``; ``checkpoint`` does both steps for a coroutine.
    """

    def __init__(self, slice_s: float = SLICE_S, clock: Callable[[], float] = time.perf_counter) -> None:
        self.slice_s = slice_s
        self._clock = clock
        self._waiting: deque[Callable[[], None]] = deque()
        self._ends_at = 0.0
        self._is_running = False

    def is_over(self) -> bool:
        """Whether the time of this slice is used up. Begins a slice if none is running."""
        if not self._is_running:
            self._begin()
            asyncio.get_running_loop().call_soon(self._run_next)
        return self._clock() >= self._ends_at

    def defer(self, work: Callable[[], None]) -> None:
        """Call ``work`` in a later slice, after the work that is waiting already."""
        self._waiting.append(work)
        if not self._is_running:
            self._begin()
            asyncio.get_running_loop().call_soon(self._run_next)

    async def wait_next(self) -> None:
        """Wait for a new slice."""
        begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def wake() -> None:
            if not begun.done():
                begun.set_result(None)
                self._ends_at = (
                    0.0  # the coroutine runs after this callback, and has the next slice to itself
                )

        self.defer(wake)
        await begun
        self._ends_at = self._clock() + self.slice_s

    async def checkpoint(self) -> None:
        """Yield to other work if this slice is over. Awaited after each small unit of long work."""
        if self.is_over():
            await self.wait_next()

    async def iterate(self, items: Iterable[T]) -> AsyncIterator[T]:
        """Yield the items one by one, in as many slices as that takes."""
        for item in items:
            await self.checkpoint()
            yield item

    def _begin(self) -> None:
        self._is_running = True
        self._ends_at = self._clock() + self.slice_s

    def _run_next(self) -> None:
        """Run deferred work until the slice is over; the loop polls its sockets before the next call."""
        if not self._waiting:
            self._is_running = False
            return
        self._begin()
        try:
            self._waiting.popleft()()
            while self._waiting and self._clock() < self._ends_at:
                self._waiting.popleft()()
        finally:
            asyncio.get_running_loop().call_soon(self._run_next)
