"""Which query of a table may run next: few at a time in all, fewer of one caller."""

from __future__ import annotations

import asyncio
from collections import Counter

from himalia.errors import QueryTooLarge, RateLimited

WAITING_MAX = 16
"""Queries of one caller that may wait for a slot."""


class QuerySlots:
    """A free slot goes to the caller that has the fewest, and among those to the query that has waited longest.

    ``per_caller`` is less than ``total``, so one caller never has all slots, whatever it asks for.
    """

    def __init__(self, total: int, per_caller: int) -> None:
        self._total = total
        self._per_caller = per_caller
        self._held: Counter[str] = Counter()
        # In the order in which they came; with how many slots their caller may have.
        self._waiting: dict[asyncio.Future[None], tuple[str, int]] = {}

    async def acquire(self, caller: str, wait_s: float, own_limit: int | None = None) -> None:
        """Wait for a slot; ``QueryTooLarge`` if none comes in time. ``own_limit`` replaces ``per_caller``."""
        if own_limit == 0:
            raise RateLimited(f"{caller!r} may not query tables: its limit 'queries' is 0", limit=0)
        most = self._per_caller if own_limit is None else own_limit
        if sum(1 for name, _ in self._waiting.values() if name == caller) >= WAITING_MAX:
            raise QueryTooLarge(f"{WAITING_MAX} queries of {caller!r} wait already; ask again in a moment")
        turn = asyncio.get_running_loop().create_future()
        self._waiting[turn] = caller, most
        self._grant()
        try:
            done, _ = await asyncio.wait([turn], timeout=wait_s)
        except asyncio.CancelledError:
            self._give_up(turn, caller)
            raise
        if not done:
            self._give_up(turn, caller)
            if own_limit is not None and self._held[caller] >= own_limit:
                raise RateLimited(
                    f"{own_limit} queries of {caller!r} run, its limit 'queries'; ask again when one has ended",
                    limit=own_limit,
                )
            raise QueryTooLarge("the server is busy with other queries; ask again in a moment")

    def _give_up(self, turn: asyncio.Future[None], caller: str) -> None:
        if self._waiting.pop(turn, None) is None:  # granted in the same moment
            self.release(caller)

    def release(self, caller: str) -> None:
        self._held[caller] -= 1
        self._held += Counter()  # without those that hold none
        self._grant()

    def _grant(self) -> None:
        while self._held.total() < self._total:
            ready = [turn for turn, (caller, most) in self._waiting.items() if self._held[caller] < most]
            if not ready:
                return
            turn = min(ready, key=lambda turn: self._held[self._waiting[turn][0]])
            caller, _ = self._waiting.pop(turn)
            self._held[caller] += 1
            turn.set_result(None)
