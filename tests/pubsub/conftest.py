"""A broker on each kind of log, and an outlet whose transport the test controls."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from himalia.errors import HimaliaError
from himalia.log import open_log
from himalia.log.api import Appended, Batch
from himalia.protocol import text_payloads
from himalia.pubsub import Outlet, PubSubManager, Subscriber, SubscriptionOptions
from himalia.pubsub.filters import compile_filter
from himalia.pubsub.subscription import Start, SubscribeResult
from himalia.record import Draft, Retention
from himalia.server.codecs import WEBSOCKET
from himalia.settings import DeliverySettings
from tests.log.backends import log_options

DEADLINE_S = 60.0


class Viewer(Outlet):
    """A transport that takes everything at once, or nothing while ``full``."""

    __slots__ = ("_news", "ended", "messages", "room", "waiting", "writes")

    def __init__(self, room: int | None = None) -> None:
        super().__init__(WEBSOCKET)
        self.messages: list[dict[str, Any]] = []
        self.writes: list[int] = []
        self.ended: HimaliaError | None = None
        self.waiting = b""
        # Bytes that the transport holds before it is full; None for any number, taken at once.
        self.room = room
        self._news = asyncio.Event()

    @property
    def unsent_bytes(self) -> int:
        return len(self.waiting)

    def write(self, data: bytes) -> None:
        self.writes.append(len(data))
        if self.room is None:
            self._take(data)
            return
        self.waiting += data
        self.paused = len(self.waiting) >= self.room

    def close(self, error: HimaliaError) -> None:
        self.closed = True
        self.ended = error
        self._news.set()

    def read(self) -> None:
        """The peer reads everything that waits for it."""
        data, self.waiting = self.waiting, b""
        self._take(data)
        if self.paused:
            self.resume()

    def _take(self, data: bytes) -> None:
        self.messages += [json.loads(payload) for payload in text_payloads(data)]
        self._news.set()

    @property
    def unread(self) -> list[dict[str, Any]]:
        """What the transport holds for a peer that has not read it."""
        return [json.loads(payload) for payload in text_payloads(self.waiting)]

    @property
    def events(self) -> list[dict[str, Any]]:
        return [message for message in self.messages if message["type"] == "event"]

    @property
    def offsets(self) -> list[int]:
        return [event["offset"] for event in self.events]

    def notices(self, msg: str) -> list[dict[str, Any]]:
        return [message for message in self.messages if message.get("msg") == msg]

    @property
    def errors(self) -> list[dict[str, Any]]:
        return [message for message in self.messages if message["type"] == "error"]

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait until something holds that can only change when a message comes."""
        async with asyncio.timeout(DEADLINE_S):
            while not condition():
                self._news.clear()
                await self._news.wait()


class Room:
    """A broker under test."""

    def __init__(self, manager: PubSubManager) -> None:
        self.manager = manager

    async def create(self, *topics: str, **retention: Any) -> None:
        for topic in topics:
            await self.manager.create_topic(topic, Retention(**retention) if retention else None)

    def send(self, topic: str, *payloads: Any) -> asyncio.Future[Appended]:
        drafts = [Draft(str(uuid.uuid4()), json.dumps(payload).encode(), b"{}") for payload in payloads]
        return self.manager.publish(Batch(topic, drafts))

    async def publish(self, topic: str, *payloads: Any) -> Appended:
        return await self.send(topic, *payloads)

    async def subscribe(
        self,
        pattern: str,
        viewer: Viewer,
        start: Start = Start(),
        filter: str | None = None,
        client_id: str = "viewer",
        **options: Any,
    ) -> SubscribeResult:
        compiled = None if filter is None else compile_filter(filter)
        owner = options.pop("owner", "")
        chosen = SubscriptionOptions(start=start, filter=compiled, **options)
        subscriber = Subscriber(pattern, client_id, viewer, owner=owner, options=chosen)
        return await self.manager.subscribe(subscriber)

    async def settled(self) -> None:
        """Wait until every mark has been served, without waiting for time."""
        marker = Viewer()
        name = f"settled-{uuid.uuid4()}"
        await self.create(name)
        await self.subscribe(name, marker, client_id=name)
        await self.publish(name, 0)
        await marker.until(lambda: marker.events)
        await asyncio.sleep(0)
        self.manager.disconnect(marker)


@pytest.fixture(params=["memory", "sqlite"])
async def room(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Room]:
    async for made in make_room(request.param, tmp_path):
        yield made


async def make_room(
    kind: str, tmp_path: Path, limits: DeliverySettings = DeliverySettings()
) -> AsyncIterator[Room]:
    url = "memory://" if kind == "memory" else f"sqlite://{tmp_path}/log.db"
    # The memory log keeps 100 records a topic by default, fewer than these tests publish.
    log = open_log(url, log_options(Retention(count=1_000_000)))
    await log.open()
    manager = PubSubManager(log, limits)
    await manager.start()
    try:
        yield Room(manager)
    finally:
        await manager.stop()
        await log.close()
