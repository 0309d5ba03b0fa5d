"""uvicorn's HTTP class, with limits on how long a peer may take and how much it may send.

This overrides uvicorn's internals: its version is pinned, and ``tests/server/http/test_http_protocol.py`` fails when
they change. ``websocket.uvicorn_protocol`` has the WebSocket class.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, NoReturn
from urllib.parse import unquote

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from himalia.protocol import ErrorBody, encode
from himalia.protocol.models import ErrorResponse
from himalia.pubsub.time_slices import TimeSlices
from himalia.server.http.admission import STATE_KEY, Admitted
from himalia.server.http.security_headers import security_headers, with_transport_security
from himalia.server.http.stall import StallWatch
from himalia.server.identity.origin import is_loopback
from himalia.throttle import WarningThrottle

logger = logging.getLogger("himalia.server")
warnings = WarningThrottle(logger)

HEAD_BYTES_MAX = 64 * 1024
HEADERS_MAX = 100
"""Browsers and proxies send far fewer. Each costs time and memory, however short it is."""
URL_BYTES_MAX = 16 * 1024
PIPELINED_MAX = 64
"""Requests of one connection that may wait for the response to an earlier one. Their heads may have as many bytes
together as one head may have."""
PIECE_BYTES = 16 * 1024
"""How much is parsed at a time: a body may consist of very small chunks."""
SMALL_BYTES = 2 * 1024
"""Input up to this size, such as a head, is parsed at once: it does not wait behind the bodies of others."""
LINGER_S = 2.0
"""How long a peer that is still sending may take to read its response before the connection is aborted."""
LINGER_BYTES_MAX = 16 * 1024 * 1024


def plain_response(status: int, code: str, message: str) -> bytes:
    """Return a complete response, for requests that do not reach the application."""
    body = encode(ErrorResponse(ErrorBody(code, message)))
    headers = {
        "content-type": "application/json",
        "content-length": str(len(body)),
        "connection": "close",
        **security_headers(),
    }
    lines = "".join(f"{name.lower()}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n{lines}\r\n".encode() + body


MALFORMED = plain_response(400, "BAD_REQUEST", "this is not a valid HTTP request")
HEAD_TOO_LARGE = plain_response(
    431, "BAD_REQUEST", f"the head of a request has at most {HEAD_BYTES_MAX} bytes and {HEADERS_MAX} headers"
)
URL_TOO_LONG = plain_response(
    414, "BAD_REQUEST", f"the address of a request has at most {URL_BYTES_MAX} bytes"
)


class HttpCycle(RequestResponseCycle):
    """One request and its response."""

    async def send(self, message: Any) -> None:
        # A peer that gets its response before it has sent its whole body is not read from any longer.
        if self.more_body and not self.response_started:
            self.keep_alive = False
        await super().send(message)

    def abandon(self) -> None:
        """Notify the application that the peer is gone or gets no response, and write nothing more."""
        if not self.response_complete:
            self.disconnected = True
        self.message_event.set()


@dataclass(frozen=True, slots=True)
class HttpOptions:
    """Timeouts of every connection, and the time slices in which input is parsed."""

    handshake_timeout_s: float
    stall_timeout_s: float
    time_slices: TimeSlices


class ResponseTransport:
    """The transport for responses: closing it does not cut off a response that the peer is still reading."""

    def __init__(self, protocol: HttpProtocol, stall_timeout_s: float) -> None:
        self._protocol = protocol
        self.stall = StallWatch(protocol.transport, protocol.client, stall_timeout_s)

    def write(self, data: bytes) -> None:
        if not self._protocol.transport.is_closing():
            self._protocol.transport.write(data)
            self.stall.count(len(data))

    def is_closing(self) -> bool:
        return self._protocol.transport.is_closing()

    def close(self) -> None:
        self._protocol.finish()


class HttpProtocol(HttpToolsProtocol):
    """One connection. Made by our ``Listener``, so that its constructor may differ from uvicorn's."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        options: HttpOptions,
        admitted: Admitted | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state)
        self._options = options
        self._admitted = admitted
        if admitted is not None:
            self.app_state = {**app_state, STATE_KEY: admitted}
        self._time_slices = options.time_slices
        # Runs until a request's head is complete.
        self._head_timer: asyncio.TimerHandle | None = None
        self._linger_timer: asyncio.TimerHandle | None = None
        # None until the connection is made.
        self._output: ResponseTransport | None = None
        self._in_head = True
        self._head_bytes = 0
        self._header_count = 0
        # Bytes of the heads of requests that wait for the response to an earlier one.
        self._pipelined_bytes = 0
        # The request that is being responded to; uvicorn's ``cycle`` is the one that is being read.
        self._responding: HttpCycle | None = None
        # Input that is not parsed yet; and whether it waits for a turn.
        self._backlog = b""
        self._is_parse_scheduled = False
        # Whether further input is discarded; and whether the connection closes when the peer has read its response.
        self._ignores_input = False
        self._is_finishing = False
        # Input that the parser has not reported yet: it keeps a long header to itself until its end.
        self._unparsed_bytes = 0
        self._refusal = MALFORMED

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._output = ResponseTransport(self, self._options.stall_timeout_s)
        if self._admitted is not None:
            self._admitted.abort = transport.abort
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_head()
        if self._linger_timer is not None:
            self._linger_timer.cancel()
        if self._output is not None:
            self._output.stall.stop()
        for cycle in (self._responding, *(cycle for cycle, _ in self.pipeline)):
            if isinstance(cycle, HttpCycle):
                cycle.abandon()
        self.pipeline.clear()
        super().connection_lost(exc)
        if self._admitted is not None:
            self._admitted.release()

    # Reading

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        if self._ignores_input:
            self._ignore(len(data))
            return
        self._backlog += data
        if self._is_parse_scheduled:
            self.transport.pause_reading()  # the flow control has resumed it
        elif len(data) > SMALL_BYTES and self._time_slices.is_over():
            self._parse_later()
        else:
            self._parse_in_slices()

    def eof_received(self) -> None:
        """Parse all input before the connection closes, as the peer sends no more."""
        while self._backlog and not self._ignores_input:
            self._parse_piece()

    def _parse_in_slices(self) -> None:
        """Parse one piece, and as many more as fit into this turn."""
        while self._backlog and not self._ignores_input:
            self._parse_piece()
            if self._backlog and self._time_slices.is_over():
                self._parse_later()
                return
        self._backlog = b""

    def _parse_later(self) -> None:
        self._is_parse_scheduled = True
        self.transport.pause_reading()
        self._time_slices.defer(self._continue)

    def _continue(self) -> None:
        self._is_parse_scheduled = False
        if self.transport.is_closing():
            self._backlog = b""
            return
        if not self.flow.read_paused:
            # Before parsing: a handshake hands the transport over to another protocol.
            self.transport.resume_reading()
        self._parse_in_slices()

    def _parse_piece(self) -> None:
        data, self._backlog = self._backlog[:PIECE_BYTES], self._backlog[PIECE_BYTES:]
        self._unparsed_bytes += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            if self._should_upgrade():
                self._backlog = b""
                self.handle_websocket_upgrade()
                return
            # Another protocol would begin here, which we do not speak; the request itself gets its response.
            self._ignores_input = True
        except httptools.HttpParserError:
            self._stop_parsing()
        if self._ignores_input or self.transport.is_closing():
            self._backlog = b""
            return
        if self._unparsed_bytes > HEAD_BYTES_MAX:
            self._refusal = HEAD_TOO_LARGE
            self._stop_parsing()
        elif self._head_timer is None and self._responding is None:
            # An empty line between two requests ends the wait for the next one, but begins none.
            self._expect_head()

    def _ignore(self, size: int) -> None:
        self._unparsed_bytes += size
        if self._unparsed_bytes > LINGER_BYTES_MAX:
            self.transport.abort()

    def _stop_parsing(self) -> None:
        """Handle invalid input or one request too many: respond to the requests before it, and close."""
        if self._ignores_input:  # set by one of the callbacks, which has done the rest
            return
        self._ignores_input = True
        self._end_head()
        reading = self.cycle
        if self._refusal is MALFORMED:
            warnings.warn("malformed", "%s sent an invalid HTTP request; replied with 400", self.client)
        if reading is not None and not reading.response_complete and not reading.more_body:
            reading.keep_alive = False
            return
        # An error cannot follow the bytes of a response that has begun, or that other requests wait for.
        is_responding = self._responding is not None and (
            self._responding is not reading or self._responding.response_started
        )
        if isinstance(reading, HttpCycle):
            reading.abandon()
        if is_responding:
            self.transport.abort()
        else:
            # The host header may not have been read; a browser that connected to a loopback address is on this machine.
            is_strict = self.scheme == "https" and not is_loopback(self.server[0] if self.server else "")
            self.transport.write(with_transport_security(self._refusal) if is_strict else self._refusal)
            self.finish()

    # Callbacks of the parser

    def on_message_begin(self) -> None:
        if not self.pipeline:
            self._pipelined_bytes = 0
        if len(self.pipeline) >= PIPELINED_MAX or self._pipelined_bytes > HEAD_BYTES_MAX:
            self._ignores_input = True
            self.cycle.keep_alive = False
            raise ValueError("too many requests wait on this connection")  # stops the parser
        self._in_head = True
        self._head_bytes = self._header_count = self._unparsed_bytes = 0
        self._expect_head()
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._count_head(len(url))
        super().on_url(url)
        if len(self.url) > URL_BYTES_MAX:
            self._refuse(URL_TOO_LONG)

    def on_header(self, name: bytes, value: bytes) -> None:
        # httptools reports the trailer of a chunked body as headers too. A trailer must not change the head: neither
        # the caller, nor the host, nor the origin.
        self._count_head(len(name) + len(value))
        self._header_count += 1
        if self._header_count > HEADERS_MAX:
            self._refuse(HEAD_TOO_LARGE)
        if self._in_head:
            super().on_header(name, value)

    def _count_head(self, size: int) -> None:
        self._unparsed_bytes = 0
        self._head_bytes += size
        if self._head_bytes > HEAD_BYTES_MAX:
            self._refuse(HEAD_TOO_LARGE)

    def _refuse(self, response: bytes) -> NoReturn:
        self._refusal = response
        raise ValueError("the head is too large")  # stops the parser

    def on_body(self, body: bytes) -> None:
        self._unparsed_bytes = 0
        super().on_body(body)

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._end_head()
        version, scope = self.parser.get_http_version(), self.scope
        scope["method"] = self.parser.get_method().decode("ascii")
        if version != "1.1":
            scope["http_version"] = version
        wants_upgrade = self.parser.should_upgrade()
        if wants_upgrade and self._should_upgrade():
            return
        url = httptools.parse_url(self.url)
        path = url.path.decode("ascii")
        scope["path"] = self.root_path + (unquote(path) if "%" in path else path)
        scope["raw_path"] = self.root_path.encode("ascii") + url.path
        scope["query_string"] = url.query or b""
        self.cycle = HttpCycle(
            scope=scope,
            transport=self._output,  # type: ignore[arg-type]
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=self.access_log,
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=self.expect_100_continue,
            # Input behind a request for another protocol cannot be parsed here.
            keep_alive=version != "1.0" and self.parser.should_keep_alive() and not wants_upgrade,
            on_response=self.on_response_complete,
        )
        if self._responding is None:
            self._start_asgi_task(self.cycle, self.app)
        else:
            self.flow.pause_reading()
            self._pipelined_bytes += self._head_bytes
            self.pipeline.appendleft((self.cycle, self.app))

    def _should_upgrade(self) -> bool:
        # A handshake has no body. One that announces a body would be read to its end before it was checked.
        return (
            self.scope["method"] == "GET"
            and not any(
                name == b"transfer-encoding" or (name == b"content-length" and value != b"0")
                for name, value in self.headers
            )
            and super()._should_upgrade()
        )

    # Responding

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        assert isinstance(cycle, HttpCycle)
        self._responding = cycle
        if self._admitted is not None:
            self._admitted.busy = True
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        self._responding = None
        if self._admitted is not None:
            self._admitted.busy = False
        if not self._is_finishing:
            super().on_response_complete()

    def finish(self) -> None:
        """Close the connection. A peer that is still sending may read its response first: a reset would discard it."""
        if self.transport.is_closing():
            return
        reading = self.cycle
        if not self._ignores_input and (reading is None or not reading.more_body):
            self.transport.close()
            return
        self._ignores_input = self._is_finishing = True
        self._unparsed_bytes = 0
        self.pipeline.clear()
        self.flow.resume_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        if self._linger_timer is None:
            self._linger_timer = self.loop.call_later(LINGER_S, self.transport.abort)

    # Deadlines

    def _expect_head(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(self._options.handshake_timeout_s, self.transport.abort)

    def _end_head(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
