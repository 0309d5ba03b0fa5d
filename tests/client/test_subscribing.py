from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from himalia.client import Client, Event, SubscriptionReplaced, TopicCreated, TopicDeleted
from himalia.errors import BadFilter, BadRequest, ConnectionFailed, TopicNotFound, Unauthorized
from tests.client.receive import receive, receive_events
from tests.servers import RunningServer


async def test_an_event_has_everything_that_was_published(client: Client) -> None:
    """An event carries topic, offset, time, id, headers and the payload as it was published."""
    async with client.subscribe("orders") as events:
        published = await client.publish("orders", {"sku": "A-17"}, headers={"source": "shop"})
        [event] = await receive(events, 1)
    assert (event.topic, event.offset, event.ts, event.id) == (
        "orders",
        published.offset,
        published.ts,
        published.id,
    )
    assert event.payload == {"sku": "A-17"}
    assert event.headers["source"] == "shop"
    assert abs((datetime.now(UTC) - event.time).total_seconds()) < 60


async def test_last_n_comes_before_what_is_live(client: Client) -> None:
    """A subscriber that asks for the last n gets them first and then what is published, each once."""
    await client.publish_many("orders", range(10))
    async with client.subscribe("orders", last_n=3) as events:
        await client.publish("orders", 10)
        assert [event.payload for event in await receive(events, 4)] == [7, 8, 9, 10]


async def test_a_subscriber_begins_where_it_says(client: Client) -> None:
    """``from_`` begins at that offset, ``since`` at the first record of that time or later."""
    receipts = []
    await client.publish_many("orders", range(5), on_published=receipts.append)
    async with client.subscribe("orders", from_=3, epoch=receipts[0].epoch) as events:
        assert [event.offset for event in await receive(events, 2)] == [3, 4]
    async with client.subscribe("orders", since=receipts[0].ts) as events:
        assert [event.offset for event in await receive(events, 5)] == [0, 1, 2, 3, 4]


async def test_a_filter_lets_through_what_it_holds_for(client: Client) -> None:
    """Only records for which the expression holds are delivered, at their own offsets."""
    async with client.subscribe("orders", filter="message.payload.total > 100") as events:
        await client.publish_many("orders", [{"total": 50}, {"total": 150}, {"total": 99}, {"total": 101}])
        assert [event.offset for event in await receive(events, 2)] == [1, 3]


async def test_positions_go_on_in_another_subscription(client: Client) -> None:
    """What ``positions`` says after an event, given as ``from_``, begins right behind that event."""
    await client.publish_many("orders", range(6))
    async with client.subscribe("orders", from_=0) as events:
        await receive(events, 4)
        positions = events.positions
    async with client.subscribe("orders", from_=positions) as events:
        assert [event.offset for event in await receive(events, 2)] == [4, 5]
    async with client.subscribe("orders", from_=positions["orders"]) as events:
        assert [event.offset for event in await receive(events, 2)] == [4, 5]


async def test_positions_of_a_pattern_leave_out_no_new_topic(client: Client) -> None:
    """Resuming a pattern elsewhere includes topics made in between, from their first record."""
    await client.create_topic("eu.a")
    await client.publish("eu.a", 1)
    async with client.subscribe("eu.*", from_=0) as events:
        await receive(events, 1)
        positions = events.positions
    await client.create_topic("eu.b")
    await client.publish("eu.b", 2)
    await client.publish("eu.a", 3)
    async with client.subscribe("eu.*", from_=positions) as events:
        found = {(event.topic, event.offset): event.payload for event in await receive(events, 2)}
    assert found == {("eu.b", 0): 2, ("eu.a", 1): 3}


async def test_a_timeout_while_waiting_loses_nothing(client: Client) -> None:
    """Cancelling the wait for an event leaves the subscription as it was."""
    got, timeouts = [], 0
    async with client.subscribe("orders") as events, asyncio.timeout(20):
        publishing = asyncio.create_task(_publish_one_by_one(client, 100))
        while len(got) < 100:
            try:
                async with asyncio.timeout(0.001):
                    got.append((await anext(events)).payload)
            except TimeoutError:
                timeouts += 1
        await publishing
    assert got == list(range(100))
    assert timeouts > 0


