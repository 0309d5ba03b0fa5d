"""What every cursor may rely on."""

from __future__ import annotations

import asyncio

import pytest

from himalia.errors import SlowConsumer, TopicNotFound
from himalia.pubsub.subscription import Start
from himalia.pubsub.tail import SLICES_MAX
from himalia.record import Record
from himalia.server.codecs import WebSocketCodec
from tests.pubsub.conftest import Room, Viewer


async def test_live_events_come_in_order_and_once(room: Room) -> None:
    """A live subscriber gets every offset published after it subscribed, once and in order."""
    await room.create("orders")
    viewer = Viewer()
    await room.subscribe("orders", viewer)
    await asyncio.gather(*(room.send("orders", i) for i in range(500)))
    await viewer.until(lambda: len(viewer.offsets) == 500)
    assert viewer.offsets == list(range(500))
    assert [event["message"]["payload"] for event in viewer.events] == list(range(500))


async def test_nothing_is_delivered_before_it_is_committed(room: Room) -> None:
    """When an event is seen, its record can already be read from the log."""
    await room.create("orders")
    viewer = Viewer()
    await room.subscribe("orders", viewer)
    futures = [room.send("orders", i) for i in range(50)]
    await viewer.until(lambda: viewer.events)
    seen = viewer.offsets[-1]
    info = await room.manager.log.info("orders")
    assert info.end > seen
    await asyncio.gather(*futures)


async def test_update_between_replay_and_live_is_neither_lost_nor_repeated(room: Room) -> None:
    """mercure#178: whoever joins in the midst of a flood gets exactly the records from where it asked."""
    await room.create("orders")
    await room.publish("orders", *range(100))
    viewers = [Viewer() for _ in range(20)]
    futures = []
    for number, viewer in enumerate(viewers):
        futures += [room.send("orders", i) for i in range(30)]
        await room.subscribe("orders", viewer, Start(last_n=50), client_id=f"v{number}", policy="lossless")
        futures += [room.send("orders", i) for i in range(30)]
    await asyncio.gather(*futures)
    end = (await room.manager.log.info("orders")).end
    for viewer in viewers:
        await viewer.until(lambda viewer=viewer: viewer.offsets and viewer.offsets[-1] == end - 1)  # type: ignore[misc]
        assert viewer.offsets == list(range(viewer.offsets[0], end))


async def test_last_n_gives_the_newest_n(room: Room) -> None:
    """last_n begins so many records before the end, or at the first if there are fewer."""
    await room.create("orders")
    await room.publish("orders", *range(10))
    viewer, greedy = Viewer(), Viewer()
    result = await room.subscribe("orders", viewer, Start(last_n=3))
    await room.subscribe("orders", greedy, Start(last_n=99), client_id="greedy")
    await viewer.until(lambda: len(viewer.events) == 3)
    await greedy.until(lambda: len(greedy.events) == 10)
    assert result.positions["orders"].offset == 7
    assert viewer.offsets == [7, 8, 9]


async def test_resume_continues_behind_the_last_seen(room: Room) -> None:
    """A subscriber that resumes at offset n gets n, n+1, ... and nothing twice."""
    await room.create("orders")
    await room.publish("orders", *range(10))
    viewer = Viewer()
    epoch = (await room.manager.log.info("orders")).epoch
    result = await room.subscribe("orders", viewer, Start(offset=4, epoch=epoch))
    await room.publish("orders", "live")
    await viewer.until(lambda: len(viewer.events) == 7)
    assert viewer.offsets == list(range(4, 11))
    assert result.gaps == []


async def test_since_begins_at_that_time(room: Room) -> None:
    """since gives the records that are not older than the time named."""
    await room.create("orders")
    await room.publish("orders", *range(3))
    later = await room.publish("orders", "later")
    viewer = Viewer()
    await room.subscribe("orders", viewer, Start(since_us=later.ts_us))
    await viewer.until(lambda: viewer.offsets and viewer.offsets[-1] == 3)
    assert all(event["offset"] >= 0 for event in viewer.events)
    everything = await room.manager.log.read("orders", 0, limit=10)
    expected = [record.offset for record in everything.records if record.ts_us >= later.ts_us]
    assert viewer.offsets == expected


