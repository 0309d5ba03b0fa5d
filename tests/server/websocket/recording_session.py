"""Our WebSocket class without a server: a transport and a connection that keep what they are given."""

from __future__ import annotations

import asyncio
from typing import Any

import uvicorn
from uvicorn.server import ServerState

from himalia.pubsub.time_slices import TimeSlices
from himalia.server.websocket.uvicorn_protocol import WebSocketProtocol

HANDSHAKE = (
    b"GET /ws HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


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

    def abort(self) -> None:
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


def config_of(app: Any = accepting, bytes_max: int = 1000) -> uvicorn.Config:
    config = uvicorn.Config(app, ws=WebSocketProtocol, lifespan="off", log_config=None, ws_max_size=bytes_max)
    config.load()
    return config


class Listener:
    """A connection that keeps what it receives, as ``(kind, data)``."""

    class _Transport:
        last_seen = 0.0
        paused = False

    def __init__(self) -> None:
        self.received: list[tuple[str, Any]] = []
        self.transport = Listener._Transport()
        self.is_connected = True

    def receive(self, data: bytes) -> None:
        self.received.append(("text", data))

    def receive_binary(self) -> None:
        self.received.append(("binary", None))

    def receive_too_large(self, size: int) -> None:
        self.received.append(("too large", size))

    def end_of_input(self) -> None: ...

    def reserve_input(self, size: int) -> bool:
        return True

    def on_disconnect(self) -> None:
        self.is_connected = False


class Attached:
    """A protocol behind its handshake."""

    def __init__(self, protocol: WebSocketProtocol, transport: Recorder, listener: Listener) -> None:
        self.protocol = protocol
        self.transport = transport
        self.listener = listener

    @classmethod
    async def make(cls, config: uvicorn.Config, time_slices: TimeSlices, bytes_max: int = 1000) -> Attached:
        protocol = await handshaken(config)
        made = cls(protocol, protocol.transport, Listener())  # type: ignore[arg-type]
        protocol.attach(
            made.listener,  # type: ignore[arg-type]
            frame_bytes_max=bytes_max,
            write_buffer_bytes=1000,
            time_slices=time_slices,
        )
        return made

    async def end(self) -> None:
        self.protocol.connection_lost(None)
        await asyncio.gather(*self.protocol.tasks)


async def handshaken(config: uvicorn.Config) -> WebSocketProtocol:
    """A protocol whose handshake was accepted, and nothing written since."""
    transport = Recorder()
    protocol = WebSocketProtocol(config, ServerState(), {})
    protocol.connection_made(transport)  # type: ignore[arg-type]
    protocol.data_received(HANDSHAKE)
    async with asyncio.timeout(10):
        while not protocol.handshake_complete:
            await asyncio.sleep(0)
    transport.written.clear()
    return protocol
