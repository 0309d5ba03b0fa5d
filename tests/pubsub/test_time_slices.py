"""Long work is done in turns: whatever one subscriber asks for, the loop answers others in between."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import TypeVar

import pytest

from himalia.pubsub import Cursor, Subscriber, SubscriptionOptions
from himalia.pubsub.backlog import ENCODED_AT_ONCE
from himalia.pubsub.subscription import Start, SubscribeResult
from himalia.pubsub.time_slices import TimeSlices
from himalia.server.websocket.subscription_request import compile_limited_filter
from himalia.settings import DeliverySettings, Settings
from tests.pubsub.conftest import Room, Viewer, make_room

T = TypeVar("T")
TOPICS = [f"many.{number:03}" for number in range(200)]


@pytest.fixture
async def room(tmp_path: Path) -> AsyncIterator[Room]:
    """A room with 200 topics, whose turns are over after each unit of work."""
    async for made in make_room("memory", tmp_path, DeliverySettings(tail_records=8)):
        await made.create(*TOPICS)
        made.manager.time_slices.slice_s = 0.0
        yield made


async def counted(work: Awaitable[T]) -> tuple[T, int]:
    """What the work gives, and how often the loop looked at its sockets meanwhile."""
    task = asyncio.ensure_future(work)
    turns = 0
    while not task.done():
        await asyncio.sleep(0)
        turns += 1
    return task.result(), turns


# Time slices


async def test_work_waits_its_turn() -> None:
    """What is put off runs in the order it came, after what the loop had to do already."""
    slices, done = TimeSlices(slice_s=0.0), []
    for number in range(3):
        slices.defer(lambda number=number: done.append(number))  # type: ignore[misc]
    assert done == []
    for expected in ([0], [0, 1], [0, 1, 2]):
        await asyncio.sleep(0)
        assert done == expected


async def test_work_that_fits_is_done_in_one_turn() -> None:
    """A turn goes on with the next work until its time is up."""
    slices, done = TimeSlices(slice_s=60.0), []
    for number in range(100):
        slices.defer(lambda number=number: done.append(number))  # type: ignore[misc]
    await asyncio.sleep(0)
    assert done == list(range(100))


async def test_coroutines_rest_one_after_the_other() -> None:
    """Of many that rest, one continues in each turn, so that they cannot add up to a long one."""
    slices, steps = TimeSlices(slice_s=60.0), []

    async def work(name: str) -> None:
        for _ in range(3):
            await slices.wait_next()
            steps.append(name)

    tasks = [asyncio.create_task(work(name)) for name in "abc"]
    seen = 0
    while not all(task.done() for task in tasks):
        await asyncio.sleep(0)
        assert len(steps) - seen <= 1
        seen = len(steps)
    assert "".join(steps) == "abcabcabc"


async def test_a_cancelled_rest_is_passed_over() -> None:
    """Work that was cancelled while it waited neither runs nor keeps the next from its turn."""
    slices = TimeSlices(slice_s=0.0)
    resting = asyncio.create_task(slices.wait_next())
    await asyncio.sleep(0)
    resting.cancel()
    await asyncio.wait_for(slices.wait_next(), 10)
    assert resting.cancelled()


# Subscribing to very many topics


async def test_a_pattern_is_joined_in_turns(room: Room) -> None:
    """While a pattern finds its topics the loop runs; the subscriber is told of all of them at once."""
    viewer = Viewer()
    joined, turns = await counted(room.subscribe(">", viewer))
    assert turns >= len(TOPICS)
    assert sorted(joined.positions) == TOPICS


async def test_nothing_is_delivered_before_the_subscription_is_acknowledged(room: Room) -> None:
    """Records, deletions and new topics during the joining are in the answer or come after it, and none is missed."""
    viewer = Viewer()

    async def join() -> SubscribeResult:
        joined = await room.subscribe("many.>", viewer, Start(offset=0))
        # What the caller gathers here, the ack, comes before any event.
        assert viewer.messages == []
        return joined

    joining = asyncio.ensure_future(join())
    while not room.manager.topics.get(TOPICS[20]):
        await asyncio.sleep(0)
    await room.publish(TOPICS[0], "joined already")
    await room.publish(TOPICS[-1], "not joined yet")
    for topic in (TOPICS[1], TOPICS[-2]):
        await room.manager.delete_topic(topic)
    await room.create("many.created", TOPICS[1])
    await room.publish("many.created", "in a new topic")
    assert not joining.done() and viewer.messages == []
    joined = await joining
    assert sorted(joined.positions) == sorted({*TOPICS, "many.created"} - {TOPICS[-2]})
    assert joined.positions[TOPICS[1]].epoch == (await room.manager.log.info(TOPICS[1])).epoch
    await viewer.until(lambda: len(viewer.events) == 3)
    await room.settled()
    assert sorted(event["message"]["payload"] for event in viewer.events) == [
        "in a new topic",
        "joined already",
        "not joined yet",
    ]
    assert viewer.notices("topic_deleted") == viewer.notices("topic_created") == []


async def test_a_subscription_begins_in_turns(room: Room) -> None:
    """After it is acknowledged its cursors begin one by one; each record of each topic comes once."""
    for topic in TOPICS:
        await room.publish(topic, topic)
    viewer = Viewer()
    await room.subscribe("many.>", viewer, Start(offset=0))
    (subscriber,) = viewer.subscribers
    assert sum(not cursor.held for cursor in subscriber.cursors.values()) <= 2
    await viewer.until(lambda: len(viewer.events) == len(TOPICS))
    await room.settled()
    assert sorted(event["topic"] for event in viewer.events) == TOPICS


async def test_a_topic_deleted_while_a_subscription_begins_is_told(room: Room) -> None:
    """A topic whose cursor has not begun yet when it is deleted is reported like any other."""
    viewer = Viewer()
    joined = await room.subscribe(">", viewer)
    assert TOPICS[-1] in joined.positions
    await room.manager.delete_topic(TOPICS[-1])
    await viewer.until(lambda: bool(viewer.notices("topic_deleted")))
    await room.publish(TOPICS[-2], "delivered")
    await viewer.until(lambda: bool(viewer.events))


async def test_a_subscription_that_ends_while_it_begins_gets_nothing_more(room: Room) -> None:
    """Cursors that have not begun yet never do."""
    for topic in TOPICS:
        await room.publish(topic, "old")
    viewer = Viewer()
    await room.subscribe(">", viewer, Start(offset=0))
    assert room.manager.unsubscribe(">", "", "viewer", viewer)
    await until_gone(room)
    assert viewer.events == []


async def test_a_subscription_costs_what_it_follows(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new one leaves the cursors of the others on the same topics alone."""
    first = Viewer()
    await room.subscribe(">", first, client_id="first")
    (subscriber,) = first.subscribers
    async with asyncio.timeout(10):
        while any(cursor.held for cursor in subscriber.cursors.values()) or not room.manager.is_idle:
            await asyncio.sleep(0)
    served: list[str] = []
    serve = room.manager._delivery._serve

    def counting(cursor: Cursor) -> bool:
        served.append(cursor.subscriber.client_id)
        return serve(cursor)

    monkeypatch.setattr(room.manager._delivery, "_serve", counting)
    await room.subscribe(">", Viewer(), client_id="second")
    async with asyncio.timeout(10):
        while len(served) < len(TOPICS):
            await asyncio.sleep(0)
    assert set(served) == {"second"}


