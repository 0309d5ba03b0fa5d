"""Retention waits for a reader that is behind, up to a bound."""

from __future__ import annotations

from typing import Any

import pytest

from himalia.record import Position, Retention

from .backends import Backend, add, enforce_retention, read_all


async def offsets(log: Any, topic: str) -> list[int]:
    await enforce_retention(log)
    return [record.offset for record in await read_all(log, topic)]


async def unread_from(log: Any, topic: str, offset: int) -> None:
    log.hold_retention({topic: Position(offset, (await log.info(topic)).epoch)})


async def test_unread_records_stay(log: Any) -> None:
    """Of a topic beyond its limit, what was read goes and what was not read stays."""
    await log.create("orders", Retention(count=4))
    await unread_from(log, "orders", 3)
    await add(log, "orders", 8)
    assert await offsets(log, "orders") == [3, 4, 5, 6, 7]


async def test_they_go_when_they_are_read(log: Any) -> None:
    await log.create("orders", Retention(count=4))
    await unread_from(log, "orders", 0)
    await add(log, "orders", 8)
    assert await offsets(log, "orders") == list(range(8))
    await unread_from(log, "orders", 8)
    assert await offsets(log, "orders") == [4, 5, 6, 7]


async def test_only_up_to_a_bound(log: Any) -> None:
    """Twice the limit, by default: a reader that never comes back does not fill the disk."""
    await log.create("orders", Retention(count=4))
    await unread_from(log, "orders", 0)
    await add(log, "orders", 12)
    assert await offsets(log, "orders") == list(range(4, 12))


async def test_the_bound_can_be_set(backend: Backend) -> None:
    log = await backend.open(retention_wait=0.5)
    await log.create("orders", Retention(count=4))
    await unread_from(log, "orders", 0)
    await add(log, "orders", 12)
    assert await offsets(log, "orders") == list(range(6, 12))


async def test_age_waits_too(log: Any, backend: Backend) -> None:
    await log.create("orders", Retention(age_s=100))
    await unread_from(log, "orders", 1)
    await add(log, "orders", 3)
    backend.clock.advance(150)
    assert await offsets(log, "orders") == [1, 2]
    backend.clock.advance(100)
    assert await offsets(log, "orders") == []


@pytest.mark.parametrize("limits", [Retention(bytes=60), Retention(count=2)])
async def test_other_topics_do_not_wait(log: Any, limits: Retention) -> None:
    await log.create("orders", limits)
    await log.create("clicks", limits)
    await unread_from(log, "orders", 0)
    await add(log, "clicks", 8)
    assert len(await offsets(log, "clicks")) < 8


async def test_a_position_of_another_epoch_counts_for_nothing(log: Any) -> None:
    await log.create("orders", Retention(count=2))
    await unread_from(log, "orders", 0)
    await log.delete("orders")
    await log.create("orders", Retention(count=2))
    await add(log, "orders", 4)
    assert await offsets(log, "orders") == [2, 3]


async def test_waiting_is_counted(log: Any) -> None:
    await log.create("orders", Retention(count=4))
    await unread_from(log, "orders", 0)
    await add(log, "orders", 8)
    await enforce_retention(log)
    await enforce_retention(log)
    assert await counted(log) == 1
    await unread_from(log, "orders", 8)
    await enforce_retention(log)
    await enforce_retention(log)
    assert await counted(log) == 0


async def counted(log: Any) -> int:
    return int(log.stats().held_topics)


async def test_nothing_goes_before_the_first_word(backend: Backend) -> None:
    """A log that starts paused cuts nothing until it knows who is behind."""
    log = await backend.open(retention_paused=True)
    await log.create("orders", Retention(count=2))
    await add(log, "orders", 4)
    assert await offsets(log, "orders") == [0, 1, 2, 3]
    log.hold_retention({})
    assert await offsets(log, "orders") == [2, 3]
