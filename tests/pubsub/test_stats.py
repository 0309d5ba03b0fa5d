"""What the broker says of itself."""

from __future__ import annotations

import uuid

import msgspec
import pytest

from himalia.log.api import Batch
from himalia.pubsub.stats import SECONDS, Counters, LastMinute
from himalia.record import Draft
from tests.pubsub.conftest import Room, Viewer


async def test_stats_tell_of_topics_subscribers_and_totals(room: Room) -> None:
    """Counts are exact: messages, bytes, offsets, subscribers, lag, sent and dropped."""
    await room.create("orders", "idle")
    quick, slow = Viewer(), Viewer(room=1)
    await room.subscribe("orders", quick, client_id="quick")
    await room.subscribe("orders", slow, client_id="slow", limit=2)
    for i in range(10):
        await room.publish("orders", i)
        await quick.until(lambda i=i: len(quick.events) == i + 1)  # type: ignore[misc]
    stats = await room.manager.stats()
    orders = stats.topics["orders"]
    assert (orders.messages, orders.first, orders.end, orders.subscribers) == (10, 0, 10, 2)
    assert orders.lag == 9
    assert orders.bytes == 10 * (36 + 2 + 1)
    assert stats.topics["idle"].messages == 0
    by_client = {one.client_id: one for one in stats.subscribers}
    assert (by_client["quick"].sent, by_client["quick"].lag) == (10, 0)
    assert (by_client["slow"].sent, by_client["slow"].lag) == (1, 9)
    slow.read()
    await room.settled()
    stats = await room.manager.stats()
    assert stats.dropped == 7
    assert {one.client_id: one.dropped for one in stats.subscribers} == {"quick": 0, "slow": 7}
    assert stats.rates.published > 0


def test_the_last_minute_is_sixty_samples_oldest_first() -> None:
    """Each sample adds what came since the one before, at the end; before the start there are zeros, after a minute
    the oldest goes."""
    meter = Counters()
    nothing = [0] * SECONDS
    assert meter.last_minute() == LastMinute(nothing, nothing, nothing)
    seconds = [(second, 3 * second, second % 2) for second in range(1, 2 * SECONDS)]
    for count, (published, delivered, dropped) in enumerate(seconds, start=1):
        meter.published += published
        meter.delivered += delivered
        meter.dropped += dropped
        meter.sample()
        padding = [0] * (SECONDS - count)
        kept = seconds[max(count - SECONDS, 0) : count]
        columns = (padding + list(column) for column in zip(*kept, strict=True))
        assert meter.last_minute() == LastMinute(*columns)


def test_what_came_since_the_last_sample_is_in_the_next() -> None:
    """The second that is under way is not shown, so that no figure grows after it was told."""
    meter = Counters()
    meter.published += 7
    assert sum(meter.last_minute().published) == 0
    meter.sample()
    assert meter.last_minute().published == [0] * (SECONDS - 1) + [7]


async def test_stats_are_frozen(room: Room) -> None:
    """A snapshot cannot be changed by who reads it."""
    stats = await room.manager.stats()
    with pytest.raises(AttributeError):
        stats.published = 1  # type: ignore[misc]
    assert msgspec.to_builtins(stats)["published"] == 0


async def test_bytes_in_flight_are_the_bytes_that_are_stored(room: Room) -> None:
    """What waits for its commit counts as it will count in the topic: id, headers and payload."""
    await room.create("orders")
    drafts = [Draft(str(uuid.uuid4()), b'"x"', b'{"a":"b"}') for _ in range(3)]
    appended = room.manager.publish(Batch("orders", drafts))
    in_flight = room.manager.in_flight_bytes
    await appended
    await room.settled()
    assert in_flight == (await room.manager.stats()).topics["orders"].bytes == 3 * (36 + 3 + 9)
    assert room.manager.in_flight_bytes == 0
