"""One budget in bytes for all request bodies that are being received, shared by all callers.

A body that does not fit waits. It is not read from meanwhile, so its sender waits too, by TCP's own back-pressure.
"""

from __future__ import annotations

import asyncio
from collections import Counter

from himalia.errors import TooManyBodies

WAITING_MAX = 256
"""Bodies that may wait. What the network has read of each of them before it was stopped is not in the budget.

As of the budget, a caller may have as many of these places as stay free for others.
"""
SMALL_SHARE = 16
"""A body that needs at most this part of what is free is let in at once, beside the large ones of its caller."""
SMALL_OF_CALLER = 0.75
"""The part of the budget beyond which also the small bodies of a caller wait: a quarter is left for others."""
KEPT_SHARE = 8
"""One byte in so many stays free when a body that was let in takes more: it does not wait, and may never end."""


class Hold:
    """What one body holds of the budget, until it is released."""

    __slots__ = ("_budget", "bytes", "caller")

    def __init__(self, budget: BodyBudget, caller: str) -> None:
        self._budget = budget
        self.caller = caller
        self.bytes = 0

    async def grow(self, size: int) -> None:
        """Hold so many bytes more; waits for them, and fails with ``TooManyBodies`` when that takes too long."""
        await self._budget.take(self, size)

    @property
    def share_bytes(self) -> int:
        """How much more it may take at once, beside what else its caller holds."""
        return self._budget.share_bytes(self)

    def extend(self, size: int) -> None:
        """Hold so many bytes more at once, or fail: bodies that wait while they hold something could wait for ever."""
        self._budget.take_now(self, size)

    def release(self) -> None:
        """May be called more than once."""
        self._budget.give_back(self)


class _Waiting:
    __slots__ = ("hold", "room", "size")

    def __init__(self, hold: Hold, size: int) -> None:
        self.hold = hold
        self.size = size
        self.room: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class BodyBudget:
    """Who may take how much.

    A caller may hold as much as stays free for the others, so one caller gets at most half of the budget, and there
    is always something left for the next one. A body that is all alone may take everything.
    """

    def __init__(self, bytes_max: int, wait_s: float) -> None:
        self.bytes_max = bytes_max
        self._wait_s = wait_s
        self._used = 0
        self._used_by: Counter[str] = Counter()
        # In the order in which they came.
        self._waiting: dict[_Waiting, None] = {}

    @property
    def used_bytes(self) -> int:
        return self._used

    @property
    def free_bytes(self) -> int:
        return self.bytes_max - self._used

    @property
    def waiting_count(self) -> int:
        return len(self._waiting)

    def hold(self, caller: str) -> Hold:
        return Hold(self, caller)

    async def take(self, hold: Hold, size: int) -> None:
        mine = sum(waiting.hold.caller == hold.caller for waiting in self._waiting)
        if self._is_small(hold, size) or (not mine and self._fits(hold, size)):
            self._give(hold, size)
            return
        if mine >= WAITING_MAX - len(self._waiting):
            raise TooManyBodies(
                f"{len(self._waiting)} bodies wait to be received, {mine} of them from {hold.caller!r}; try again later"
            )
        waiting = _Waiting(hold, size)
        self._waiting[waiting] = None
        try:
            await asyncio.wait_for(waiting.room, self._wait_s)
        except TimeoutError:
            raise TooManyBodies(
                f"bodies of {self._used} bytes are being received, of {self.bytes_max} at most, and there was no room "
                f"for this one within {self._wait_s:g} s; try again later"
            ) from None
        finally:
            self._waiting.pop(waiting, None)
            self._let_in()

    def take_now(self, hold: Hold, size: int) -> None:
        if size > self.share_bytes(hold):
            raise TooManyBodies(
                f"{self._used} bytes are being received, of {self.bytes_max} at most, "
                f"{self._used_by[hold.caller]} of them from {hold.caller!r}; try again later, or send less at a time"
            )
        self._give(hold, size)

    def share_bytes(self, hold: Hold) -> int:
        """What this body may take without waiting. Even one that is all alone leaves room for small ones."""
        used, free = self._used_by[hold.caller], self.free_bytes
        half = (free - used) // 2
        small = min(free // SMALL_SHARE, int(self.bytes_max * SMALL_OF_CALLER) - used)
        alone = free - self.bytes_max // KEPT_SHARE if self._used == hold.bytes else 0
        return max(half, small, alone, 0)

    def give_back(self, hold: Hold) -> None:
        if hold.bytes:
            self._used -= hold.bytes
            self._used_by[hold.caller] -= hold.bytes
            if not self._used_by[hold.caller]:
                del self._used_by[hold.caller]
            hold.bytes = 0
            self._let_in()

    def _is_small(self, hold: Hold, size: int) -> bool:
        """Whether a body need not wait for the large ones of its caller. Many small ones are bounded too."""
        is_greedy = self._used_by[hold.caller] + size > self.bytes_max * SMALL_OF_CALLER
        return size <= self.free_bytes // SMALL_SHARE and not is_greedy

    def _fits(self, hold: Hold, size: int) -> bool:
        free = self.free_bytes - size
        is_alone = self._used == hold.bytes
        return free >= 0 and (is_alone or self._used_by[hold.caller] + size <= free)

    def _give(self, hold: Hold, size: int) -> None:
        hold.bytes += size
        self._used += size
        self._used_by[hold.caller] += size

    def _let_in(self) -> None:
        """Give room to those that wait, in their order; one caller's large body does not hold up another caller."""
        behind: set[str] = set()
        for waiting in list(self._waiting):
            caller = waiting.hold.caller
            if self._is_small(waiting.hold, waiting.size) or (
                caller not in behind and self._fits(waiting.hold, waiting.size)
            ):
                if not waiting.room.done():
                    self._give(waiting.hold, waiting.size)
                    waiting.room.set_result(None)
                del self._waiting[waiting]
            else:
                behind.add(caller)