async def test_the_garbage_collector_need_not_know_of_cursors(room: Room) -> None:
    """It does not walk through them, and an outlet that has left is freed without it."""

    class Watched(Viewer):
        __slots__ = ("__weakref__",)

    viewer = Watched()
    await room.subscribe(">", viewer)
    await room.settled()
    (subscriber,) = viewer.subscribers
    assert not any(gc.is_tracked(cursor) for cursor in subscriber.cursors.values())
    left = weakref.ref(viewer)
    gc.disable()
    try:
        viewer.closed = True
        room.manager.disconnect(viewer)
        del viewer, subscriber
        await until_gone(room)
        await asyncio.sleep(0)
        assert left() is None
    finally:
        gc.enable()


async def test_a_connection_that_ends_while_it_joins_leaves_nothing_behind(room: Room) -> None:
    """The cursors it had already are taken away again."""
    viewer = Viewer()
    joining = asyncio.ensure_future(room.subscribe(">", viewer))
    while not room.manager.topics.get(TOPICS[20]):
        await asyncio.sleep(0)
    viewer.closed = True
    room.manager.disconnect(viewer)
    assert (await joining).positions == {}
    await until_gone(room)


async def test_a_subscription_beyond_the_limit_leaves_nothing_behind(room: Room) -> None:
    """It is refused as a whole, however many of its cursors there was room for."""
    room.manager.subscriptions.settings = DeliverySettings(cursors_max=100)
    with pytest.raises(Exception, match="88 cursors, and the last of 100 are kept"):
        await room.subscribe(">", Viewer())
    await until_gone(room)


