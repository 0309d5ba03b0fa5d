"""Slots for queries of tables, shared fairly."""

from __future__ import annotations

import asyncio

import pytest

from himalia.errors import QueryTooLarge, RateLimited
from himalia.server.rest.table_queries import WAITING_MAX, QuerySlots


async def begun(slots: QuerySlots, *callers: str, limit: int | None = None) -> list[asyncio.Task[None]]:
    """One that waits for a slot for each of the callers, as far as it comes by itself."""
    tasks = [asyncio.create_task(slots.acquire(caller, 60, limit)) for caller in callers]
    for _ in range(3):
        await asyncio.sleep(0)
    return tasks


async def settle(tasks: list[asyncio.Task[None]]) -> list[bool]:
    for _ in range(3):
        await asyncio.sleep(0)
    return [task.done() for task in tasks]


async def test_one_caller_never_has_all_slots() -> None:
    """A caller runs as many as one may, and the rest are there for others at once."""
    slots = QuerySlots(total=3, per_caller=2)
    many = await begun(slots, *["a"] * 6)
    assert await settle(many) == [True, True, False, False, False, False]
    [other] = await begun(slots, "b")
    assert other.done()
    slots.release("a")
    assert await settle(many) == [True, True, True, False, False, False]


async def test_a_free_slot_goes_to_the_caller_with_the_fewest() -> None:
    """However many queries of another wait, and however long."""
    slots = QuerySlots(total=2, per_caller=2)
    first = await begun(slots, "a", "a", "a", "a")
    [late] = await begun(slots, "b")
    assert not late.done()
    slots.release("a")
    assert await settle([late, *first]) == [True, True, True, False, False]


async def test_a_limit_of_its_own_counts_instead() -> None:
    """A caller whose key says so may have more, or fewer."""
    slots = QuerySlots(total=3, per_caller=2)
    assert await settle(await begun(slots, *["few"] * 2, limit=1)) == [True, False]
    assert await settle(await begun(QuerySlots(3, 2), *["many"] * 4, limit=3)) == [True, True, True, False]


async def test_the_limit_of_a_caller_is_named() -> None:
    """Who reaches the limit of its own key reads so, and not that the server is busy with others."""
    slots = QuerySlots(total=3, per_caller=2)
    await begun(slots, "few", limit=1)
    with pytest.raises(RateLimited, match="1 queries of 'few' are running, which is its limit 'queries'"):
        await slots.acquire("few", 0.01, 1)
    with pytest.raises(RateLimited, match="'none' may not query tables: its limit 'queries' is 0"):
        await slots.acquire("none", 60, 0)


async def test_those_that_go_away_leave_their_slot() -> None:
    """A caller that is cancelled, while it waits or as it gets its slot, holds none."""
    slots = QuerySlots(total=1, per_caller=1)
    [held] = await begun(slots, "a")
    waiting = await begun(slots, "b", "c")
    waiting[0].cancel()
    slots.release("a")
    assert await settle(waiting) == [True, True]
    slots.release("c")
    granted = asyncio.create_task(slots.acquire("d", 60))
    await asyncio.sleep(0)
    granted.cancel()
    await asyncio.wait([granted])
    assert await settle(await begun(slots, "e")) == [True]
    assert held.done()


async def test_waiting_is_bounded() -> None:
    """In time, and in number for each caller."""
    slots = QuerySlots(total=1, per_caller=1)
    await begun(slots, "a")
    with pytest.raises(QueryTooLarge, match="busy with other queries"):
        await slots.acquire("b", 0.01)
    waiting = await begun(slots, *["a"] * WAITING_MAX)
    with pytest.raises(QueryTooLarge, match="16 queries of 'a' are waiting already"):
        await slots.acquire("a", 60)
    for task in waiting:
        task.cancel()
