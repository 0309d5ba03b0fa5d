"""The endpoint ``/ws``: the handshake, and the plain way of talking where the quick one is not there."""

from __future__ import annotations

import asyncio
from collections import deque

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from himalia.errors import HimaliaError
from himalia.protocol import text_payloads
from himalia.server.caller_usage import Place
from himalia.server.context import ServerContext
from himalia.server.errors import error_response, nothing_there
from himalia.server.http import admission
from himalia.server.identity import Principal
from himalia.server.websocket.session import Connection
from himalia.server.websocket.transport import Channel
from himalia.server.websocket.uvicorn_protocol import EXTENSION, DirectChannel, WebSocketProtocol


async def websocket_endpoint(websocket: WebSocket) -> None:
    context: ServerContext = websocket.app.state.context
    try:
        context.frontier.check(Headers(scope=websocket.scope))
        principal = await context.authenticate(websocket.scope)
        admission.identified(websocket.scope, principal.name)
        place = context.admit(principal)
    except HimaliaError as error:
        context.metrics.count_error(error.code)
        await _deny(websocket, error_response(error), error.code)
        return
    protocol = websocket.scope.get("extensions", {}).get(EXTENSION)
    await websocket.accept()
    if isinstance(protocol, WebSocketProtocol):
        _attach(context, principal, protocol, place)
    else:
        await _converse(context, principal, websocket, place)


async def refuse_other_paths(websocket: WebSocket) -> None:
    """The endpoint of every other path. By itself the framework would refuse with 403 and nothing else."""
    await _deny(websocket, nothing_there(websocket.url.path), "NOT_FOUND")


async def _deny(websocket: WebSocket, response: Response, code: str) -> None:
    try:
        await websocket.send_denial_response(response)
    except RuntimeError:  # a server without that extension closes before accepting, which is a plain 403
        await websocket.close(1008, code)


def _attach(context: ServerContext, principal: Principal, protocol: WebSocketProtocol, place: Place) -> None:
    connection = Connection(context, principal, DirectChannel(protocol), place)
    protocol.attach(
        connection,
        frame_bytes_max=context.frame_bytes_max,
        write_buffer_bytes=context.settings.write_buffer_bytes,
        time_slices=context.manager.time_slices,
    )


class PlainChannel(Channel):
    """A channel over any ASGI server: one message at a time, by a task of its own."""

    __slots__ = ("_bytes_max", "_queue", "_reading", "_shut", "_unsent", "_wake")

    def __init__(self, bytes_max: int) -> None:
        super().__init__()
        self._bytes_max = bytes_max
        self._queue: deque[bytes] = deque()
        self._unsent = 0
        self._wake = asyncio.Event()
        self._reading = asyncio.Event()
        self._reading.set()
        self._shut: tuple[int, str] | None = None

    @property
    def unsent_bytes(self) -> int:
        return self._unsent

    def write(self, data: bytes) -> None:
        self._queue.extend(text_payloads(data))
        self._unsent += len(data)
        self.paused = self._unsent >= self._bytes_max
        self._wake.set()

    def pause_reading(self) -> None:
        self._reading.clear()

    def resume_reading(self) -> None:
        self._reading.set()

    def ping(self) -> None:
        """ASGI has no pings; the server below has its own."""
        self.last_seen = asyncio.get_running_loop().time()

    def shut(self, code: int, reason: str) -> None:
        self.flush()
        self.closed = True
        self._shut = (code, reason)
        self._wake.set()

    def abort(self) -> None:
        self.shut(1011, "no sign of life")

    async def until_reading(self) -> None:
        await self._reading.wait()

    async def send_to(self, websocket: WebSocket) -> None:
        """Send what is written, until the end."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._queue:
                await websocket.send_text(self._queue.popleft().decode())
            self._unsent = 0
            if self._shut is not None:
                await websocket.close(*self._shut)
                return
            if self.paused:
                self.resume()


async def _converse(context: ServerContext, principal: Principal, websocket: WebSocket, place: Place) -> None:
    channel = PlainChannel(context.settings.write_buffer_bytes)
    connection = Connection(context, principal, channel, place)
    sender = asyncio.create_task(channel.send_to(websocket))
    # A sender that failed makes no more room: let the loop below find out that the peer is gone.
    sender.add_done_callback(lambda _: channel.resume_reading())
    try:
        while websocket.client_state is WebSocketState.CONNECTED:
            await channel.until_reading()
            if sender.done():
                break
            message = await websocket.receive()
            if message["type"] == "websocket.disconnect":
                break
            _receive(connection, message.get("text"), context.frame_bytes_max)
    except WebSocketDisconnect:
        pass
    finally:
        connection.disconnected()
        sender.cancel()
        await asyncio.gather(sender, return_exceptions=True)


def _receive(connection: Connection, text: str | None, bytes_max: int) -> None:
    if text is None:
        connection.receive_binary()
    elif len(data := text.encode()) > bytes_max:
        connection.receive_too_large(len(data))
    else:
        connection.receive(data)
    connection.end_of_input()
