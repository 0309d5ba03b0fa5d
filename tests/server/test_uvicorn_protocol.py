"""What our WebSocket class takes from uvicorn's inside. These fail when uvicorn moves it."""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
import textwrap
from collections.abc import Callable, Iterator
from importlib.metadata import requires, version
from typing import Any

import pytest
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState
from websockets.server import ServerProtocol

from himalia.server import uvicorn_protocol
from himalia.server.uvicorn_protocol import (
    EXTENSION,
    DirectChannel,
    HttpProtocol,
    WebSocketProtocol,
    http_protocol,
)
from tests.server.raw import BINARY, CONT, PING, TEXT, RawWebSocket, Wire, frame, handshake, until
from tests.serving import RunningServer

PAIRS: list[tuple[type, type]] = [
    (WebSocketProtocol, WebSocketsSansIOProtocol),
    (HttpProtocol, HttpToolsProtocol),
]


@pytest.mark.parametrize(("package", "pinned"), [("uvicorn", "0.54"), ("websockets", "17")])
def test_the_version_is_pinned_to_the_one_that_was_read(package: str, pinned: str) -> None:
    """The package says which version it was written for, and that one is installed."""
    assert f"{package}=={pinned}.*" in [
        entry.partition(";")[0].strip() for entry in requires("himalia") or []
    ]
    assert version(package).startswith(f"{pinned}.")


@pytest.mark.parametrize(("ours", "theirs"), PAIRS, ids=lambda cls: cls.__name__)
def test_every_method_that_is_replaced_is_there_with_the_same_arguments(ours: type, theirs: type) -> None:
    """A method that uvicorn no longer calls, or calls otherwise, would be replaced in vain."""
    replaced = {
        "WebSocketProtocol": {
            "run_asgi",
            "data_received",
            "send_receive_event_to_app",
            "pause_writing",
            "resume_writing",
            "connection_lost",
        },
        "HttpProtocol": {
            "connection_made",
            "connection_lost",
            "data_received",
            "on_message_begin",
            "on_headers_complete",
        },
    }[ours.__name__]
    functions = {name for name, member in vars(ours).items() if inspect.isfunction(member)}
    assert {name for name in functions if hasattr(theirs, name)} == replaced
    for name in replaced:
        mine, other = (inspect.signature(getattr(cls, name)).parameters for cls in (ours, theirs))
        assert list(mine) == list(other), name


class Recorder:
    """A transport that keeps what is written to it."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.closing = False
        self.reading = True

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def close(self) -> None:
        self.closing = True

    def is_closing(self) -> bool:
        return self.closing

    def get_extra_info(self, name: str) -> Any:
        return None

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def set_write_buffer_limits(self, high: int) -> None: ...

    def set_protocol(self, protocol: Any) -> None: ...


async def accepting(scope: Any, receive: Any, send: Any) -> None:
    assert (await receive())["type"] == "websocket.connect"
    await send({"type": "websocket.accept"})
    while (await receive())["type"] != "websocket.disconnect":
        pass


def config_of(app: Any = accepting) -> uvicorn.Config:
    config = uvicorn.Config(app, ws=WebSocketProtocol, lifespan="off", log_config=None, ws_max_size=1000)
    config.load()
    return config


def attributes_used(cls: type, names: tuple[str, ...] = ("self",)) -> set[str]:
    tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in names
    }


async def test_every_attribute_that_is_used_is_there() -> None:
    """Everything that our classes read of uvicorn's exists on its objects from the start, or from the handshake."""
    config = config_of()
    from_the_handshake = {"scope", "request", "response"}
    protocol = WebSocketProtocol(config, ServerState(), {})
    used = attributes_used(WebSocketProtocol) | attributes_used(DirectChannel, ("protocol",))
    assert {name for name in used - from_the_handshake if not hasattr(protocol, name)} == set()
    http = http_protocol(1.0)(config, ServerState(), {})
    assert {name for name in attributes_used(HttpProtocol) if not hasattr(http, name)} == set()
    source = inspect.getsource(WebSocketsSansIOProtocol.handle_connect)
    assert all(f"self.{name}" in source for name in from_the_handshake)


def test_every_method_of_websockets_that_is_used_is_there() -> None:
    """The parser below has the calls and the attributes that we rely on."""
    connection = ServerProtocol()
    source = inspect.getsource(uvicorn_protocol)
    for name in ("handshake_exc", "data_to_send", "send_ping", "send_close"):
        assert f"self.conn.{name}" in source and hasattr(connection, name)


HANDSHAKE = (
    b"GET /ws HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


async def test_uvicorn_offers_its_scope_before_the_application_runs() -> None:
    """``run_asgi`` is where the protocol puts itself into ``scope["extensions"]``: it has to come after scope."""
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["extensions"])

    protocol = WebSocketProtocol(config_of(app), ServerState(), {})
    protocol.connection_made(Recorder())  # type: ignore[arg-type]
    protocol.data_received(HANDSHAKE)
    await next(iter(protocol.tasks))
    assert seen[0][EXTENSION] is protocol
    assert "websocket.http.response" in seen[0]


