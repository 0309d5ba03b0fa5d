from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from himalia.client import Client, Dropped, Event
from himalia.errors import SlowConsumer
from tests.client.receive import receive_events, until
from tests.servers import DEADLINE_S, RunningServer

BIG = "x" * 100_000


async def _flood(client: Client, until_true) -> int:
    """Publish until the server is known to have given up on the slow one; returns how many."""
    count = 0
    while not await until_true():
        count += await client.publish_many("orders", [BIG] * 100)
        assert count < 10_000
    return count


async def test_what_a_slow_reader_missed_is_said_exactly(client: Client) -> None:
    """Under drop_oldest, events and Dropped notices together cover every offset once, in order."""

    async def dropped() -> bool:
        return (await client.stats()).topics["orders"].lag > 200

    async with client.subscribe("orders", limit=5, notices=True) as items:
        count = await _flood(client, dropped)
        at, losses = 0, 0
        async with asyncio.timeout(DEADLINE_S):
            while at < count:
                item = await anext(items)
                if isinstance(item, Dropped):
                    assert item.first == at and item.count == item.last - item.first + 1
                    at = item.last + 1
                    losses += 1
                elif isinstance(item, Event):
                    assert item.offset == at
                    at += 1
    assert losses >= 1


async def test_a_loss_that_nobody_asked_about_is_logged(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    """Without notices and without on_notice, dropped records are at least a warning in the log."""

    async def dropped() -> bool:
        return (await client.stats()).topics["orders"].lag > 200

    async with client.subscribe("orders", limit=5) as events:
        count = await _flood(client, dropped)
        async with asyncio.timeout(DEADLINE_S):
            while (await anext(events)).offset < count - 1:
                pass
    assert any("Dropped(topic='orders'" in record.message for record in caplog.records)


async def test_back_pressure_reaches_the_server(client: Client, server: RunningServer) -> None:
    """An application that does not read makes the client stop reading; lossless, it gets everything all the same."""

    async def lagging() -> bool:
        return (await client.stats()).topics["orders"].lag > 100

    async with client.subscribe("orders", policy="lossless") as events:
        count = await _flood(client, lagging)
        assert [event.offset for event in await receive_events(events, count)] == list(range(count))


async def test_a_slow_subscription_does_not_hold_up_another(client: Client) -> None:
    """While one subscription of a client is not read at all, another one gets everything."""

    async def lagging() -> bool:
        return (await client.stats()).topics["orders"].lag > 100

    async with (
        client.subscribe("orders", policy="lossless"),
        client.subscribe("orders", policy="lossless") as quick,
    ):
        reading = asyncio.create_task(_read_on(quick))
        count = await _flood(client, lagging)
        await until(lambda: quick.positions["orders"].offset == count)
        reading.cancel()


async def _read_slowly(events, offsets: list[int]) -> None:
    async for event in events:
        offsets.append(event.offset)
        await asyncio.sleep(0.01)


async def _read_on(events) -> None:
    async for _ in events:
        pass


async def test_a_slow_reader_that_wants_to_be_cut_off_is(client: Client) -> None:
    """Under the policy disconnect, iteration raises SlowConsumer; positions say where to go on."""
    async with client.subscribe("orders", policy="disconnect", limit=5) as events:
        publishing = asyncio.create_task(client.publish_many("orders", [BIG] * 400))
        offsets: list[int] = []
        with pytest.raises(SlowConsumer, match="resume with from="):
            await asyncio.wait_for(_read_slowly(events, offsets), DEADLINE_S)
        positions, seen = events.positions, len(offsets)
        assert offsets == list(range(seen))
        await publishing
    async with client.subscribe("orders", from_=positions) as events:
        rest = await receive_events(events, 400 - seen)
    assert [event.offset for event in rest] == list(range(seen, 400))


async def test_an_application_that_slept_gets_everything(serve: Callable[..., RunningServer]) -> None:
    """Who reads nothing for so long that the server takes it for dead goes on where it was, and misses nothing."""
    server = serve(auth=False, heartbeat_s=0.1, heartbeat_timeout_s=0.2, stall_timeout_s=0.2)
    server.create("orders")

    async def let_go() -> bool:
        return not (await client.stats()).subscribers

    async with Client(server.url) as client, client.subscribe("orders", policy="lossless") as events:
        count = await _flood(client, let_go)
        assert [event.offset for event in await receive_events(events, count)] == list(range(count))