@pytest.mark.parametrize("offset", [0, 99])
async def test_a_resume_in_another_epoch_is_a_gap(room: Room, offset: int) -> None:
    """An offset of another epoch, beyond the end or not, gives a gap and then every record that is kept."""
    await room.create("orders")
    await room.publish("orders", *range(5))
    viewer = Viewer()
    result = await room.subscribe("orders", viewer, Start(offset=offset, epoch="another"))
    assert [(gap.topic, gap.requested, gap.first, gap.end) for gap in result.gaps] == [
        ("orders", offset, 0, 5)
    ]
    await viewer.until(lambda: len(viewer.events) == 5)
    assert viewer.offsets == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("ahead", [1, 7, 2000])
@pytest.mark.parametrize("with_epoch", [False, True])
async def test_an_offset_beyond_the_end_is_waited_for(room: Room, ahead: int, with_epoch: bool) -> None:
    """A cursor beyond the end gets no earlier record and, once the log reaches its offset, every record from there."""
    await room.create("orders")
    await room.publish("orders", *range(5))
    epoch = (await room.manager.log.info("orders")).epoch if with_epoch else None
    viewer = Viewer()
    result = await room.subscribe("orders", viewer, Start(offset=5 + ahead, epoch=epoch))
    assert (result.gaps, result.positions["orders"].offset) == ([], 5 + ahead)
    await room.publish("orders", *range(ahead))
    await room.settled()
    assert viewer.messages == []
    await room.publish("orders", "reached", "behind it")
    await viewer.until(lambda: len(viewer.events) == 2)
    assert viewer.offsets == [5 + ahead, 6 + ahead]


async def test_each_topic_of_a_pattern_waits_for_its_own_offset(room: Room) -> None:
    """With positions, a topic whose position is beyond its end waits, while the others are delivered."""
    await room.create("a.one", "a.two")
    for topic in ("a.one", "a.two"):
        await room.publish(topic, *range(3))
    viewer = Viewer()
    await room.subscribe("a.*", viewer, Start(positions={"a.one": (5, None), "a.two": (2, None)}))
    for topic in ("a.one", "a.two"):
        await room.publish(topic, *range(3))
    await viewer.until(lambda: len(viewer.events) == 5)
    seen = sorted((event["topic"], event["offset"]) for event in viewer.events)
    assert seen == [("a.one", 5), ("a.two", 2), ("a.two", 3), ("a.two", 4), ("a.two", 5)]


async def test_a_resume_behind_retention_is_told(room: Room) -> None:
    """Offsets that retention took are named in a gap; delivery begins at the earliest record kept."""
    await room.create("orders", count=10)
    for i in range(30):
        await room.publish("orders", i)
    watching = room.manager.log
    while (await watching.info("orders")).first != 20:
        await asyncio.sleep(0.01)
    viewer = Viewer()
    result = await room.subscribe("orders", viewer, Start(offset=5))
    assert [(gap.requested, gap.first) for gap in result.gaps] == [(5, 20)]
    await viewer.until(lambda: len(viewer.events) == 10)
    assert viewer.offsets == list(range(20, 30))


async def test_an_unknown_topic_is_refused(room: Room) -> None:
    """Subscribing to a name that does not exist is an error; to a pattern that matches nothing it is not."""
    with pytest.raises(TopicNotFound):
        await room.subscribe("nowhere", Viewer())
    assert (await room.subscribe("nowhere.*", Viewer())).positions == {}


async def test_overflow_names_exactly_what_was_skipped(room: Room) -> None:
    """centrifugo#165: a slow subscriber is told the first and the last offset it missed, and misses no other."""
    await room.create("orders")
    viewer = Viewer(room=1)
    await room.subscribe("orders", viewer, limit=10)
    await room.publish("orders", 0)
    await room.settled()
    for i in range(1, 101):
        await room.publish("orders", i)
    await room.settled()
    viewer.read()
    await room.settled()
    viewer.read()
    [notice] = viewer.notices("dropped")
    assert (notice["topic"], notice["first"], notice["last"], notice["count"]) == ("orders", 1, 90, 90)
    assert viewer.offsets == [0, *range(91, 101)]
    assert viewer.messages.index(notice) == 1, "the notice stands where the records would have stood"


