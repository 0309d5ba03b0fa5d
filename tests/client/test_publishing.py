from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from himalia.client import Client, Outgoing, Published
from himalia.client.publisher import IN_FLIGHT_MAX
from himalia.errors import (
    BadRequest,
    ConnectionFailed,
    Forbidden,
    MessageTooLarge,
    RateLimited,
    TopicNotFound,
)
from tests.client.faulty_relay import FaultyRelay
from tests.client.receive import receive_events, until
from tests.servers import RunningServer


async def test_a_publish_says_where_it_was_stored(client: Client) -> None:
    """The receipt has the topic, its epoch, the offset, the time and the id, which is made if not given."""
    first, second = await client.publish("orders", 1), await client.publish("orders", None)
    [topic] = await client.topics()
    assert (first.topic, first.offset, second.offset) == ("orders", 0, 1)
    assert first.epoch == topic.epoch
    assert uuid.UUID(first.id) != uuid.UUID(second.id)
    assert [(event.id, event.ts, event.payload) async for event in client.read("orders")] == [
        (first.id, first.ts, 1),
        (second.id, second.ts, None),
    ]


async def test_the_same_id_is_stored_once(client: Client) -> None:
    """A message published again with its id gets the offset it has, and there is one record."""
    id = str(uuid.uuid4())
    first = await client.publish("orders", 1, id=id)
    await client.publish("orders", 2)
    assert (await client.publish("orders", 1, id=id)).offset == first.offset
    assert [event.payload async for event in client.read("orders")] == [1, 2]


async def test_a_lost_acknowledgement_does_not_store_twice(client: Client, relay: FaultyRelay) -> None:
    """When the message was stored and its ack was lost, the client publishes again, and there is one record."""
    async with Client(relay.url) as publisher:
        await publisher.publish("orders", "before")
        relay.drops_replies = True
        publishing = asyncio.create_task(publisher.publish("orders", "once"))
        await relay.lost.wait()
        relay.drops_replies = False
        relay.cut()
        assert (await publishing).offset == 1
    assert [event.payload async for event in client.read("orders")] == ["before", "once"]


async def test_many_lost_acknowledgements_keep_the_order(client: Client, relay: FaultyRelay) -> None:
    """Through any number of broken connections, what is published in order is stored in order, each once."""
    async with Client(relay.url) as publisher:
        receipts: list[Published] = []
        publishing = asyncio.create_task(
            publisher.publish_many("orders", range(3000), on_published=receipts.append)
        )
        for part in range(1, 5):
            await until(lambda part=part: len(receipts) >= 500 * part or publishing.done())
            relay.cut()
        assert await publishing == 3000
    assert [receipt.offset for receipt in receipts] == list(range(3000))
    assert [event.payload async for event in client.read("orders")] == list(range(3000))
    assert relay.connections > 1


async def test_a_publish_waits_for_a_server_that_comes_back(serve: Callable[..., RunningServer]) -> None:
    """A publish while the server is down is stored when it is up again, within its time."""
    server = serve()
    server.create("orders")
    async with Client() as client:
        await client.publish("orders", 1)
        await asyncio.to_thread(server.stop)
        publishing = asyncio.create_task(client.publish("orders", 2))
        await asyncio.sleep(0)
        serve()
        assert (await publishing).offset == 1


async def test_no_acknowledgement_in_time_is_an_error_that_says_what_to_do(
    client: Client, relay: FaultyRelay
) -> None:
    """Who gives up waiting is told that the message may be stored, and its id, with which a repeat is safe."""
    async with Client(relay.url) as publisher:
        await publisher.publish("orders", 1)
        relay.drops_replies = True
        with pytest.raises(ConnectionFailed, match="same id") as caught:
            await publisher.publish("orders", 2, timeout_s=0.2)
    id = caught.value.data["id"]
    assert (await client.publish("orders", 2, id=id)).offset == 1
    assert [event.payload async for event in client.read("orders")] == [1, 2]


async def test_the_first_connection_is_not_retried(server: RunningServer) -> None:
    """A publish to a server that is not there fails at once, however long its time."""
    url = server.url
    server.stop()
    async with Client(url) as client:
        with pytest.raises(ConnectionFailed, match="himalia serve"):
            await asyncio.wait_for(client.publish("orders", 1, timeout_s=3600), 20)


@pytest.mark.parametrize(
    ("topic", "payload", "id", "error"),
    [
        ("nowhere", 1, None, TopicNotFound),
        ("kernels.k1", 1, None, Forbidden),
        ("orders", 1, "not-a-uuid", BadRequest),
        ("orders", object(), None, BadRequest),
        ("a..b", 1, None, BadRequest),
        ("orders", "x" * 1_048_576, None, MessageTooLarge),
        ("orders", "x" * 2_000_000, None, MessageTooLarge),
    ],
)
async def test_a_refused_publish_raises_the_error_of_its_code(
    client: Client, topic: str, payload: object, id: str | None, error: type[Exception]
) -> None:
    """What the server refuses for good is not retried; the exception is the one named after the code."""
    with pytest.raises(error):
        await asyncio.wait_for(client.publish(topic, payload, id=id, timeout_s=3600), 20)
    assert (await client.publish("orders", "next")).offset == 0


