"""uvicorn's WebSocket class with a fast path: frames are read from and written to the transport directly.

uvicorn pauses reading after every message and wakes a task for each; here a whole read is handled at once, or in
slices if it holds very many frames. ``FrameParser`` handles the frames of a well-behaved client. Its first other
frame, a close or a protocol error, goes to uvicorn and websockets with all that follows; either ends the connection.
These are uvicorn's internals: its version is pinned, and ``tests/server/websocket/test_uvicorn_protocol.py`` fails
when they change. docs/benchmarks.md has the gain. To switch it off, run ``create_app`` on an ASGI server of your own.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from uvicorn.config import Config
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState
from websockets.exceptions import InvalidState

from himalia.pubsub.time_slices import TimeSlices
from himalia.server.http.admission import STATE_KEY, Admitted
from himalia.server.http.stall import unread_bytes_of
from himalia.server.websocket.frame_parser import FrameParser, Parsed
from himalia.server.websocket.transport import ClientTransport

if TYPE_CHECKING:
    from himalia.server.websocket.session import WebSocketSession

EXTENSION = "himalia.websocket"
CLOSE_GRACE_S = 5.0
READ_BYTES_LARGE = 64 * 1024
BAD_HANDSHAKE = b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class UvicornTransport(ClientTransport):
    """Writes to uvicorn's transport, without a task."""

    __slots__ = ("_protocol",)

    def __init__(self, protocol: WebSocketProtocol) -> None:
        super().__init__()
        self._protocol = protocol

    @property
    def unsent_bytes(self) -> int:
        return int(self._protocol.transport.get_write_buffer_size())

    @property
    def unread_bytes(self) -> int:
        return unread_bytes_of(self._protocol.transport) if self.unsent_bytes else 0

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

    def send_close(self, code: int, reason: str) -> None:
        self.flush()
        self.closed = True
        self._protocol.send_close(code, reason)

    def abort(self) -> None:
        self.closed = True
        self._protocol.transport.abort()


class Discard:
    """A sink for messages that arrive after the server has sent its close frame."""

    def receive(self, data: bytes) -> None: ...

    def receive_binary(self) -> None: ...

    def receive_too_large(self, size: int) -> None: ...


DISCARD = Discard()


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """One connection. An application that finds itself in ``scope["extensions"]`` may ``attach`` a session to it."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        # None until ``attach`` and after the end of the connection.
        self.session: WebSocketSession | None = None
        # None until ``attach``, and again when the input is left to websockets.
        self._parser: FrameParser | None = None
        # The time slices of the server in which input is parsed; None until ``attach``.
        self._time_slices: TimeSlices | None = None
        # Input that arrived between the handshake's request and its response.
        self._early = b""
        # Whether the session has paused reading; and whether there is input to parse in a later turn.
        self._is_paused = False
        self._is_parse_scheduled = False

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
        # An attached connection stays open without its task; this saves its memory.
        if self.session is None and self.close_timer is None:
            self.transport.close()

    def attach(
        self,
        session: WebSocketSession,
        *,
        frame_bytes_max: int,
        write_buffer_bytes: int,
        time_slices: TimeSlices,
    ) -> None:
        """From now on pass all input to ``session``. Called right after accepting the handshake."""
        self.session = session
        self._parser = FrameParser(frame_bytes_max)
        self._time_slices = time_slices
        self.transport.set_write_buffer_limits(high=write_buffer_bytes)
        # Free what only the handshake needed.
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
        session = self.session
        if session is None:
            self._receive_unattached(data)
            return
        session.transport.last_seen = self.loop.time()
        parser = self._parser
        if parser is None:
            super().data_received(data)
            return
        parser.feed(data)
        if self._is_parse_scheduled or self._is_paused:
            return
        is_large = parser.has_input and parser.buffered_bytes >= READ_BYTES_LARGE
        if is_large and self._should_stop():
            self._parse_later()
            return
        self._parse(session, parser)
        # uvloop reads a socket many times in one turn; a few large frames in each read are much work as well.
        if is_large and self._should_stop():
            self._parse_later()

    def _receive_unattached(self, data: bytes) -> None:
        if self.handshake_initiated and not self.handshake_complete:
            # A client that does not wait for the response to its handshake: websockets' parser must not see its frames.
            self._early += data
            self._pause_transport()
            return
        data, self._early = self._early + data, b""
        super().data_received(data)
        if self.conn.handshake_exc is not None and not self.handshake_initiated:
            self._refuse_handshake()

    def _refuse_handshake(self) -> None:
        """Reply with the reason: uvicorn sends nothing for what websockets cannot parse, such as a long header."""
        self.transport.write(b"".join(self.conn.data_to_send()) or BAD_HANDSHAKE)
        self.transport.close()

    def _parse(self, session: WebSocketSession, parser: FrameParser) -> None:
        """Handle the input, or as much of it as fits into this turn."""
        parsed = parser.parse(DISCARD if self.close_sent else session, self._should_stop)
        if parser.pongs:
            self.transport.write(b"".join(parser.pongs))
            parser.pongs.clear()
        if not self.close_sent:
            session.end_of_input()
            if not session.reserve_input(parser.buffered_bytes):
                parser.drop_partial()
        if self.transport.is_closing():
            return
        if parsed is Parsed.STOPPED:
            self._parse_later()
        elif parsed is Parsed.FOREIGN:
            self._leave_to_uvicorn(parser)

    def _should_stop(self) -> bool:
        return self._is_paused or (self._time_slices is not None and self._time_slices.is_over())

    def _parse_later(self) -> None:
        """Continue parsing in a later turn; while the session has paused reading, when it resumes."""
        self._pause_transport()
        if self._time_slices is not None and not self._is_paused and not self._is_parse_scheduled:
            self._is_parse_scheduled = True
            self._time_slices.defer(self._continue)

    def _continue(self) -> None:
        self._is_parse_scheduled = False
        if self.session is None or self._parser is None or self.transport.is_closing():
            return
        if not self._is_paused:
            self._parse(self.session, self._parser)
            if not self._is_paused and not self._is_parse_scheduled:
                self._resume_transport()

    def _leave_to_uvicorn(self, parser: FrameParser) -> None:
        """Pass the rest to websockets, which replies to a close frame or fails the connection: both end it."""
        self._parser = None
        self.conn.current_size = parser.current_size
        super().data_received(parser.pop_rest())

    def pause_reading(self) -> None:
        """Read no more until ``resume_reading``."""
        self._is_paused = True
        self._pause_transport()

    def resume_reading(self) -> None:
        self._is_paused = False
        if self._parser is not None and self._parser.has_input:
            self._parse_later()
        elif not self._is_parse_scheduled:
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
        if self.session is not None:
            self.session.transport.paused = True

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.session is not None:
            self.session.transport.last_seen = self.loop.time()
            self.session.transport.resume()

    def ping(self) -> None:
        if not self.close_sent and not self.transport.is_closing():
            self.conn.send_ping(b"")
            self.transport.write(b"".join(self.conn.data_to_send()))

    # Closing

    def send_close(self, code: int, reason: str) -> None:
        """Close in order, but do not wait for a client that never reads."""
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
        session, self.session = self.session, None
        # This object is in reference cycles; free its input now instead of when these are collected.
        self._parser, self._early = None, b""
        super().connection_lost(exc)
        admitted = self.app_state.get(STATE_KEY)
        if isinstance(admitted, Admitted):
            admitted.release()
        if session is not None:
            session.on_disconnect()
