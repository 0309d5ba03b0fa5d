"""The WebSocket transport for ASGI servers other than that of ``himalia serve``.

``create_app`` may run on any ASGI server, embedded in another program or in a test client. There the frames cannot be
read from the socket: this transport exchanges single messages, with two tasks for each connection, and pings are left
to the server. The protocol, the limits and the flow control are the same, because the session is.
"""

from __future__ import annotations

import asyncio
from collections import deque

from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from himalia.protocol import text_payloads
from himalia.server.caller_usage import ConnectionSlot
from himalia.server.context import ServerContext
from himalia.server.identity import Principal
from himalia.server.websocket.session import WebSocketSession
from himalia.server.websocket.transport import CLOSE_INTERNAL_ERROR, ClientTransport


class AsgiTransport(ClientTransport):
    """Queues messages, which ``send_to`` sends one by one."""

    __slots__ = ("_bytes_max", "_close", "_queue", "_readable", "_unsent", "_wake")

    def __init__(self, bytes_max: int) -> None:
        super().__init__()
        self._bytes_max = bytes_max
        self._queue: deque[bytes] = deque()
        self._unsent = 0
        self._wake = asyncio.Event()
        self._readable = asyncio.Event()
        self._readable.set()
        self._close: tuple[int, str] | None = None

    @property
    def unsent_bytes(self) -> int:
        return self._unsent

    def write(self, data: bytes) -> None:
        self._queue.extend(text_payloads(data))
        self._unsent += len(data)
        self.paused = self._unsent >= self._bytes_max
        self._wake.set()

    def pause_reading(self) -> None:
        self._readable.clear()

    def resume_reading(self) -> None:
        self._readable.set()

    def ping(self) -> None:
        """Count as a sign of life: ASGI has no pings, the server below sends its own."""
        self.last_seen = asyncio.get_running_loop().time()

    def send_close(self, code: int, reason: str) -> None:
        self.flush()
        self.closed = True
        self._close = (code, reason)
        self._wake.set()

    def abort(self) -> None:
        self.send_close(CLOSE_INTERNAL_ERROR, "no sign of life")

    async def wait_readable(self) -> None:
        """Return when reading is not paused."""
        await self._readable.wait()

    async def send_to(self, websocket: WebSocket) -> None:
        """Send what is written, until the connection is closed."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._queue:
                await websocket.send_text(self._queue.popleft().decode())
            self._unsent = 0
            if self._close is not None:
                await websocket.close(*self._close)
                return
            if self.paused:
                self.resume()


async def run_session(
    context: ServerContext, principal: Principal, websocket: WebSocket, slot: ConnectionSlot
) -> None:
    """Run a session over ASGI messages, until the connection is closed."""
    transport = AsgiTransport(context.settings.write_buffer_bytes)
    session = WebSocketSession(context, principal, transport, slot)
    sender = asyncio.create_task(transport.send_to(websocket))
    # A sender that failed makes no more room: resume the loop below, which then finds the connection closed.
    sender.add_done_callback(lambda _: transport.resume_reading())
    try:
        while websocket.client_state is WebSocketState.CONNECTED:
            await transport.wait_readable()
            if sender.done():
                break
            message = await websocket.receive()
            if message["type"] == "websocket.disconnect":
                break
            _receive(session, message.get("text"), context.frame_bytes_max)
    except WebSocketDisconnect:
        pass
    finally:
        session.on_disconnect()
        sender.cancel()
        await asyncio.gather(sender, return_exceptions=True)


def _receive(session: WebSocketSession, text: str | None, bytes_max: int) -> None:
    if text is None:
        session.receive_binary()
    elif len(data := text.encode()) > bytes_max:
        session.receive_too_large(len(data))
    else:
        session.receive(data)
    session.end_of_input()