async def test_one_message_too_large_harms_no_other(client: Client) -> None:
    """Of many publishes under way, those that are too large are refused, and all others stored."""
    sizes = [10, 3_000_000, 20, 500_000, 2_000_000, 30]
    outcomes = await asyncio.gather(
        *(client.publish("orders", "x" * size) for size in sizes), return_exceptions=True
    )
    refused = [
        size for size, outcome in zip(sizes, outcomes, strict=True) if isinstance(outcome, MessageTooLarge)
    ]
    assert refused == [3_000_000, 2_000_000]
    assert [len(event.payload) async for event in client.read("orders")] == [10, 20, 500_000, 30]


async def test_a_rate_limit_slows_down_and_loses_nothing(serve: Callable[..., RunningServer]) -> None:
    """Refusals that pass, such as RATE_LIMITED, are retried; each message is stored once."""
    server = serve(auth=False, publish_rate_max=100)
    server.create("orders")
    async with Client(server.url) as client:
        assert await client.publish_many("orders", range(150)) == 150
        assert sorted([event.payload async for event in client.read("orders")]) == list(range(150))


async def test_a_refusal_that_does_not_pass_in_time_is_raised(serve: Callable[..., RunningServer]) -> None:
    """When time is up, the error is the reason why the server did not take the message."""
    server = serve(auth=False, publish_rate_max=1)
    server.create("orders")
    async with Client(server.url) as client:
        await client.publish("orders", 1)
        with pytest.raises(RateLimited):
            await client.publish("orders", 2, timeout_s=0.3)


async def test_concurrent_publishes_share_a_connection(client: Client, server: RunningServer) -> None:
    """A thousand publishes at once go over one connection and are stored in the order of the calls."""
    receipts = await asyncio.gather(*(client.publish("orders", number) for number in range(1000)))
    assert [receipt.offset for receipt in receipts] == list(range(1000))
    assert (await client.stats()).connections == 1


async def test_closing_tells_whoever_still_waits(client: Client, relay: FaultyRelay) -> None:
    """A publish that is under way when its client is closed fails; it does not hang."""
    publisher = Client(relay.url)
    await publisher.publish("orders", 1)
    relay.drops_replies = True
    publishing = asyncio.create_task(publisher.publish("orders", 2))
    await relay.lost.wait()
    await publisher.close()
    with pytest.raises(ConnectionFailed, match="closed"):
        await publishing


# Many


async def test_many_are_stored_in_order_with_their_ids_and_headers(client: Client) -> None:
    """Payloads and whole messages may be mixed; receipts come in order."""
    id = str(uuid.uuid4())
    receipts: list[Published] = []
    items = [1, Outgoing(2, id=id, headers={"a": "b"}), None]
    assert await client.publish_many("orders", items, on_published=receipts.append) == 3
    events = [event async for event in client.read("orders")]
    assert [event.payload for event in events] == [1, 2, None]
    assert (events[1].id, events[1].headers["a"]) == (id, "b")
    assert [receipt.id for receipt in receipts] == [event.id for event in events]


async def test_an_error_of_the_source_comes_after_what_it_gave(client: Client) -> None:
    """When the source fails, everything before is stored, and then its own exception is raised."""

    def source() -> Iterator[int]:
        yield from range(5)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await client.publish_many("orders", source())
    assert [event.payload async for event in client.read("orders")] == [0, 1, 2, 3, 4]


async def test_a_refusal_among_many_says_which(client: Client) -> None:
    """The first message that is refused is named by its index, and the source is not asked for ever more."""
    asked = 0

    async def source() -> AsyncIterator[object]:
        nonlocal asked
        while True:
            asked += 1
            yield "x" * 2_000_000 if asked == 4 else asked
            await asyncio.sleep(0)

    with pytest.raises(MessageTooLarge) as caught:
        await asyncio.wait_for(client.publish_many("orders", source()), 20)
    assert caught.value.data["index"] == 3


async def test_an_endless_source_is_not_read_ahead_without_bound(client: Client, relay: FaultyRelay) -> None:
    """Of a source that is quicker than the server no more than a bounded number is under way."""
    async with Client(relay.url) as publisher:
        await publisher.publish("orders", -1)
        relay.drops_replies = True
        asked = 0

        def source() -> Iterator[int]:
            nonlocal asked
            while asked < 100_000:
                asked += 1
                yield asked

        publishing = asyncio.create_task(publisher.publish_many("orders", source()))
        await relay.lost.wait()
        await until(lambda: asked >= IN_FLIGHT_MAX)
        await asyncio.sleep(0.05)
        assert asked <= IN_FLIGHT_MAX + 2
        publishing.cancel()


async def test_a_receipt_does_not_wait_for_the_next_message(client: Client) -> None:
    """From a source that pauses, each message is stored and told while the source waits."""
    told: asyncio.Queue[Published] = asyncio.Queue()
    go_on: asyncio.Queue[int] = asyncio.Queue()

    async def source() -> AsyncIterator[int]:
        while (number := await go_on.get()) >= 0:
            yield number

    publishing = asyncio.create_task(client.publish_many("orders", source(), on_published=told.put_nowait))
    for number in range(3):
        go_on.put_nowait(number)
        assert (await asyncio.wait_for(told.get(), 20)).offset == number
    go_on.put_nowait(-1)
    assert await publishing == 3


async def test_a_cancelled_bulk_leaves_the_client_usable(client: Client) -> None:
    """After publish_many was cancelled in the middle, the client publishes on."""
    publishing = asyncio.create_task(client.publish_many("orders", ({"n": n} for n in range(50_000))))
    async with client.subscribe("orders") as events:
        await receive_events(events, 1)
        publishing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await publishing
    receipt = await client.publish("orders", "after")
    [event] = [event async for event in client.read("orders", from_=receipt.offset, limit=1)]
    assert event.payload == "after"
