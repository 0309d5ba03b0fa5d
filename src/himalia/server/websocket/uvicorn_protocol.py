"""uvicorn's WebSocket class, made quick: frames are taken from and written to the transport directly.

uvicorn pauses reading after every message and wakes a task for each; here a whole read is handed over at once, or in
slices if it holds very many frames. ``FrameParser`` handles what clients send in good order. Its first other frame, a
close or a protocol error, is left to uvicorn and websockets with all that follows; it is the end in any case. These
are uvicorn's internals: its version is pinned, and ``tests/server/websocket/test_uvicorn_protocol.py`` fails when they
move.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.exceptions import InvalidState

from himalia.pubsub.time_slices import TimeSlices
from himalia.server.http.admission import STATE_KEY, Admitted
from himalia.server.websocket.frame_parser import FrameParser, Parsed
from himalia.server.websocket.send_queue import unacknowledged_bytes
from himalia.server.websocket.transport import Channel

if TYPE_CHECKING:
    from himalia.server.websocket.session import Connection

EXTENSION = "himalia.websocket"
CLOSE_GRACE_S = 5.0
READ_BYTES_LARGE = 64 * 1024
BAD_HANDSHAKE = b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class DirectChannel(Channel):
    """A channel that writes to uvicorn's transport."""

    __slots__ = ("_protocol",)

    def __init__(self, protocol: WebSocketProtocol) -> None:
        super().__init__()
        self._protocol = protocol

    @property
    def unsent_bytes(self) -> int:
        return int(self._protocol.transport.get_write_buffer_size())

    @property
    def untaken_bytes(self) -> int:
        unsent = self.unsent_bytes
        return unsent + unacknowledged_bytes(self._protocol.transport) if unsent else 0

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


class Discard:
    """A sink for what comes after the server has sent its close frame."""

    def receive(self, data: bytes) -> None: ...

    def receive_binary(self) -> None: ...

    def receive_too_large(self, size: int) -> None: ...


DISCARD = Discard()


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """One connection. An application that finds itself in ``scope["extensions"]`` may ``attach`` to it."""

    connection: Connection | None = None
    _time_slices: TimeSlices
    # None once what comes in is left to websockets.
    _parser: FrameParser | None = None
    # What came between the handshake's request and its answer.
    _early = b""
    # The connection has asked for a pause; and there is input to parse in a later turn.
    _is_held = False
    _is_waiting = False

    async def run_asgi(self) -> None:
        self.scope["extensions"][EXTENSION] = self  # type: ignore[assignment]
        try:
            await self.app(self.scope, self.receive, self.send)
        except ClientDisconnected:
            pass
        except BaseException:
            admitted = self.app_state.get(STATE_KEY)
            caller = (admitted.caller if isinstance(admitted, Admitted) else None) or "unknown"
            extra = {"caller": caller}
            self.logger.exception("the WebSocket endpoint failed for %s", caller, extra=extra)
            self.send_500_response()
        # An attached connection lives on without its task; this saves its memory.
        if self.connection is None and self.close_timer is None:
            self.transport.close()

    def attach(
        self,
        connection: Connection,
        *,
        frame_bytes_max: int,
        write_buffer_bytes: int,
        time_slices: TimeSlices,
    ) -> None:
        """From now on give everything that comes in to ``connection``. Called right after accepting."""
        self.connection = connection
        self._parser = FrameParser(frame_bytes_max)
        self._time_slices = time_slices
        self.transport.set_write_buffer_limits(high=write_buffer_bytes)
        # What the handshake needed is not needed any more.
        self.scope = None  # type: ignore[assignment]
        self.request = self.response = None  # type: ignore[assignment]
        if self._early:
            self._parser.feed(self._early)
            self._early = b""
            self._parse_later()
        else:
            self._resume_transport()

    # Reading

    def data_received(self, data: bytes) -> None:
        connection = self.connection
        if connection is None:
            self._receive_unattached(data)
            return
        connection.channel.last_seen = self.loop.time()
        if self._parser is None:
            super().data_received(data)
            return
        self._parser.feed(data)
        if self._is_waiting or self._is_held:
            return
        is_large = self._parser.has_input and self._parser.kept_bytes >= READ_BYTES_LARGE
        if is_large and self._time_slices.is_over():
            self._parse_later()
            return
        self._parse(connection, self._parser)
        # uvloop reads a socket many times in one turn; a few large frames in each read are much work as well.
        if is_large and self._time_slices.is_over():
            self._parse_later()

    def _receive_unattached(self, data: bytes) -> None:
        if self.handshake_initiated and not self.handshake_complete:
            # A peer that does not wait for the answer to its handshake: websockets' parser must not see its frames.
            self._early += data
            self._pause_transport()
            return
        data, self._early = self._early + data, b""
        super().data_received(data)
        if self.conn.handshake_exc is not None and not self.handshake_initiated:
            self._refuse_handshake()

    def _refuse_handshake(self) -> None:
        """Say why: uvicorn keeps silent on what websockets cannot read, such as a header that is too long."""
        self.transport.write(b"".join(self.conn.data_to_send()) or BAD_HANDSHAKE)
        self.transport.close()

    def _parse(self, connection: Connection, parser: FrameParser) -> None:
        """Handle what has come in, or as much of it as fits into this turn."""
        parsed = parser.parse(DISCARD if self.close_sent else connection, self._should_stop)
        if parser.pongs:
            self.transport.write(b"".join(parser.pongs))
            parser.pongs.clear()
        if not self.close_sent:
            connection.end_of_input()
            if not connection.may_keep(parser.kept_bytes):
                parser.give_up()
        if self.transport.is_closing():
            return
        if parsed is Parsed.STOPPED:
            self._parse_later()
        elif parsed is Parsed.FOREIGN:
            self._leave_to_uvicorn(parser)

    def _should_stop(self) -> bool:
        return self._is_held or self._time_slices.is_over()

    def _parse_later(self) -> None:
        """Parse on in a later turn; unless the connection is on hold, when it resumes."""
        self._pause_transport()
        if not self._is_held and not self._is_waiting:
            self._is_waiting = True
            self._time_slices.defer(self._continue)

    def _continue(self) -> None:
        self._is_waiting = False
        if self.connection is None or self._parser is None or self.transport.is_closing():
            return
        if not self._is_held:
            self._parse(self.connection, self._parser)
            if not self._is_held and not self._is_waiting:
                self._resume_transport()

    def _leave_to_uvicorn(self, parser: FrameParser) -> None:
        """websockets answers the close frame, or fails the connection; either way this is its end."""
        self._parser = None
        self.conn.current_size = parser.current_size
        super().data_received(parser.take_rest())

    def pause_reading(self) -> None:
        """Take in no more, for as long as the connection is on hold."""
        self._is_held = True
        self._pause_transport()

    def resume_reading(self) -> None:
        self._is_held = False
        if self._parser is not None and self._parser.has_input:
            self._parse_later()
        elif not self._is_waiting:
            self._resume_transport()

    def _pause_transport(self) -> None:
        if not self.read_paused and not self.transport.is_closing():
            self.read_paused = True
            self.transport.pause_reading()

    def _resume_transport(self) -> None:
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
            self.connection.channel.resume()

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
        # This object is in cycles of references; what it has read need not wait until these are collected.
        self._parser, self._early = None, b""
        super().connection_lost(exc)
        admitted = self.app_state.get(STATE_KEY)
        if isinstance(admitted, Admitted):
            admitted.closed()
        if connection is not None:
            connection.disconnected()
