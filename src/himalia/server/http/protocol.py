"""uvicorn's HTTP class, with limits on how long a peer may take and how much it may send.

This overrides uvicorn's internals: its version is pinned, and ``tests/server/http/test_http_protocol.py`` fails when
they move.
``uvicorn_protocol`` has the WebSocket class.
"""

from __future__ import annotations

import asyncio
import logging
from http import HTTPStatus
from typing import Any, NoReturn
from urllib.parse import unquote

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from himalia.protocol import ErrorBody, encode
from himalia.protocol.models import ErrorResponse
from himalia.pubsub.time_slices import TimeSlices
from himalia.server.http.admission import STATE_KEY, Admitted
from himalia.server.http.security_headers import security_headers, with_transport_security
from himalia.server.identity.origin import is_loopback
from himalia.server.observe.log_config import RareWarnings
from himalia.server.websocket.send_queue import unacknowledged_bytes

logger = logging.getLogger("himalia.server")
warnings = RareWarnings(logger)

HEAD_BYTES_MAX = 64 * 1024
HEADERS_MAX = 100
"""What browsers and proxies send is far less. Each costs time and memory, however short it is."""
URL_BYTES_MAX = 16 * 1024
PIPELINED_MAX = 64
"""Requests of one connection that may wait for the answer to an earlier one; their heads count together too."""
PIECE_BYTES = 16 * 1024
"""How much is parsed at a time: a body may come in very small chunks."""
SMALL_BYTES = 2 * 1024
"""So little is parsed at once, such as a head: it need not wait behind the bodies of others."""
LINGER_S = 2.0
"""How long a peer that still sends may take to read its answer before the connection is cut."""
LINGER_BYTES_MAX = 16 * 1024 * 1024
STALL_LOOKS = 10
"""How often in the time allowed it is looked whether a peer takes what it is sent."""