async def test_uvicorn_writes_whole_frames() -> None:
    """Every write of uvicorn's ends between two frames, so our own writes between them cannot split one."""
    transport = Recorder()
    protocol = WebSocketsSansIOProtocol(config_of(), ServerState(), {})
    protocol.connection_made(transport)  # type: ignore[arg-type]
    protocol.data_received(HANDSHAKE)
    task = next(iter(protocol.tasks))
    for _ in range(5):
        await asyncio.sleep(0)
    assert protocol.handshake_complete
    transport.written.clear()
    protocol.data_received(frame(b"are you there?", PING))
    await protocol.send({"type": "websocket.send", "text": "hello"})
    await protocol.send({"type": "websocket.close", "code": 1000, "reason": "bye"})
    for data in transport.written:
        assert len(data) == 2 + data[1]
    protocol.connection_lost(None)
    await task


async def test_the_parser_gives_fragments_and_binary_messages_to_the_method_that_is_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """``send_receive_event_to_app`` gets whole messages in ``frames`` and their kind beside it."""
    given: list[tuple[str, bytes]] = []

    def take(self: Any) -> None:
        given.append((self.curr_msg_data_type, b"".join(self.frames)))
        self.frames = []

    monkeypatch.setattr(WebSocketsSansIOProtocol, "send_receive_event_to_app", take)
    protocol = WebSocketsSansIOProtocol(config_of(), ServerState(), {})
    protocol.connection_made(Recorder())  # type: ignore[arg-type]
    protocol.data_received(HANDSHAKE)
    for _ in range(5):
        await asyncio.sleep(0)
    protocol.data_received(frame(b"a", TEXT, fin=False) + frame(b"", PING) + frame(b"b", CONT))
    protocol.data_received(frame(b"c", BINARY))
    assert given == [("text", b"ab"), ("bytes", b"c")]
    protocol.connection_lost(None)


# On a real server


@pytest.fixture
def raw(server: RunningServer) -> Iterator[RawWebSocket]:
    with RawWebSocket(server) as socket:
        yield socket


def the_connection(server: RunningServer) -> Any:
    return server.on_loop(lambda: next(iter(server.broker.connections)))


def test_a_connection_takes_the_quick_way(server: RunningServer, raw: RawWebSocket) -> None:
    """The server that people run uses the protocol object directly, not the fallback."""
    assert raw.is_alive()
    connection = the_connection(server)
    assert isinstance(connection.channel, DirectChannel)
    assert isinstance(connection.channel._protocol, WebSocketProtocol)


def test_compression_is_not_negotiated(server: RunningServer) -> None:
    """It would cost memory for every connection, and frames that are the same for all would not be."""
    with Wire(server.port) as wire:
        wire.send(handshake(server.port, Sec_WebSocket_Extensions="permessage-deflate"))
        status, headers, _ = wire.response()
    assert status == 101 and "sec-websocket-extensions" not in headers


def test_an_open_connection_needs_no_task(server: RunningServer, raw: RawWebSocket) -> None:
    """An idle subscriber costs no task and nothing of its handshake."""
    assert raw.is_alive()
    protocol = the_connection(server).channel._protocol
    until(lambda: server.on_loop(lambda: not protocol.tasks))
    assert protocol.scope is None and protocol.request is None and protocol.response is None
    assert raw.is_alive()


def test_what_is_left_to_uvicorn_leaves_its_parser_between_frames(
    server: RunningServer, raw: RawWebSocket
) -> None:
    """Quick frames and slow ones may come in any order, each whole wherever the reads were cut."""
    text = json.dumps({"type": "ping"}).encode()
    kinds = [
        frame(text),
        frame(b"x", PING),
        frame(text[:5], TEXT, fin=False) + frame(b"", PING) + frame(text[5:], CONT),
        frame(b"binary", BINARY),
        frame(b" " * 200 + text),
    ]
    data = b"".join(kinds * 20)
    for size in (1, 7, 64, 1000, len(data)):
        for at in range(0, len(data), size):
            raw.send(data[at : at + size])
        answers = [raw.hear()["type"] for _ in range(80)]
        assert answers == ["pong", "pong", "error", "pong"] * 20
    assert server.on_loop(lambda: the_rest(server)) == b""


def the_rest(server: RunningServer) -> bytes:
    return bytes(next(iter(server.broker.connections)).channel._protocol._rest)


def test_flow_control_of_the_transport_reaches_the_channel(serve: Callable[..., RunningServer]) -> None:
    """A full transport pauses the channel, and an empty one wakes it."""
    server = serve(auth=False, write_buffer_bytes=1000, heartbeat_s=3600)
    server.create("orders")
    with RawWebSocket(server, receive_bytes=4096) as raw, server.http() as http:
        raw.ask(type="subscribe", topic="orders", client_id="v", policy="lossless")
        channel = the_connection(server).channel
        line = json.dumps({"payload": "x" * 10_000}) + "\n"
        headers = {"Content-Type": "application/x-ndjson"}
        count = 0
        while not server.on_loop(lambda: channel.paused):
            http.post("/topics/orders/messages", content=line * 500, headers=headers).raise_for_status()
            count += 500
        for offset in range(count):
            assert raw.hear()["offset"] == offset
        until(lambda: not server.on_loop(lambda: channel.paused))