async def _publish_one_by_one(client: Client, count: int) -> None:
    for number in range(count):
        await client.publish("orders", number)


async def test_overlapping_subscriptions_are_independent(client: Client) -> None:
    """Two subscriptions of one client that match the same topic each get every event once."""
    async with client.subscribe("orders") as one, client.subscribe(">") as other:
        await client.publish_many("orders", range(5))
        assert [event.payload for event in await receive(one, 5)] == list(range(5))
        assert [event.payload for event in await receive(other, 5)] == list(range(5))


async def test_a_pattern_follows_topics_made_later(client: Client) -> None:
    """A topic that is made while a matching pattern is subscribed is announced and followed from its start."""
    async with client.subscribe("eu.*", notices=True) as items:
        await client.create_topic("eu.a")
        await client.publish("eu.a", 1)
        created, event = await receive(items, 2)
    assert isinstance(created, TopicCreated) and created.topic == "eu.a"
    assert isinstance(event, Event) and event.payload == 1


async def test_a_deleted_topic_ends_its_subscription(client: Client) -> None:
    """After the topic is deleted iteration ends, with all events before and the notice delivered."""
    told = []
    async with client.subscribe("orders", on_notice=told.append) as events:
        await client.publish("orders", 1)
        await client.delete_topic("orders")
        async with asyncio.timeout(20):
            assert [event.payload async for event in events] == [1]
    assert told == [TopicDeleted("orders")]


async def test_a_deleted_topic_does_not_end_a_pattern(client: Client) -> None:
    """A pattern goes on with its other topics, and with the same name if it is made again."""
    async with client.subscribe(">", notices=True) as items:
        await client.delete_topic("orders")
        assert await receive(items, 1) == [TopicDeleted("orders")]
        await client.create_topic("orders")
        await client.publish("orders", "new")
        assert [event.payload for event in await receive_events(items, 1)] == ["new"]


async def test_replaced_by_the_same_client_id(client: Client) -> None:
    """Who loses its place to another subscription with the same client_id is told so, and does not fight back."""
    async with client.subscribe("orders", client_id="me") as older:
        async with client.subscribe("orders", client_id="me") as newer:
            with pytest.raises(SubscriptionReplaced, match="'me' has taken over 'orders'"):
                await receive(older, 1)
            await client.publish("orders", 1)
            assert [event.payload for event in await receive(newer, 1)] == [1]
        with pytest.raises(SubscriptionReplaced):
            await receive(older, 1)


async def test_what_cannot_be_subscribed_is_refused_on_entering(client: Client) -> None:
    """A topic that does not exist, a filter that does not compile, a bad pattern: the error of that name."""
    with pytest.raises(TopicNotFound, match="nowhere"):
        async with client.subscribe("nowhere"):
            pass
    with pytest.raises(BadFilter):
        async with client.subscribe("orders", filter="message.payload >"):
            pass
    with pytest.raises(BadRequest):
        client.subscribe("a..b")
    with pytest.raises(BadRequest):
        async with client.subscribe("orders", last_n=1, from_=1):
            pass


async def test_no_server_is_told_at_once(server: RunningServer) -> None:
    """A first connection that fails is not retried: the error says how to start a server."""
    url = server.url
    server.stop()
    async with Client(url) as client:
        with pytest.raises(ConnectionFailed, match="himalia serve"):
            async with client.subscribe("orders"):
                pass


async def test_a_wrong_token_is_refused(serve: Callable[..., RunningServer]) -> None:
    """A token that the server does not know raises Unauthorized, for WebSocket and REST."""
    server = serve()
    async with Client(server.url, "wrong") as client:
        with pytest.raises(Unauthorized):
            async with client.subscribe("orders"):
                pass
        with pytest.raises(Unauthorized):
            await client.topics()
        with pytest.raises(Unauthorized):
            await client.publish("orders", 1)


async def test_a_subscription_is_one_tasks_own(client: Client) -> None:
    """A second task that iterates the same subscription is told so; the first goes on."""
    async with client.subscribe("orders") as events:
        waiting = asyncio.create_task(receive(events, 1))
        await asyncio.sleep(0)
        with pytest.raises(BadRequest, match="another task iterates"):
            await anext(events)
        await client.publish("orders", 1)
        assert [event.payload for event in await waiting] == [1]
