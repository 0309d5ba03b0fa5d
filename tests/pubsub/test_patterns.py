"""Subscriptions to many topics."""

from __future__ import annotations

from himalia.pubsub.subscription import Start
from tests.pubsub.conftest import Room, Viewer


def seen(viewer: Viewer) -> list[tuple[str, int]]:
    return [(event["topic"], event["offset"]) for event in viewer.events]


async def test_a_pattern_follows_what_it_matches(room: Room) -> None:
    """`*` is one segment and `>` the rest; nothing else is delivered."""
    await room.create("orders.eu", "orders.us", "orders.us.west", "users")
    star, rest = Viewer(), Viewer()
    await room.subscribe("orders.*", star, client_id="star")
    await room.subscribe("orders.>", rest, client_id="rest")
    for topic in ("users", "orders.us.west", "orders.us", "orders.eu"):
        await room.publish(topic, topic)
    await rest.until(lambda: len(rest.events) == 3)
    await star.until(lambda: len(star.events) == 2)
    assert sorted(seen(star)) == [("orders.eu", 0), ("orders.us", 0)]
    assert sorted(seen(rest)) == [("orders.eu", 0), ("orders.us", 0), ("orders.us.west", 0)]


async def test_topics_created_later_are_followed_from_their_first_record(room: Room) -> None:
    """A topic that appears after the subscription is announced and delivered from offset 0."""
    viewer = Viewer()
    await room.subscribe("kernels.>", viewer)
    await room.create("kernels.a")
    await room.publish("kernels.a", 1, 2)
    await viewer.until(lambda: len(viewer.events) == 2)
    [created] = viewer.notices("topic_created")
    assert (created["topic"], created["offset"]) == ("kernels.a", 0)
    assert created["epoch"] == (await room.manager.log.info("kernels.a")).epoch
    assert viewer.messages.index(created) == 0


async def test_a_pattern_survives_the_deletion_of_a_topic(room: Room) -> None:
    """A deleted topic leaves the pattern; created again, it is followed again, under its new epoch."""
    await room.create("orders.eu", "orders.us")
    viewer = Viewer()
    await room.subscribe("orders.*", viewer)
    await room.publish("orders.eu", 1)
    await viewer.until(lambda: viewer.events)
    await room.manager.delete_topic("orders.eu")
    await room.create("orders.eu")
    await room.publish("orders.eu", 2)
    await room.publish("orders.us", 3)
    await viewer.until(lambda: len(viewer.events) == 3)
    assert [event["message"]["payload"] for event in viewer.events if event["topic"] == "orders.eu"] == [1, 2]
    assert len(viewer.notices("topic_deleted")) == 1


async def test_a_pattern_resumes_each_topic_at_its_own_position(room: Room) -> None:
    """`from` maps topics to positions; a topic that it does not name begins at its end."""
    await room.create("a.x", "a.y", "a.z")
    for topic in ("a.x", "a.y", "a.z"):
        await room.publish(topic, *range(5))
    viewer = Viewer()
    start = Start(positions={"a.x": (3, None), "a.y": (5, None)})
    result = await room.subscribe("a.*", viewer, start, policy="lossless")
    await viewer.until(lambda: len(viewer.events) == 2)
    await room.publish("a.z", "live")
    await viewer.until(lambda: len(viewer.events) == 3)
    assert seen(viewer) == [("a.x", 3), ("a.x", 4), ("a.z", 5)]
    assert {topic: position.offset for topic, position in result.positions.items()} == {
        "a.x": 3,
        "a.y": 5,
        "a.z": 5,
    }


async def test_rights_hide_topics_of_a_pattern(room: Room) -> None:
    """A pattern shows only the topics that its owner may see, also those created later."""
    from himalia.pubsub import Subscriber, SubscriptionOptions

    await room.create("a.open", "a.secret")
    viewer = Viewer()
    options = SubscriptionOptions(can_read=lambda topic, owner: "secret" not in topic)
    subscriber = Subscriber("a.>", "v", viewer, options=options)
    await room.manager.subscribe(subscriber)
    await room.create("a.secret2", "a.open2")
    for topic in ("a.secret", "a.secret2", "a.open", "a.open2"):
        await room.publish(topic, 1)
    await viewer.until(lambda: len(viewer.events) == 2)
    await room.settled()
    assert sorted(seen(viewer)) == [("a.open", 0), ("a.open2", 0)]


async def test_a_topic_that_comes_and_goes_while_a_pattern_looks_leaves_no_ghost(room: Room) -> None:
    """Topics created and deleted while a pattern is being resolved are as if they had never been."""
    await room.create("a.x")
    await room.publish("a.x", 1)
    log = room.manager.log
    look_up = log.offset_at

    async def slowly(topic: str, ts_us: int) -> int:
        await room.create("a.ghost")
        await room.manager.delete_topic("a.ghost")
        await room.settled()
        return await look_up(topic, ts_us)

    log.offset_at = slowly  # type: ignore[method-assign]
    viewer = Viewer()
    await room.subscribe("a.*", viewer, Start(since_us=0))
    log.offset_at = look_up  # type: ignore[method-assign]
    await viewer.until(lambda: len(viewer.events) == 1)
    await room.create("a.ghost")
    await room.publish("a.ghost", "real")
    await viewer.until(lambda: len(viewer.events) == 2)
    assert seen(viewer) == [("a.x", 0), ("a.ghost", 0)]
    assert room.manager.subscriptions.pending_patterns == {}


async def test_a_topic_deleted_while_a_pattern_looks_is_left_out(room: Room) -> None:
    """A pattern follows what is left; a topic that vanished meanwhile is no error to who never named it."""
    await room.create("a.x", "a.y")
    await room.settled()
    log = room.manager.log
    look_up = log.offset_at

    async def slowly(topic: str, ts_us: int) -> int:
        if topic == "a.x":
            await room.manager.delete_topic("a.y")
            await room.settled()
        return await look_up(topic, ts_us)

    log.offset_at = slowly  # type: ignore[method-assign]
    result = await room.subscribe("a.*", Viewer(), Start(since_us=0))
    assert list(result.positions) == ["a.x"]
    assert room.manager.subscriptions.pending_patterns == {}
