"""One budget in bytes for all request bodies that are being received, shared by all callers.

A body for which there is no room waits. Its socket is not read meanwhile, so its sender waits too (TCP back-pressure).
"""

from __future__ import annotations

import asyncio
from collections import Counter

from himalia.errors import TooManyBodies

WAITING_MAX = 256
"""Bodies that may wait. What was read of them before their sockets were paused is not in the budget.

As with the budget, a caller may have as many of these as stay free for others.
"""
SMALL_SHARE = 16
"""A body of at most one in so many of the free bytes is admitted at once, before large ones of its caller."""
SMALL_OF_CALLER = 0.75
"""The share of the budget beyond which the small bodies of a caller wait too: a quarter is left for others."""
KEPT_SHARE = 8
"""One byte in so many stays free when an admitted body grows: it does not wait, and may never end."""


class Reservation:
    """The bytes that one body has reserved in the budget, until ``release``."""

    __slots__ = ("_budget", "bytes", "caller")

    def __init__(self, budget: BodyBudget, caller: str) -> None:
        self._budget = budget
        self.caller = caller
        self.bytes = 0

    async def grow(self, size: int) -> None:
        """Reserve ``size`` more bytes; wait for them, and raise ``TooManyBodies`` when that takes too long."""
        await self._budget.wait_for(self, size)

    @property
    def share_bytes(self) -> int:
        """How much more the body may reserve without waiting, given what else its caller has reserved."""
        return self._budget.share_bytes(self)

    def extend(self, size: int) -> None:
        """Reserve ``size`` more bytes without waiting, or raise ``TooManyBodies``.

        A body that waited while it has bytes reserved could wait for another one that does the same.
        """
        self._budget.reserve(self, size)

    def release(self) -> None:
        """Idempotent."""
        self._budget.release(self)


class _Waiting:
    __slots__ = ("reservation", "room", "size")

    def __init__(self, reservation: Reservation, size: int) -> None:
        self.reservation = reservation
        self.size = size
        self.room: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class BodyBudget:
    """Decides which body may reserve how much. Belongs to the event loop.

    A caller may reserve as much as stays free for the others: one caller gets at most half of the budget, and there is
    always room for the next one. A body that is the only one may reserve everything.
    """

    def __init__(self, bytes_max: int, wait_s: float) -> None:
        self.bytes_max = bytes_max
        self._wait_s = wait_s
        self._used = 0
        self._used_by: Counter[str] = Counter()
        # Oldest first.
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

    def reservation(self, caller: str) -> Reservation:
        """Make an empty reservation for a body of this caller."""
        return Reservation(self, caller)

    async def wait_for(self, reservation: Reservation, size: int) -> None:
        """Reserve ``size`` more bytes, after waiting for room if there is none."""
        mine = sum(waiting.reservation.caller == reservation.caller for waiting in self._waiting)
        if self._is_small(reservation, size) or (not mine and self._fits(reservation, size)):
            self._add(reservation, size)
            return
        if mine >= WAITING_MAX - len(self._waiting):
            raise TooManyBodies(
                f"{len(self._waiting)} bodies are waiting to be received, {mine} of them from {reservation.caller!r}; "
                "try again later"
            )
        waiting = _Waiting(reservation, size)
        self._waiting[waiting] = None
        try:
            await asyncio.wait_for(waiting.room, self._wait_s)
        except TimeoutError:
            raise TooManyBodies(
                f"{self._used} bytes of bodies are being received, of {self.bytes_max} at most, and there was no room "
                f"for this one within {self._wait_s:g} s; try again later"
            ) from None
        finally:
            self._waiting.pop(waiting, None)
            self._admit_waiting()

    def reserve(self, reservation: Reservation, size: int) -> None:
        """Reserve ``size`` more bytes without waiting, or raise ``TooManyBodies``."""
        if size > self.share_bytes(reservation):
            raise TooManyBodies(
                f"{self._used} bytes are being received, of {self.bytes_max} at most, "
                f"{self._used_by[reservation.caller]} of them from {reservation.caller!r}; try again later, or "
                "send less at a time"
            )
        self._add(reservation, size)

    def share_bytes(self, reservation: Reservation) -> int:
        """Return what a body may reserve without waiting. Even the only one leaves room for small ones."""
        used, free = self._used_by[reservation.caller], self.free_bytes
        half = (free - used) // 2
        small = min(free // SMALL_SHARE, int(self.bytes_max * SMALL_OF_CALLER) - used)
        alone = free - self.bytes_max // KEPT_SHARE if self._used == reservation.bytes else 0
        return max(half, small, alone, 0)

    def release(self, reservation: Reservation) -> None:
        """Return everything that was reserved, and admit bodies that waited for it. Idempotent."""
        if reservation.bytes:
            self._used -= reservation.bytes
            self._used_by[reservation.caller] -= reservation.bytes
            if not self._used_by[reservation.caller]:
                del self._used_by[reservation.caller]
            reservation.bytes = 0
            self._admit_waiting()

    def _is_small(self, reservation: Reservation, size: int) -> bool:
        """Whether a body need not wait for large ones of its caller. Many small ones are limited too."""
        is_greedy = self._used_by[reservation.caller] + size > self.bytes_max * SMALL_OF_CALLER
        return size <= self.free_bytes // SMALL_SHARE and not is_greedy

    def _fits(self, reservation: Reservation, size: int) -> bool:
        free = self.free_bytes - size
        is_alone = self._used == reservation.bytes
        return free >= 0 and (is_alone or self._used_by[reservation.caller] + size <= free)

    def _add(self, reservation: Reservation, size: int) -> None:
        reservation.bytes += size
        self._used += size
        self._used_by[reservation.caller] += size

    def _admit_waiting(self) -> None:
        """Admit waiting bodies for which there is room, oldest first; a large one does not delay other callers."""
        behind: set[str] = set()
        for waiting in list(self._waiting):
            caller = waiting.reservation.caller
            if self._is_small(waiting.reservation, waiting.size) or (
                caller not in behind and self._fits(waiting.reservation, waiting.size)
            ):
                if not waiting.room.done():
                    self._add(waiting.reservation, waiting.size)
                    waiting.room.set_result(None)
                del self._waiting[waiting]
            else:
                behind.add(caller)
