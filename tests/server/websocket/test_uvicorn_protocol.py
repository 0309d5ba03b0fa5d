"""What our WebSocket class takes from uvicorn's inside. These fail when uvicorn moves it."""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
import struct
import textwrap
from collections.abc import Callable, Iterator
from importlib.metadata import requires, version
from typing import Any

import pytest
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState
from websockets.server import ServerProtocol

from himalia.pubsub.time_slices import TimeSlices
from himalia.server.websocket import uvicorn_protocol
from himalia.server.websocket.frame_parser import FRAMES_PER_CHECK
from himalia.server.websocket.uvicorn_protocol import (
    EXTENSION,
    UvicornTransport,
    WebSocketProtocol,
)
from tests.server.raw_clients import (
    BINARY,
    CLOSE,
    CONT,
    PING,
    TEXT,
    RawWebSocket,
    Wire,
    frame,
    handshake,
    until,
)
from tests.server.websocket.recording_session import HANDSHAKE, Attached, Listener, Recorder, config_of
from tests.servers import RunningServer


@pytest.mark.parametrize(("package", "pinned"), [("uvicorn", "0.54"), ("websockets", "17")])
def test_the_version_is_pinned_to_the_one_that_was_read(package: str, pinned: str) -> None:
    """The package says which version it was written for, and that one is installed."""
    assert f"{package}=={pinned}.*" in [
        entry.partition(";")[0].strip() for entry in requires("himalia") or []
    ]
    assert version(package).startswith(f"{pinned}.")


def test_every_method_that_is_replaced_is_there_with_the_same_arguments() -> None:
    """A method that uvicorn no longer calls, or calls otherwise, would be replaced in vain."""
    replaced = {
        "__init__",
        "run_asgi",
        "data_received",
        "pause_writing",
        "resume_writing",
        "connection_lost",
    }
    functions = {name for name, member in vars(WebSocketProtocol).items() if inspect.isfunction(member)}
    assert {name for name in functions if hasattr(WebSocketsSansIOProtocol, name)} == replaced
    for name in replaced:
        ours, theirs = (getattr(cls, name) for cls in (WebSocketProtocol, WebSocketsSansIOProtocol))
        assert list(inspect.signature(ours).parameters) == list(inspect.signature(theirs).parameters), name


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
    used = attributes_used(WebSocketProtocol) | attributes_used(UvicornTransport, ("protocol",))
    theirs = used - from_the_handshake - set(WebSocketProtocol.__annotations__)
    assert {name for name in theirs if not hasattr(protocol, name)} == set()
    source = inspect.getsource(WebSocketsSansIOProtocol.handle_connect)
    assert all(f"self.{name}" in source for name in from_the_handshake)


def test_every_method_of_websockets_that_is_used_is_there() -> None:
    """The parser below has the calls and the attributes that we rely on."""
    connection = ServerProtocol()
    source = inspect.getsource(uvicorn_protocol)
    for name in ("handshake_exc", "data_to_send", "send_ping", "send_close", "current_size"):
        assert f"self.conn.{name}" in source and hasattr(connection, name)


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


# Time slices


