"""uvicorn's WebSocket class, made quick: frames are taken from and written to the transport directly.

uvicorn pauses reading after every message and wakes a task for each; here a whole read is handed over at once.
Plain text frames, which is what clients send, are parsed here; everything else (control frames, fragments,
protocol errors, the closing handshake) is left to uvicorn and websockets, one whole frame at a time, so that
their parser always stands between two frames. These are uvicorn's internals: its version is pinned and
``tests/server/test_uvicorn_protocol.py`` fails when they move.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.exceptions import InvalidState

from himalia.server.channel import Channel

try:
    from websockets.speedups import apply_mask
except ImportError:
    from websockets.utils import apply_mask

if TYPE_CHECKING:
    from himalia.server.connection import Connection

EXTENSION = "himalia.websocket"
FIN_TEXT = 0x81
MASKED = 0x80
SMALLEST_FRAME = 6
CLOSE_GRACE_S = 5.0
HEAD_BYTES_MAX = 64 * 1024
BAD_HANDSHAKE = b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
HEAD_TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
)


class DirectChannel(Channel):
    """A channel that writes to uvicorn's transport."""

    __slots__ = ("_protocol",)

    def __init__(self, protocol: WebSocketProtocol) -> None:
        super().__init__()
        self._protocol = protocol

    @property
    def unsent_bytes(self) -> int:
        return int(self._protocol.transport.get_write_buffer_size())

    def write(self, data: bytes) -> None:
        protocol = self._protocol
        if protocol.handshake_complete and not protocol.close_sent and not protocol.transport.is_closing():
            protocol.transport.write(data)

    def pause_reading(self) -> None:
        self._protocol.pause_reading()

    def resume_reading(self) -> None:
        self._protocol.resume_reading()

    def ping(self) -> None:
        self._protocol.ping()

    def shut(self, code: int, reason: str) -> None:
        self.flush()
        self.closed = True
        self._protocol.shut(code, reason)

    def abort(self) -> None:
        self.closed = True
        self._protocol.transport.abort()


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """One connection. An application that finds itself in ``scope["extensions"]`` may ``attach`` to it."""

    connection: Connection | None = None
    _frame_bytes_max = 0
    # The beginning of a frame whose rest has not come, and how long it must be before it is looked at again.
    _rest: bytes | bytearray = b""
    _rest_wanted = 0
    _skip_bytes = 0

    async def run_asgi(self) -> None:
        self.scope["extensions"][EXTENSION] = self  # type: ignore[assignment]
        try:
            await self.app(self.scope, self.receive, self.send)
        except ClientDisconnected:
            pass
        except BaseException:
            self.logger.exception("the WebSocket endpoint failed")
            self.send_500_response()
        # An attached connection lives on without its task; this saves its memory.
        if self.connection is None and self.close_timer is None:
            self.transport.close()

    def attach(self, connection: Connection, *, frame_bytes_max: int, write_buffer_bytes: int) -> None:
        """From now on give everything that comes in to ``connection``. Called right after accepting."""
        self.connection = connection
        self._frame_bytes_max = frame_bytes_max
        self.transport.set_write_buffer_limits(high=write_buffer_bytes)
        # What the handshake needed is not needed any more.
        self.scope = None  # type: ignore[assignment]
        self.request = self.response = None  # type: ignore[assignment]
        # A peer that did not wait for the handshake has made uvicorn pause.
        self.resume_reading()

    # Reading

    def data_received(self, data: bytes) -> None:
        connection = self.connection
        if connection is None:
            super().data_received(data)
            if self.conn.handshake_exc is not None and not self.handshake_initiated:
                self._refuse_handshake()
            return
        connection.channel.last_seen = self.loop.time()
        if self.close_sent:
            # Only the peer's own close frame is of interest now, and the parser has to find where it begins.
            self._leave_the_rest_to_uvicorn(data)
            return
        self._parse(connection, data)
        connection.end_of_input()

    def _refuse_handshake(self) -> None:
        """Say why: uvicorn keeps silent on what websockets cannot read, such as a header that is too long."""
        self.transport.write(b"".join(self.conn.data_to_send()) or BAD_HANDSHAKE)
        self.transport.close()

    def _leave_the_rest_to_uvicorn(self, data: bytes) -> None:
        skipped = min(self._skip_bytes, len(data))
        self._skip_bytes -= skipped
        data, self._rest = bytes(self._rest) + data[skipped:], b""
        super().data_received(data)

    def _parse(self, connection: Connection, data: bytes) -> None:
        if self._skip_bytes:
            skipped = min(self._skip_bytes, len(data))
            self._skip_bytes -= skipped
            data = data[skipped:]
        if self._rest:
            self._rest += data
            if len(self._rest) < self._rest_wanted:
                return
            data = bytes(self._rest)
        at, size, wanted = 0, len(data), 0
        while size - at >= 2:
            length, head = data[at + 1] & 0x7F, at + 2
            if length >= 126:
                wide = 2 if length == 126 else 8
                if size - head < wide:
                    break
                length, head = int.from_bytes(data[head : head + wide], "big"), head + wide
            end = head + 4 + length
            wanted = end - at
            if data[at] != FIN_TEXT or not data[at + 1] & MASKED or self.frames:
                if not self._leave_to_uvicorn(data, at, end):
                    break
            elif length > self._frame_bytes_max:
                connection.receive_too_large(length)
                self._skip_bytes = max(0, end - size)
            elif end > size:
                break
            else:
                connection.receive(apply_mask(data[head + 4 : end], data[head : head + 4]))
            if self.close_sent or self.transport.is_closing():
                self._rest = b""
                return
            at, wanted = end, 0
        # A bytearray grows in place, however small the pieces are in which the rest comes.
        self._rest = bytearray(data[at:]) if at < size else b""
        self._rest_wanted = wanted

    def _leave_to_uvicorn(self, data: bytes, at: int, end: int) -> bool:
        """Give one frame to websockets; false if it is sound but not whole yet."""
        masked = data[at + 1] & MASKED
        if masked and end > len(data) and end - at <= self._frame_bytes_max + 14:
            return False
        # Unmasked or too long: the parser fails the connection on the header, it needs no more.
        super().data_received(data[at:end] if masked else data[at:])
        return True

    def send_receive_event_to_app(self) -> None:
        """A message that came in fragments, or a binary one."""
        if self.connection is None:
            super().send_receive_event_to_app()
            return
        data, self.frames = b"".join(self.frames), []
        if self.close_sent:
            return
        if self.curr_msg_data_type == "text":
            self.connection.receive(data)
        else:
            self.connection.receive_binary()

    def pause_reading(self) -> None:
        if not self.read_paused and not self.transport.is_closing():
            self.read_paused = True
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        if self.read_paused and not self.transport.is_closing():
            self.read_paused = False
            self.transport.resume_reading()

    # Writing

    def pause_writing(self) -> None:
        super().pause_writing()
        if self.connection is not None:
            self.connection.channel.paused = True

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.connection is not None:
            self.connection.channel.last_seen = self.loop.time()
            self.connection.channel.ready()

    def ping(self) -> None:
        if not self.close_sent and not self.transport.is_closing():
            self.conn.send_ping(b"")
            self.transport.write(b"".join(self.conn.data_to_send()))

    # The end

    def shut(self, code: int, reason: str) -> None:
        """Close in order, but do not wait for a peer that never reads."""
        if self.close_sent or self.transport.is_closing():
            return
        self.resume_reading()
        try:
            self.conn.send_close(code, reason)
        except InvalidState:
            self.transport.abort()
            return
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.close_sent = True
        self.close_timer = self.loop.call_later(CLOSE_GRACE_S, self.transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        connection, self.connection = self.connection, None
        super().connection_lost(exc)
        if connection is not None:
            connection.disconnected()


class HttpProtocol(HttpToolsProtocol):
    """uvicorn's HTTP class, with a limit on how long a peer may take to say what it wants, and how much it says."""

    handshake_timeout_s = 10.0
    _handshake: asyncio.TimerHandle | None = None
    _head_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._headers_came()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._handshake is not None and not self.transport.is_closing():
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES_MAX:
                self.transport.write(HEAD_TOO_LARGE)
                self.transport.close()

    def on_message_begin(self) -> None:
        self._expect_headers()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._headers_came()
        super().on_headers_complete()

    def _expect_headers(self) -> None:
        if self._handshake is None:
            self._handshake = self.loop.call_later(self.handshake_timeout_s, self.transport.abort)

    def _headers_came(self) -> None:
        if self._handshake is not None:
            self._handshake.cancel()
            self._handshake = None
            self._head_bytes = 0


def http_protocol(handshake_timeout_s: float) -> type[HttpProtocol]:
    """The HTTP class with this limit: uvicorn takes a class, not an object."""
    attributes: dict[str, Any] = {"handshake_timeout_s": handshake_timeout_s}
    return type("TimedHttpProtocol", (HttpProtocol,), attributes)