async def test_a_burst_that_the_transport_takes_is_not_dropped(room: Room) -> None:
    """However much comes at once, nothing is skipped for a subscriber whose transport is not full."""
    await room.create("orders")
    viewer = Viewer()
    await room.subscribe("orders", viewer, limit=10)
    await room.publish("orders", *range(3000))
    await viewer.until(lambda: len(viewer.events) == 3000)
    assert viewer.notices("dropped") == []


async def test_records_asked_for_are_never_dropped(room: Room) -> None:
    """last_n records come in full however slow the subscriber is; only what follows may be skipped."""
    await room.create("orders")
    await room.publish("orders", *range(200))
    viewer = Viewer(room=1)
    await room.subscribe("orders", viewer, Start(last_n=200), limit=5)
    await room.publish("orders", *range(100))
    for _ in range(1000):
        await room.settled()
        viewer.read()
        if viewer.offsets and viewer.offsets[-1] == 299:
            break
    assert viewer.offsets[:200] == list(range(200))
    missed = [
        offset
        for notice in viewer.notices("dropped")
        for offset in range(notice["first"], notice["last"] + 1)
    ]
    assert sorted(viewer.offsets + missed) == list(range(300))


async def test_lossless_never_skips(room: Room) -> None:
    """A lossless subscriber gets everything at its own pace, from the log when the tail has moved on."""
    await room.create("orders")
    viewer = Viewer(room=1)
    await room.subscribe("orders", viewer, policy="lossless")
    for _ in range(30):
        await room.publish("orders", *range(200))
    while len(viewer.offsets) < 6000:
        await room.settled()
        viewer.read()
    assert viewer.offsets == list(range(6000))
    assert max(viewer.writes) <= 512 * 1024, "what is handed to a slow transport is bounded"


async def test_disconnect_policy_ends_the_slow_one(room: Room) -> None:
    """nats-server#1520: under `disconnect` the slow subscriber is told SLOW_CONSUMER and where to resume."""
    await room.create("orders")
    viewer = Viewer(room=1)
    await room.subscribe("orders", viewer, policy="disconnect", limit=10)
    await room.publish("orders", 0)
    await room.settled()
    for i in range(1, 31):
        await room.publish("orders", i)
    await room.settled()
    assert isinstance(viewer.ended, SlowConsumer)
    assert viewer.ended.data["offset"] == 1


async def test_a_slow_subscriber_costs_the_others_nothing(room: Room) -> None:
    """Others get everything while one transport is stuck, and the stuck one holds no more than a chunk."""
    await room.create("orders")
    stuck, quick = Viewer(room=1), Viewer()
    await room.subscribe("orders", stuck, client_id="stuck", policy="lossless")
    await room.subscribe("orders", quick, client_id="quick")
    for _ in range(20):
        await room.publish("orders", *["x" * 1000] * 100)
    await quick.until(lambda: len(quick.events) == 2000)
    assert len(stuck.waiting) <= 300 * 1024


async def test_deleting_a_topic_tells_its_subscribers(room: Room) -> None:
    """topic_deleted is the last word on a topic; a new topic of that name is another one."""
    await room.create("orders")
    viewer = Viewer()
    await room.subscribe("orders", viewer)
    await room.publish("orders", 1)
    await viewer.until(lambda: viewer.events)
    await room.manager.delete_topic("orders")
    await viewer.until(lambda: viewer.notices("topic_deleted"))
    await room.create("orders")
    await room.publish("orders", 2)
    await room.settled()
    assert len(viewer.events) == 1
    assert room.manager.subscriber_count == 0


async def test_the_same_client_id_elsewhere_replaces(room: Room) -> None:
    """A ghost subscriber is replaced and told so; another owner's client of that name is left alone."""
    await room.create("orders")
    ghost, stranger, viewer = Viewer(), Viewer(), Viewer()
    await room.subscribe("orders", ghost, client_id="a", owner="alice")
    await room.subscribe("orders", stranger, client_id="a", owner="bob")
    await room.subscribe("orders", viewer, client_id="a", owner="alice")
    await room.publish("orders", 1)
    await viewer.until(lambda: viewer.events)
    await stranger.until(lambda: stranger.events)
    assert ghost.notices("replaced") and not ghost.events
    assert not stranger.notices("replaced")