class Steps:
    """A clock that moves by one second whenever it is read."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1
        return self.now


FLOODS = {
    "empty fragments": frame(b"", TEXT, fin=False) + frame(b"", CONT, fin=False) * 9_999,
    "pings": frame(b"x", PING) * 10_000,
    "messages": frame(b"x", TEXT) * 10_000,
    "binary messages": frame(b"x", BINARY) * 10_000,
    "binary fragments": (frame(b"x", BINARY, fin=False) + frame(b"", CONT)) * 5_000,
}


@pytest.mark.parametrize("flood", FLOODS.values(), ids=FLOODS.keys())
async def test_a_read_of_very_many_frames_is_parsed_in_turns(flood: bytes) -> None:
    """One read holds the loop for a few frames only; nothing more is read before it is parsed, and nothing is lost."""
    attached = await Attached.make(config_of(), TimeSlices(0.5, Steps()))
    protocol, transport = attached.protocol, attached.transport
    protocol.data_received(flood + frame(b"the end", PING))
    assert protocol._parser is not None and not transport.reading
    turns, left = 0, protocol._parser.buffered_bytes
    assert left > len(flood) * 0.99
    while not transport.reading:
        await asyncio.sleep(0)
        turns += 1
        assert 0 <= left - protocol._parser.buffered_bytes < len(flood) * 0.01
        left = protocol._parser.buffered_bytes
    assert turns > 100
    assert transport.written[-1].endswith(b"\x8a\x07the end")
    assert len(attached.listener.received) in (0, 5_000, 10_000)
    await attached.end()


async def test_a_connection_on_hold_is_not_parsed() -> None:
    """What was read before the pause stays where it is until the connection resumes, and is then parsed in order."""
    attached = await Attached.make(config_of(), TimeSlices())
    protocol, listener = attached.protocol, attached.listener

    def receive(data: bytes) -> None:
        listener.received.append(("text", data))
        if len(listener.received) == 10:
            protocol.pause_reading()

    listener.receive = receive  # type: ignore[method-assign]
    protocol.data_received(b"".join(frame(b"%d" % number) for number in range(1000)))
    for _ in range(5):
        await asyncio.sleep(0)
    assert len(listener.received) == FRAMES_PER_CHECK and not attached.transport.reading
    protocol.resume_reading()
    while not attached.transport.reading:
        await asyncio.sleep(0)
    assert listener.received == [("text", b"%d" % number) for number in range(1000)]
    await attached.end()


async def test_what_comes_before_the_handshake_is_answered_is_not_lost() -> None:
    """A frame, or half of one, that a client sends without waiting for the answer is parsed once it is accepted."""
    protocol = WebSocketProtocol(config_of(), ServerState(), {})
    transport = Recorder()
    protocol.connection_made(transport)  # type: ignore[arg-type]
    protocol.data_received(HANDSHAKE)
    early = frame(b"one") + frame(b"two")
    protocol.data_received(early[:-1])
    while not protocol.handshake_complete:
        await asyncio.sleep(0)
    listener = Listener()
    protocol.attach(listener, frame_bytes_max=1000, write_buffer_bytes=1000, time_slices=TimeSlices())  # type: ignore[arg-type]
    while not transport.reading:
        await asyncio.sleep(0)
    protocol.data_received(early[-1:])
    assert listener.received == [("text", b"one"), ("text", b"two")]
    protocol.connection_lost(None)
    await asyncio.gather(*protocol.tasks)


async def test_a_flood_after_the_close_frame_is_parsed_in_turns() -> None:
    """While the server waits for the peer's close frame nothing is received, and a flood holds nothing up."""
    attached = await Attached.make(config_of(), TimeSlices(0.5, Steps()))
    protocol = attached.protocol
    protocol.send_close(1008, "SLOW_CONSUMER")
    protocol.data_received(frame(b"x") * 10_000 + frame(struct.pack("!H", 1008), CLOSE))
    assert protocol._parser is not None and protocol._parser.buffered_bytes > 69_000
    while not attached.transport.closing:
        await asyncio.sleep(0)
    assert attached.listener.received == []
    await attached.end()


# On a real server


@pytest.fixture
def raw(server: RunningServer) -> Iterator[RawWebSocket]:
    with RawWebSocket(server) as socket:
        yield socket


def the_connection(server: RunningServer) -> Any:
    return server.on_loop(lambda: the_connection_on_loop(server))


def test_a_connection_takes_the_quick_way(server: RunningServer, raw: RawWebSocket) -> None:
    """The server that people run uses the protocol object directly, not the fallback."""
    assert raw.is_alive()
    connection = the_connection(server)
    assert isinstance(connection.transport, UvicornTransport)
    assert isinstance(connection.transport._protocol, WebSocketProtocol)


def test_compression_is_not_negotiated(server: RunningServer) -> None:
    """It would cost memory for every connection, and frames that are the same for all would not be."""
    with Wire(server.port) as wire:
        wire.send(handshake(server.port, Sec_WebSocket_Extensions="permessage-deflate"))
        status, headers, _ = wire.response()
    assert status == 101 and "sec-websocket-extensions" not in headers


def test_an_open_connection_needs_no_task(server: RunningServer, raw: RawWebSocket) -> None:
    """An idle subscriber costs no task and nothing of its handshake."""
    assert raw.is_alive()
    protocol = the_connection(server).transport._protocol
    until(lambda: server.on_loop(lambda: not protocol.tasks))
    assert protocol.scope is None and protocol.request is None and protocol.response is None
    assert raw.is_alive()


def test_frames_of_all_kinds_come_in_any_order(server: RunningServer, raw: RawWebSocket) -> None:
    """Whole messages, fragments, pings and binary frames are each handled whole, wherever the reads were cut."""
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
    assert (
        server.on_loop(lambda: the_connection_on_loop(server).transport._protocol._parser.buffered_bytes) == 0
    )


def the_connection_on_loop(server: RunningServer) -> Any:
    return next(iter(server.context.connections))


def test_flow_control_of_the_transport_reaches_the_transport(serve: Callable[..., RunningServer]) -> None:
    """A full socket pauses the transport, and an empty one resumes it."""
    server = serve(auth=False, write_buffer_bytes=1000, heartbeat_s=3600)
    server.create("orders")
    with RawWebSocket(server, receive_bytes=4096) as raw, server.http() as http:
        raw.ask(type="subscribe", topic="orders", client_id="v", policy="lossless")
        transport = the_connection(server).transport
        line = json.dumps({"payload": "x" * 10_000}) + "\n"
        headers = {"Content-Type": "application/x-ndjson"}
        count = 0
        while not server.on_loop(lambda: transport.paused):
            http.post("/topics/orders/messages", content=line * 500, headers=headers).raise_for_status()
            count += 500
        for offset in range(count):
            assert raw.hear()["offset"] == offset
        until(lambda: not server.on_loop(lambda: transport.paused))