def plain_answer(status: int, code: str, message: str) -> bytes:
    """A whole answer, for where no application is asked."""
    body = encode(ErrorResponse(ErrorBody(code, message)))
    headers = {
        "content-type": "application/json",
        "content-length": str(len(body)),
        "connection": "close",
        **security_headers(),
    }
    lines = "".join(f"{name.lower()}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n{lines}\r\n".encode() + body


MALFORMED = plain_answer(400, "BAD_REQUEST", "this is not a valid HTTP request")
HEAD_TOO_LARGE = plain_answer(
    431, "BAD_REQUEST", f"the head of a request has at most {HEAD_BYTES_MAX} bytes and {HEADERS_MAX} headers"
)
URL_TOO_LONG = plain_answer(414, "BAD_REQUEST", f"the address of a request has at most {URL_BYTES_MAX} bytes")


class HttpCycle(RequestResponseCycle):
    """One request and its answer."""

    async def send(self, message: Any) -> None:
        # A peer that is answered before it has sent its whole body is not read from any longer.
        if self.more_body and not self.response_started:
            self.keep_alive = False
        await super().send(message)

    def abandon(self) -> None:
        """The peer is gone, or not worth an answer: let the application know, and write nothing more."""
        if not self.response_complete:
            self.disconnected = True
        self.message_event.set()


class AnswerTransport:
    """The transport as a cycle sees it: closing it does not cut off an answer that is under way to the peer."""

    def __init__(self, protocol: HttpProtocol) -> None:
        self._protocol = protocol

    def write(self, data: bytes) -> None:
        if not self._protocol.transport.is_closing():
            self._protocol.transport.write(data)
            self._protocol.wrote(len(data))

    def is_closing(self) -> bool:
        return self._protocol.transport.is_closing()

    def close(self) -> None:
        self._protocol.finish()


class HttpProtocol(HttpToolsProtocol):
    """One connection."""

    handshake_timeout_s = 10.0
    stall_timeout_s = 300.0
    time_slices: TimeSlices
    admitted: Admitted | None = None
    _handshake: asyncio.TimerHandle | None = None
    _linger: asyncio.TimerHandle | None = None
    # While something waits for the peer: what was written, what it has taken of that, and when it last took something.
    _stall: asyncio.TimerHandle | None = None
    _written = 0
    _taken = 0
    _took_at = 0.0
    _in_head = True
    _head_bytes = 0
    _headers = 0
    # Of the requests that wait for the answer to an earlier one.
    _pipelined_bytes = 0
    # The request that is being answered; uvicorn's ``cycle`` is the one that is being read.
    _answering: HttpCycle | None = None
    # What was read and is not parsed yet; and whether it waits for a turn.
    _backlog = b""
    _is_waiting = False
    # Nothing that comes in is parsed any more.
    _deaf = False
    _finishing = False
    # Bytes of which the parser has said nothing yet: it keeps a long header to itself until its end.
    _unparsed_bytes = 0
    _refusal = MALFORMED

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self.admitted is not None:
            self.admitted.abort = transport.abort
            self.app_state = {**self.app_state, STATE_KEY: self.admitted}
        self._expect_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._headers_came()
        for timer in (self._linger, self._stall):
            if timer is not None:
                timer.cancel()
        for cycle in (self._answering, *(cycle for cycle, _ in self.pipeline)):
            if isinstance(cycle, HttpCycle):
                cycle.abandon()
        self.pipeline.clear()
        super().connection_lost(exc)
        if self.admitted is not None:
            self.admitted.closed()

    # Reading

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        if self._deaf:
            self._ignore(len(data))
            return
        self._backlog += data
        if self._is_waiting:
            self.transport.pause_reading()  # the flow control has resumed it
        elif len(data) > SMALL_BYTES and self.time_slices.is_over():
            self._parse_later()
        else:
            self._parse_in_turns()

    def eof_received(self) -> None:
        """The peer sends no more: what it has sent is parsed before the connection closes."""
        while self._backlog and not self._deaf:
            self._parse_piece()

    def _parse_in_turns(self) -> None:
        """Parse a piece at least, and as many more as fit into this turn."""
        while self._backlog and not self._deaf:
            self._parse_piece()
            if self._backlog and self.time_slices.is_over():
                self._parse_later()
                return
        self._backlog = b""

    def _parse_later(self) -> None:
        self._is_waiting = True
        self.transport.pause_reading()
        self.time_slices.defer(self._continue)

    def _continue(self) -> None:
        self._is_waiting = False
        if self.transport.is_closing():
            self._backlog = b""
            return
        if not self.flow.read_paused:
            # Before parsing: a handshake hands the transport over to another protocol.
            self.transport.resume_reading()
        self._parse_in_turns()

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
            # Another protocol would begin here, which we do not speak; the request itself is answered.
            self._deaf = True
        except httptools.HttpParserError:
            self._stop_parsing()
        if self._deaf or self.transport.is_closing():
            self._backlog = b""
            return
        if self._unparsed_bytes > HEAD_BYTES_MAX:
            self._refusal = HEAD_TOO_LARGE
            self._stop_parsing()
        elif self._handshake is None and self._answering is None:
            # An empty line between two requests ends the wait for the next one, but begins none.
            self._expect_headers()

    def _ignore(self, size: int) -> None:
        self._unparsed_bytes += size
        if self._unparsed_bytes > LINGER_BYTES_MAX:
            self.transport.abort()

    def _stop_parsing(self) -> None:
        """What came is not a request, or one too many: answer what was asked before it, and close."""
        if self._deaf:  # by one of the callbacks, which has seen to the rest
            return
        self._deaf = True
        self._headers_came()
        reading = self.cycle
        if self._refusal is MALFORMED:
            warnings.warn("malformed", "%s sent what is not a valid HTTP request; answered 400", self.client)
        if reading is not None and not reading.response_complete and not reading.more_body:
            reading.keep_alive = False
            return
        # Bytes of an answer that has begun, or that others wait for, cannot be followed by an error.
        is_answering = self._answering is not None and (
            self._answering is not reading or self._answering.response_started
        )
        if isinstance(reading, HttpCycle):
            reading.abandon()
        if is_answering:
            self.transport.abort()
        else:
            # The host header may not have been read; a browser that connected to a loopback address is on this machine.
            is_strict = self.scheme == "https" and not is_loopback(self.server[0] if self.server else "")
            self.transport.write(with_transport_security(self._refusal) if is_strict else self._refusal)
            self.finish()

    # What the parser says

    def on_message_begin(self) -> None:
        if not self.pipeline:
            self._pipelined_bytes = 0
        if len(self.pipeline) >= PIPELINED_MAX or self._pipelined_bytes > HEAD_BYTES_MAX:
            self._deaf = True
            self.cycle.keep_alive = False
            raise ValueError("too many requests wait on this connection")  # stops the parser
        self._in_head = True
        self._head_bytes = self._headers = self._unparsed_bytes = 0
        self._expect_headers()
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._count_head(len(url))
        super().on_url(url)
        if len(self.url) > URL_BYTES_MAX:
            self._refuse(URL_TOO_LONG)

    def on_header(self, name: bytes, value: bytes) -> None:
        # httptools reports the trailer of a chunked body as headers too. A trailer may not change what the head said:
        # neither who calls, nor the host, nor the origin.
        self._count_head(len(name) + len(value))
        self._headers += 1
        if self._headers > HEADERS_MAX:
            self._refuse(HEAD_TOO_LARGE)
        if self._in_head:
            super().on_header(name, value)

    def _count_head(self, size: int) -> None:
        self._unparsed_bytes = 0
        self._head_bytes += size
        if self._head_bytes > HEAD_BYTES_MAX:
            self._refuse(HEAD_TOO_LARGE)

    def _refuse(self, answer: bytes) -> NoReturn:
        self._refusal = answer
        raise ValueError("the head is too large")  # stops the parser

    def on_body(self, body: bytes) -> None:
        self._unparsed_bytes = 0
        super().on_body(body)

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._headers_came()
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
            transport=AnswerTransport(self),  # type: ignore[arg-type]
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=self.access_log,
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=self.expect_100_continue,
            # What follows a request for another protocol is not ours to parse.
            keep_alive=version != "1.0" and self.parser.should_keep_alive() and not wants_upgrade,
            on_response=self.on_response_complete,
        )
        if self._answering is None:
            self._start_asgi_task(self.cycle, self.app)
        else:
            self.flow.pause_reading()
            self._pipelined_bytes += self._head_bytes
            self.pipeline.appendleft((self.cycle, self.app))

    def _should_upgrade(self) -> bool:
        # A handshake has no body. One that announces a body would be read to its end before anybody looked at it.
        return (
            self.scope["method"] == "GET"
            and not any(
                name == b"transfer-encoding" or (name == b"content-length" and value != b"0")
                for name, value in self.headers
            )
            and super()._should_upgrade()
        )

    # Answering

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        assert isinstance(cycle, HttpCycle)
        self._answering = cycle
        if self.admitted is not None:
            self.admitted.busy = True
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        self._answering = None
        if self.admitted is not None:
            self.admitted.busy = False
        if not self._finishing:
            super().on_response_complete()

    def finish(self) -> None:
        """Close the connection. A peer that still sends may read its answer first: a reset would take it away."""
        if self.transport.is_closing():
            return
        reading = self.cycle
        if not self._deaf and (reading is None or not reading.more_body):
            self.transport.close()
            return
        self._deaf = self._finishing = True
        self._unparsed_bytes = 0
        self.pipeline.clear()
        self.flow.resume_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        if self._linger is None:
            self._linger = self.loop.call_later(LINGER_S, self.transport.abort)

    # Deadlines

    def wrote(self, size: int) -> None:
        """Watch a peer that does not take at once what it is sent."""
        self._written += size
        if self._stall is None and self.transport.get_write_buffer_size():
            self._took_at = self.loop.time()
            self._taken = self._written - self._untaken_bytes()
            self._watch_stall()

    def _untaken_bytes(self) -> int:
        return int(self.transport.get_write_buffer_size()) + unacknowledged_bytes(self.transport)

    def _watch_stall(self) -> None:
        self._stall = self.loop.call_later(self.stall_timeout_s / STALL_LOOKS, self._look_for_stall)

    def _look_for_stall(self) -> None:
        """End the connection of a peer that takes nothing of what waits for it; a slow one is let be."""
        self._stall = None
        if not self.transport.get_write_buffer_size():
            return
        taken, now = self._written - self._untaken_bytes(), self.loop.time()
        if taken > self._taken:
            self._taken, self._took_at = taken, now
        elif now - self._took_at >= self.stall_timeout_s:
            warnings.warn(
                "stalled",
                "%s took nothing of its answer for %.0f s and is cut",
                self.client,
                now - self._took_at,
            )
            self.transport.abort()
            return
        self._watch_stall()

    def _expect_headers(self) -> None:
        if self._handshake is None:
            self._handshake = self.loop.call_later(self.handshake_timeout_s, self.transport.abort)

    def _headers_came(self) -> None:
        if self._handshake is not None:
            self._handshake.cancel()
            self._handshake = None


def http_protocol(
    handshake_timeout_s: float, stall_timeout_s: float, time_slices: TimeSlices
) -> type[HttpProtocol]:
    """The HTTP class with these limits: uvicorn takes a class, not an object."""
    attributes: dict[str, Any] = {
        "handshake_timeout_s": handshake_timeout_s,
        "stall_timeout_s": stall_timeout_s,
        "time_slices": time_slices,
    }
    return type("TimedHttpProtocol", (HttpProtocol,), attributes)
