from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from himalia.client import Client, Disconnected, Event, Gap, Resumed, Subscription, TopicDeleted, connection
from himalia.errors import Unauthorized
from himalia.record import Position, Retention
from himalia.server.identity.token import TokenFile
from tests.client.faulty_relay import FaultyRelay
from tests.client.receive import receive, receive_events, receive_until, until
from tests.servers import RunningServer

Serve = Callable[..., RunningServer]


async def test_a_restart_loses_nothing_and_repeats_nothing(serve: Serve) -> None:
    """While a server is restarted again and again, a publisher goes on, and a subscriber gets each record once."""
    server = serve()
    server.create("orders")
    async with Client() as client, client.subscribe("orders") as events:
        got: list[Event] = []
        reading = asyncio.create_task(_collect(events, got))
        publishing = asyncio.create_task(client.publish_many("orders", _slowly(300)))
        for restart in range(3):
            await until(lambda restart=restart: len(got) >= 60 * (restart + 1))
            await asyncio.to_thread(server.stop)
            server = serve()
        assert await publishing == 300
        await until(lambda: len(got) >= 300)
        reading.cancel()
        assert [event.offset for event in got] == list(range(300))
        assert [event.payload for event in got] == list(range(300))
        assert [topic.end for topic in await client.topics()] == [300]


async def _collect(events: Subscription[Event], into: list[Event]) -> None:
    async for event in events:
        into.append(event)


async def _slowly(count: int):
    """Numbers with a pause now and then, so that a restart falls among them."""
    for number in range(count):
        if number % 10 == 0:
            await asyncio.sleep(0.02)
        yield number


async def test_a_connection_that_breaks_is_made_again(client: Client, relay: FaultyRelay) -> None:
    """However often the network fails, every event comes once, in order, and the user is told of each failure."""
    async with Client(relay.url) as viewer, viewer.subscribe("orders", notices=True) as items:
        for number in range(5):
            await client.publish_many("orders", range(number * 100, number * 100 + 100))
            events = await receive_events(items, 50)
            relay.cut()
            events += await receive_events(items, 50)
            assert [event.payload for event in events] == list(range(number * 100, number * 100 + 100))
        relay.cut()
        lost, resumed = await receive(items, 2)
    assert isinstance(lost, Disconnected)
    assert resumed == Resumed(relay.url)


async def test_what_is_published_while_away_comes_after_the_resume(
    client: Client, relay: FaultyRelay
) -> None:
    """A live subscription that was cut off before its first event goes on where it began, not where it came back."""
    async with Client(relay.url) as viewer, viewer.subscribe("orders") as events:
        relay.cut()
        await client.publish_many("orders", range(200))
        assert [event.payload for event in await receive(events, 200)] == list(range(200))


@pytest.mark.parametrize("with_epoch", [False, True])
async def test_an_offset_beyond_the_end_is_waited_for(
    client: Client, relay: FaultyRelay, with_epoch: bool
) -> None:
    """A start beyond the end gives no earlier record, before or after a resume; then every record from there."""
    published = await client.publish("orders", 0)
    start = Position(4, published.epoch) if with_epoch else 4
    async with (
        Client(relay.url) as viewer,
        viewer.subscribe("orders", from_=start, notices=True) as items,
    ):
        await client.publish("orders", 1)
        relay.cut()
        assert [type(item) for item in await receive(items, 2)] == [Disconnected, Resumed]
        await client.publish_many("orders", range(2, 6))
        assert [item.offset for item in await receive(items, 2)] == [4, 5]


async def test_a_resume_keeps_the_policy(client: Client, relay: FaultyRelay) -> None:
    """A subscription that was live is served after a resume as it was before: drop_oldest, and its limit."""
    async with Client(relay.url) as viewer, viewer.subscribe("orders", client_id="v", notices=True) as items:
        relay.cut()
        await receive_until(items, Resumed)
        policies = {one.client_id: one.policy for one in (await client.stats()).subscribers}
    assert policies == {"v": "drop_oldest"}
    async with (
        Client(relay.url) as viewer,
        viewer.subscribe("orders", from_=0, client_id="v", notices=True) as items,
    ):
        relay.cut()
        await receive_until(items, Resumed)
        policies = {one.client_id: one.policy for one in (await client.stats()).subscribers}
    assert policies == {"v": "lossless"}


async def test_a_topic_made_again_while_away_is_a_gap(client: Client, relay: FaultyRelay) -> None:
    """A resume into a topic of the same name but another epoch says so and starts at its first record."""
    await client.publish_many("orders", range(5))
    async with Client(relay.url) as viewer, viewer.subscribe("orders", last_n=1, notices=True) as items:
        await receive(items, 1)
        relay.port, port = 1, relay.port
        relay.cut()
        await client.delete_topic("orders")
        await client.create_topic("orders")
        await client.publish("orders", "new")
        relay.port = port
        found = await receive_until(items, Event)
    assert Gap("orders", 5, 0, 1) in found
    assert (found[-1].offset, found[-1].payload) == (0, "new")


