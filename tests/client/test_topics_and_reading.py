from __future__ import annotations

import asyncio

import pytest

from himalia.client import Client
from himalia.errors import BadRequest, ConnectionFailed, EpochChanged, TopicExists, TopicNotFound
from himalia.record import Retention


async def test_topics_are_made_listed_and_deleted(client: Client) -> None:
    """A topic is there from when it is made until it is deleted, with the retention it was made with."""
    assert await client.create_topic("short", Retention(age_s=60.0, count=5))
    found = {topic.name: topic for topic in await client.topics()}
    assert set(found) == {"orders", "short"}
    assert found["short"].retention == Retention(age_s=60.0, count=5)
    await client.delete_topic("short")
    assert [topic.name for topic in await client.topics()] == ["orders"]


async def test_a_topic_that_exists(client: Client) -> None:
    """Making it again raises TopicExists, or with exist_ok answers false."""
    with pytest.raises(TopicExists):
        await client.create_topic("orders")
    assert await client.create_topic("orders", exist_ok=True) is False


async def test_bad_names_and_missing_topics(client: Client) -> None:
    """Each failure has its class."""
    with pytest.raises(BadRequest):
        await client.create_topic("a b")
    with pytest.raises(TopicNotFound):
        await client.delete_topic("nowhere")
    with pytest.raises(TopicNotFound):
        [event async for event in client.read("nowhere")]


async def test_stats_and_health(client: Client) -> None:
    """What the server counts arrives as typed values."""
    await client.publish_many("orders", range(3))
    async with client.subscribe("orders", client_id="me"):
        stats, health = await client.stats(), await client.health()
    assert (stats.topics["orders"].messages, stats.published) == (3, 3)
    assert [one.client_id for one in stats.subscribers] == ["me"]
    assert (health.status, health.topics, health.protocol) == ("ok", 1, 1)


async def test_reading_what_is_stored(client: Client) -> None:
    """``read`` gives the range asked for and ends at the end."""
    await client.publish_many("orders", range(2500))
    assert [event.offset async for event in client.read("orders")] == list(range(2500))
    assert [event.offset async for event in client.read("orders", from_=2498)] == [2498, 2499]
    assert [event.offset async for event in client.read("orders", last=3)] == [2497, 2498, 2499]
    assert [event.offset async for event in client.read("orders", from_=10, limit=2)] == [10, 11]
    assert [event.offset async for event in client.read("orders", since="2100-01-01")] == []
    with pytest.raises(EpochChanged):
        [event async for event in client.read("orders", epoch="another")]


async def test_line_breaks_of_other_kinds_do_not_break_lines(client: Client) -> None:
    """Payloads with U+2028, U+0085, form feeds and escaped line breaks are read as they were published."""
    payloads = [
        "a\u2028b\u2029c\u0085d",
        "e\x0bf\x0cg\x1ch",
        "i\nj\r\nk",
        "",
        "\ud83d\ude00".encode("utf-16", "surrogatepass").decode("utf-16"),
    ]
    await client.publish_many("orders", payloads)
    assert [event.payload async for event in client.read("orders")] == payloads
    async with client.subscribe("orders", from_=0) as events:
        assert [(await anext(events)).payload for _ in payloads] == payloads


async def test_reading_may_be_broken_off(client: Client) -> None:
    """Leaving a read in the middle leaves the client usable."""
    await client.publish_many("orders", range(2000))
    async for event in client.read("orders"):
        if event.offset == 5:
            break
    assert [event.offset async for event in client.read("orders", last=1)] == [1999]


async def test_another_kind_of_server_is_recognised() -> None:
    """A server that is not Himalia gives an error that says so, over REST and WebSocket."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\nConnection: close\r\n\r\nnope")
        await writer.drain()
        writer.close()

    other = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with other, Client(f"http://127.0.0.1:{other.sockets[0].getsockname()[1]}") as client:
        with pytest.raises(ConnectionFailed, match="not a Himalia server"):
            await client.topics()
        with pytest.raises(ConnectionFailed, match="not a Himalia server"):
            async with client.subscribe("orders"):
                pass


async def test_a_server_that_hangs_up_is_an_error_of_ours() -> None:
    """A connection that is closed without an answer is ConnectionFailed, not some library's exception."""

    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    other = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    async with other, Client(f"http://127.0.0.1:{other.sockets[0].getsockname()[1]}") as client:
        with pytest.raises(ConnectionFailed):
            await client.topics()
        with pytest.raises(ConnectionFailed):
            async with client.subscribe("orders"):
                pass
        with pytest.raises(ConnectionFailed):
            await client.publish("orders", 1)
