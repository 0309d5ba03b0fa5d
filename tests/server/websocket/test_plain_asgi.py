"""The same conversation on any ASGI server: uvicorn with its own WebSocket class, without our quick way."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from himalia.server.app import create_app
from himalia.server.context import ServerContext
from himalia.server.websocket.asgi_transport import AsgiTransport
from himalia.settings import Settings
from tests.server.raw_clients import BINARY, RawWebSocket, frame, until
from tests.servers import DEADLINE_S, NO_TLS, ask, hear, hear_events, message, publish

NDJSON = {"Content-Type": "application/x-ndjson"}


class PlainServer:
    """The application on a plain uvicorn, in a thread."""

    def __init__(self, **settings: Any) -> None:
        self.context = ServerContext(Settings(**settings))
        self.token = self.context.token
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.url = f"http://127.0.0.1:{self.port}"
        self._loop: asyncio.AbstractEventLoop | None = None
        config = uvicorn.Config(
            create_app(context=self.context),
            ws="websockets-sansio",
            log_config=None,
            timeout_graceful_shutdown=1,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        until(lambda: self._server.started)

    def _run(self) -> None:
        async def main() -> None:
            self._loop = asyncio.get_running_loop()
            await self._server.serve(sockets=[self._listener])

        asyncio.run(main())

    def connect(self, **options: Any) -> connect:
        return connect(f"ws://127.0.0.1:{self.port}/ws", compression=None, max_size=None, **options)

    def http(self) -> httpx.Client:
        headers = {"X-API-Key": self.token} if self.token else {}
        return httpx.Client(base_url=self.url, timeout=DEADLINE_S, headers=headers, verify=NO_TLS)

    def create(self, *topics: str) -> None:
        with self.http() as http:
            for topic in topics:
                http.post("/topics", json={"name": topic}).raise_for_status()

    def on_loop(self, work: Callable[[], Any]) -> Any:
        async def call() -> Any:
            return work()

        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(call(), self._loop).result(DEADLINE_S)

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive(), "the server did not stop"


@pytest.fixture
def plain_with(tmp_path: Path) -> Iterator[Callable[..., PlainServer]]:
    servers: list[PlainServer] = []

    def start(**settings: Any) -> PlainServer:
        settings = {"auth": False, "log": f"sqlite://{tmp_path}/log.db", **settings}
        servers.append(PlainServer(**settings))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


@pytest.fixture(scope="module")
def plain_for_all(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlainServer]:
    server = PlainServer(auth=False, log=f"sqlite://{tmp_path_factory.mktemp('plain')}/log.db")
    yield server
    server.stop()


@pytest.fixture
def plain(plain_for_all: PlainServer) -> Iterator[PlainServer]:
    plain_for_all.create("orders")
    yield plain_for_all
    with plain_for_all.http() as http:
        http.delete("/topics/orders").raise_for_status()
        until(lambda: http.get("/health").json()["connections"] == 0)


async def heard_until(ws: ClientConnection, type: str) -> list[dict[str, Any]]:
    heard = [await hear(ws)]
    while heard[-1]["type"] != type:
        heard.append(await hear(ws))
    return heard


async def test_it_is_the_fallback_that_is_tested_here(plain: PlainServer) -> None:
    """Another server has no protocol object to offer, so the channel is the plain one."""
    async with plain.connect() as ws:
        await ask(ws, type="ping")
        kinds = plain.on_loop(lambda: [type(c.transport) for c in plain.context.connections])
        assert kinds == [AsgiTransport]


async def test_publishing_and_subscribing(plain: PlainServer) -> None:
    """Acknowledged, replayed and delivered as on the quick way."""
    async with plain.connect() as publisher, plain.connect() as viewer:
        assert await publish(publisher, "orders", 0, 1, 2) == [0, 1, 2]
        ack = await ask(viewer, type="subscribe", topic="orders", client_id="v", last_n=2)
        assert (ack["type"], ack["offset"]) == ("ack", 1)
        assert await publish(publisher, "orders", {"a": "ü"}, "x" * 200_000) == [3, 4]
        events = await hear_events(viewer, 4)
        assert [event["offset"] for event in events] == [1, 2, 3, 4]
        assert (
            events[2]["message"]["payload"] == {"a": "ü"} and len(events[3]["message"]["payload"]) == 200_000
        )
        assert (await ask(viewer, type="unsubscribe", topic="orders", client_id="v"))["type"] == "ack"


async def test_many_publishes_without_waiting_are_acknowledged_in_order(
    plain_with: Callable[..., PlainServer],
) -> None:
    """Reading pauses at the limits here as well, and goes on by itself."""
    server = plain_with(publishes_in_flight_max=1, in_flight_bytes_max=100)
    server.create("orders")
    async with server.connect() as ws:
        for i in range(1000):
            body = {"type": "publish", "topic": "orders", "message": message(i), "request_id": str(i)}
            await ws.send(json.dumps(body))
        answers = [await hear(ws) for _ in range(1000)]
    assert [answer["request_id"] for answer in answers] == [str(i) for i in range(1000)]
    assert [answer["offset"] for answer in answers] == list(range(1000))


async def test_bad_input_has_its_error_and_the_connection_lives_on(plain: PlainServer) -> None:
    """Malformed, binary, too large: told by name."""
    size = plain.context.frame_bytes_max
    async with plain.connect() as ws:
        for data, code in (
            ("nonsense", "BAD_REQUEST"),
            (b"binary", "BAD_REQUEST"),
            (json.dumps({"type": "ping", "x": "y" * size}), "MESSAGE_TOO_LARGE"),
            (json.dumps({"type": "subscribe", "topic": "no", "client_id": "v"}), "TOPIC_NOT_FOUND"),
        ):
            await ws.send(data)
            assert (await hear(ws))["error"]["code"] == code
        assert (await ask(ws, type="ping"))["type"] == "pong"


async def test_a_key_is_asked_for(plain_with: Callable[..., PlainServer]) -> None:
    """The handshake is refused with the error as JSON."""
    server = plain_with(auth=True, token="correct horse battery")
    with pytest.raises(InvalidStatus) as refused:
        await server.connect()
    assert refused.value.response.status_code == 401
    assert json.loads(refused.value.response.body or b"")["error"]["code"] == "UNAUTHORIZED"
    async with server.connect(additional_headers={"X-API-Key": server.token}) as ws:
        assert (await ask(ws, type="ping"))["type"] == "pong"


def flood(server: PlainServer, count: int) -> None:
    with server.http() as http:
        line = json.dumps({"payload": "x" * 10_000}) + "\n"
        http.post("/topics/orders/messages", content=line * count, headers=NDJSON).raise_for_status()


def slow(server: PlainServer, **fields: Any) -> RawWebSocket:
    """A subscriber that does not read yet."""
    raw = RawWebSocket(server, receive_bytes=4096)  # type: ignore[arg-type]
    assert raw.ask(type="subscribe", topic="orders", client_id="v", **fields)["type"] == "ack"
    return raw


def lag(server: PlainServer) -> int:
    with server.http() as http:
        return int(http.get("/stats").json()["topics"]["orders"]["lag"])


def test_a_slow_subscriber_is_told_what_it_missed(plain: PlainServer) -> None:
    """Events and notices together have no hole."""
    with slow(plain, policy="drop_oldest", limit=10) as raw:
        while lag(plain) <= 20:
            flood(plain, 500)
        with plain.http() as http:
            end = http.get("/topics").json()["topics"][0]["end"]
        at = dropped = 0
        while at < end:
            heard = raw.hear()
            if heard["type"] == "info":
                assert (heard["msg"], heard["first"]) == ("dropped", at)
                dropped += heard["count"]
                at = heard["last"] + 1
            else:
                assert heard["offset"] == at
                at += 1
        assert dropped > 0


def test_a_slow_subscriber_under_lossless_gets_everything_from_a_bounded_buffer(plain: PlainServer) -> None:
    """What does not fit stays in the log."""
    with slow(plain, policy="lossless") as raw:
        count = 0
        while lag(plain) <= 20:
            flood(plain, 500)
            count += 500
        with plain.http() as http:
            assert http.get("/stats").json()["queue_bytes"] < 1_000_000
        assert [raw.hear()["offset"] for _ in range(count)] == list(range(count))


def test_a_slow_subscriber_under_disconnect_is_told_and_closed(plain: PlainServer) -> None:
    """SLOW_CONSUMER behind the last event, then a close with 1008."""
    with slow(plain, policy="disconnect", limit=10) as raw:
        while plain.on_loop(lambda: any(not c.transport.closed for c in plain.context.connections)):
            flood(plain, 500)
        offsets = []
        while (heard := raw.hear())["type"] == "event":
            offsets.append(heard["offset"])
        assert offsets == list(range(len(offsets)))
        assert heard["error"]["code"] == "SLOW_CONSUMER"
        assert f"from={len(offsets)}" in heard["error"]["message"]
        assert raw.close_code() == 1008


def test_answers_that_nobody_reads_do_not_pile_up(plain: PlainServer) -> None:
    """A client that only sends is read no faster than it reads."""
    ping = frame(json.dumps({"type": "ping", "request_id": "x" * 200}).encode()) * 100
    with RawWebSocket(plain, receive_bytes=4096) as raw:  # type: ignore[arg-type]
        raw.socket.settimeout(1.0)
        sent = 0
        try:
            while sent < 50_000_000:
                sent += raw.socket.send(ping)
        except TimeoutError:
            pass
        assert sent < 50_000_000
        unsent = plain.on_loop(lambda: max(c.transport.unsent_bytes for c in plain.context.connections))
        assert unsent < 1_000_000


@pytest.mark.parametrize("how", ["close", "reset", "half a frame"])
def test_a_client_that_goes_away_leaves_no_ghost(plain: PlainServer, how: str) -> None:
    """Subscriptions end with their connection."""
    with RawWebSocket(plain) as raw:  # type: ignore[arg-type]
        raw.ask(type="subscribe", topic="orders", client_id="v")
        assert plain.on_loop(lambda: plain.context.manager.subscriber_count) == 1
        if how == "half a frame":
            raw.send(frame(b'{"type":"ping"}', BINARY)[:5])
        if how == "reset":
            raw.reset()
    until(lambda: plain.on_loop(lambda: plain.context.manager.subscriber_count) == 0)
    assert plain.on_loop(lambda: plain.context.connection_count) == 0


async def test_the_lifespan_opens_and_closes_the_log(plain_with: Callable[..., PlainServer]) -> None:
    """The application owns its context: what was acknowledged is there when it runs again."""
    first = plain_with()
    first.create("orders")
    async with first.connect() as ws:
        await publish(ws, "orders", 1)
        await asyncio.to_thread(first.stop)
        with pytest.raises(ConnectionClosed):
            await hear(ws)
    assert not first.context.is_open
    second = plain_with()
    async with second.connect() as ws:
        await ask(ws, type="subscribe", topic="orders", client_id="v", **{"from": 0})
        assert (await heard_until(ws, "event"))[-1]["message"]["payload"] == 1