async def test_what_retention_took_while_away_is_a_gap(client: Client, relay: FaultyRelay) -> None:
    """A subscriber that was away for longer than records are kept is told exactly where it goes on."""
    await client.create_topic("short", Retention(count=10))
    async with Client(relay.url) as viewer, viewer.subscribe("short", notices=True) as items:
        await client.publish("short", 0)
        await receive(items, 1)
        relay.port, port = 1, relay.port
        relay.cut()
        await client.publish_many("short", range(1, 100))
        await until(lambda: _first_kept(client, "short", at_least=2))
        relay.port = port
        found = await receive_until(items, Event)
    gap = next(item for item in found if isinstance(item, Gap))
    assert (gap.topic, gap.requested) == ("short", 1)
    assert found[-1].offset == gap.first > 1


async def _first_kept(client: Client, name: str, at_least: int) -> bool:
    return any(topic.first >= at_least for topic in await client.topics() if topic.name == name)


async def test_a_topic_deleted_while_away_ends_the_subscription(client: Client, relay: FaultyRelay) -> None:
    """A resume that finds its topic gone ends the iteration with the notice; it does not try for ever."""
    async with Client(relay.url) as viewer, viewer.subscribe("orders", notices=True) as items:
        relay.port, port = 1, relay.port
        relay.cut()
        await client.delete_topic("orders")
        relay.port = port
        async with asyncio.timeout(20):
            found = [item async for item in items]
    assert found[-1] == TopicDeleted("orders")


async def test_a_pattern_resumes_each_topic_and_finds_new_ones(client: Client, relay: FaultyRelay) -> None:
    """After a cut a pattern goes on in each topic it knew, from the start in those made later, each record once."""
    await client.create_topic("eu.old")
    await client.create_topic("eu.gone")
    async with Client(relay.url) as viewer, viewer.subscribe("eu.*", notices=True) as items:
        await client.publish_many("eu.old", range(3))
        await client.create_topic("eu.later")
        await client.publish_many("eu.later", range(3))
        seen = await receive_events(items, 6)
        relay.port, port = 1, relay.port
        relay.cut()
        await client.publish_many("eu.old", range(3, 6))
        await client.publish_many("eu.later", range(3, 6))
        await client.create_topic("eu.away")
        await client.publish_many("eu.away", range(6))
        await client.delete_topic("eu.gone")
        relay.port = port
        notices = await receive_until(items, TopicDeleted)
        seen += await receive_events(items, 12)
        await client.publish("eu.away", 6)
        seen += await receive_events(items, 1)
    assert notices[-1] == TopicDeleted("eu.gone")
    by_topic: dict[str, list[int]] = {}
    for event in seen:
        by_topic.setdefault(event.topic, []).append(event.offset)
    assert by_topic == {"eu.old": list(range(6)), "eu.later": list(range(6)), "eu.away": list(range(7))}


async def test_a_restarted_server_is_found_with_its_new_token(serve: Serve, tmp_path: Path) -> None:
    """Without a URL, the server that comes back with another port and a token that was rotated is found by its log."""
    server = serve()
    server.create("orders")
    async with Client() as client, client.subscribe("orders") as events:
        await client.publish("orders", 1)
        await asyncio.to_thread(server.stop)
        TokenFile(tmp_path / "log.db.token").rotate()
        again = serve()
        assert again.token != server.token
        await client.publish("orders", 2)
        assert [event.payload for event in await receive(events, 2)] == [1, 2]


async def test_a_refused_resume_is_not_tried_for_ever(serve: Serve) -> None:
    """A token that was given and is not valid any more ends the subscription with Unauthorized."""
    server = serve(token="the-old-token-0123456789")
    server.create("orders")
    async with (
        FaultyRelay(server.port) as relay,
        Client(relay.url, "the-old-token-0123456789") as client,
        client.subscribe("orders") as events,
    ):
        await asyncio.to_thread(server.stop)
        relay.port = serve(token="the-new-token-0123456789").port
        with pytest.raises(Unauthorized):
            await receive(events, 1)


async def test_a_server_that_falls_silent_is_left(
    client: Client, relay: FaultyRelay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection on which the server neither speaks nor answers is given up, and a new one made."""
    monkeypatch.setattr(connection, "PING_AFTER_S", 0.1)
    async with Client(relay.url) as viewer, viewer.subscribe("orders", notices=True) as items:
        relay.drops_replies = True
        await client.publish("orders", 1)
        lost = (await receive(items, 1))[0]
        relay.drops_replies = False
        [event] = await receive_events(items, 1)
    assert isinstance(lost, Disconnected) and "did not respond" in lost.reason
    assert event.payload == 1


async def test_a_quiet_topic_is_no_reason_to_reconnect(
    client: Client, relay: FaultyRelay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that has nothing to say answers when it is asked, and the connection stays."""
    monkeypatch.setattr(connection, "PING_AFTER_S", 0.05)
    async with Client(relay.url) as viewer, viewer.subscribe("orders", notices=True) as items:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(items), 0.5)
        await client.publish("orders", 1)
        assert [item.payload for item in await receive(items, 1)] == [1]
    assert relay.connections == 1