async def test_a_gone_connection_leaves_no_ghost(room: Room) -> None:
    """After a connection ended nothing of it is left."""
    await room.create("orders")
    viewer = Viewer()
    await room.subscribe("orders", viewer)
    await room.subscribe("orders.*", viewer)
    room.manager.disconnect(viewer)
    assert room.manager.subscriber_count == 0
    assert room.manager.topics == {}


async def test_higher_priority_is_served_first(room: Room) -> None:
    """In a tick, subscribers of higher priority are written to before the others."""
    await room.create("orders")
    order: list[str] = []

    class Noting(Viewer):
        __slots__ = ("name",)

        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

        def write(self, data: bytes) -> None:
            order.append(self.name)
            super().write(data)

    viewers = [Noting("low"), Noting("high"), Noting("middle")]
    for viewer, priority in zip(viewers, [-1, 10, 0], strict=True):
        await room.subscribe("orders", viewer, client_id=viewer.name, priority=priority)
    await room.publish("orders", 1)
    for viewer in viewers:
        await viewer.until(lambda viewer=viewer: viewer.events)  # type: ignore[misc]
    assert order == ["high", "middle", "low"]


async def test_one_write_per_subscriber_and_tick(room: Room) -> None:
    """Records committed together reach a subscriber in one write, of all its subscriptions."""
    await room.create("a", "b")
    viewer = Viewer()
    await room.subscribe("a", viewer)
    await room.subscribe("b", viewer)
    await room.settled()
    before = len(viewer.writes)
    futures = [room.send("a", *range(10)), room.send("b", *range(10))]
    await asyncio.gather(*futures)
    await viewer.until(lambda: len(viewer.events) == 20)
    assert len(viewer.writes) - before <= 2


async def test_a_long_replay_does_not_starve_the_other_subscriptions(room: Room) -> None:
    """Cursors of one connection that read the log take turns, so a short replay need not wait for a long one."""
    await room.create("big", "small")
    for _ in range(20):
        await room.publish("big", *["x" * 500] * 1000)
    await room.publish("small", *range(10))
    viewer = Viewer()
    await room.subscribe("big", viewer, Start(offset=0), policy="lossless")
    await room.subscribe("small", viewer, Start(last_n=10))
    await viewer.until(lambda: len(viewer.events) == 20_010)
    first_small = next(i for i, event in enumerate(viewer.events) if event["topic"] == "small")
    assert first_small < 10_000


async def test_many_places_in_a_quiet_tail_cost_little(room: Room) -> None:
    """Joined buffers are shared by those at the same place, not kept for every place anybody was ever at."""
    await room.create("orders")
    await room.subscribe("orders", Viewer(), client_id="keeps the tail")
    await room.publish("orders", *["x" * 1000] * 500)
    await room.settled()
    for n in range(1, 200):
        viewer = Viewer()
        await room.subscribe("orders", viewer, Start(last_n=n), client_id=f"v{n}")
        await viewer.until(lambda viewer=viewer, n=n: len(viewer.events) == n)  # type: ignore[misc]
        room.manager.disconnect(viewer)
    [view] = room.manager.topics["orders"].tail._views.values()
    assert len(view._slices) <= SLICES_MAX


async def test_a_record_is_encoded_once_for_all_filters(room: Room) -> None:
    """Each record is encoded once for each kind of transport, however many filters let it pass."""
    encoded: list[int] = []

    class Counting(WebSocketCodec):
        def encode_event(self, record: Record) -> bytes:
            encoded.append(record.offset)
            return super().encode_event(record)

    codec = Counting()
    await room.create("orders")
    viewers = [Viewer() for _ in range(5)]
    for number, viewer in enumerate(viewers):
        viewer.codec = codec
        await room.subscribe("orders", viewer, client_id=f"v{number}", filter=f"offset >= {number}")
    await room.publish("orders", *range(20))
    for number, viewer in enumerate(viewers):
        await viewer.until(lambda viewer=viewer, number=number: len(viewer.events) == 20 - number)  # type: ignore[misc]
    assert sorted(encoded) == list(range(20))