async def test_a_pattern_is_left_in_turns(room: Room) -> None:
    """Nothing is delivered after the end of a subscription, however long it takes to clear it away."""
    viewer = Viewer()
    await room.subscribe(">", viewer)
    await room.settled()
    subscriptions = len(room.manager.topics)
    assert room.manager.unsubscribe(">", "", "viewer", viewer)
    assert len(room.manager.topics) > subscriptions - 5
    await room.publish(TOPICS[0], "too late")
    await room.manager.delete_topic(TOPICS[1])
    _, turns = await counted(until_gone(room))
    assert turns > 100
    assert [message for message in viewer.messages if message.get("topic") in TOPICS] == []


async def until_gone(room: Room) -> None:
    async with asyncio.timeout(10):
        while room.manager.topics:
            await asyncio.sleep(0)
    assert room.manager.subscriptions.cursor_count == 0


async def test_cursors_are_counted_in_turns(room: Room) -> None:
    """Statistics over very many cursors leave the loop to others; they are complete all the same."""
    viewer = Viewer()
    await room.subscribe(">", viewer)
    viewer.room, viewer.paused = 0, True
    await room.publish(TOPICS[7], 1, 2, 3)
    async with asyncio.timeout(10):
        while not room.manager.is_idle:
            await asyncio.sleep(0)
    stats, turns = await counted(room.manager.stats())
    assert turns > len(TOPICS)
    assert sorted(stats.topics) == TOPICS
    assert [each.lag for each in stats.subscribers] == [stats.topics[TOPICS[7]].lag] == [3]
    lag, turns = await counted(room.manager.lag())
    assert turns > len(TOPICS)
    assert lag == 3


# Catching up


async def test_a_chunk_of_the_log_is_sent_in_turns(room: Room) -> None:
    """Encoding and filtering what was read leaves the loop to others; all of it comes, in order."""
    for number in range(20):
        await room.publish(TOPICS[0], *range(number * 50, number * 50 + 50))
    viewer = Viewer()
    await room.subscribe(TOPICS[0], viewer, Start(offset=0), filter="message.payload >= 0")
    _, turns = await counted(viewer.until(lambda: len(viewer.events) == 1000))
    assert turns > 1000 // ENCODED_AT_ONCE
    assert viewer.offsets == list(range(1000))


async def test_a_transport_that_can_take_more_costs_what_it_lacks(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When a slow reader of many topics reads on, only the topics with something for it are looked at."""
    viewer = Viewer(room=1)
    await room.subscribe(">", viewer, policy="lossless")
    await room.settled()
    viewer.read()
    for number in range(30):
        await room.publish(TOPICS[number % 3], number)
    await room.settled()
    served, serve = [], room.manager._delivery._serve

    def counting(cursor: object) -> bool:
        served.append(cursor)
        return serve(cursor)  # type: ignore[arg-type]

    monkeypatch.setattr(room.manager._delivery, "_serve", counting)
    while len(viewer.events) < 30:
        viewer.read()
        await asyncio.sleep(0)
    assert len(served) < len(TOPICS) // 2


async def test_each_of_many_topics_is_read_in_turn(room: Room) -> None:
    """Of the topics of one slow reader that are behind the tail, each is read before one is read again."""
    for topic in TOPICS[:5]:
        for number in range(10):
            await room.publish(topic, *range(number * 200, number * 200 + 200))
    viewer = Viewer()
    subscriber = Subscriber(
        "many.*", "v", viewer, options=SubscriptionOptions(start=Start(offset=0), policy="lossless")
    )
    await room.manager.subscribe(subscriber)
    await viewer.until(lambda: len(viewer.events) == 10_000)
    order: list[str] = []
    for event in viewer.events:
        if not order or order[-1] != event["topic"]:
            order.append(event["topic"])
    # From when all of them are in line.
    assert sorted(order[50:55]) == sorted(order[100:105]) == TOPICS[:5]
    for topic in TOPICS[:5]:
        assert [e["offset"] for e in viewer.events if e["topic"] == topic] == list(range(2000))


async def test_filters_are_compiled_in_turns() -> None:
    """Many that come in the same moment do not hold the loop for longer than one of them."""
    turns, settings = TimeSlices(slice_s=0.0), Settings()
    texts = [f"offset == {number} && topic == 'in turns'" for number in range(20)]
    made, looks = await counted(
        asyncio.gather(*[compile_limited_filter(text, settings, turns) for text in texts])
    )
    assert len(set(made)) == 20
    assert looks >= 20
