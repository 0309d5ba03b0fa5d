"""Writes the server's replies to one WebSocket client: acks, errors and notices."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from himalia.errors import HimaliaError
from himalia.log.api import Appended
from himalia.protocol import PROTOCOL_VERSION, NoticeKind, ServerMessage, encode, text_frame
from himalia.record import format_ts
from himalia.server.codecs import WEBSOCKET, error_message
from himalia.server.websocket.transport import ClientTransport

if TYPE_CHECKING:
    from himalia.server.context import ServerContext

logger = logging.getLogger("himalia.connection")

# A template instead of ``encode``, because a busy publisher gets thousands of acks a second.
_ACK = b'{"type":"ack",%b%b"topic":"%b","status":"ok","offset":%d,"epoch":"%b","ts":"%b"}'


class ReplyWriter:
    """Buffers replies, which leave in one write at the end of the loop's turn.

    The first reply, of any type, carries the protocol version. ``caller`` is the client's name, for the server's log.
    """

    __slots__ = ("_context", "_flush_scheduled", "_transport", "caller", "has_replied")

    def __init__(self, context: ServerContext, transport: ClientTransport, caller: str) -> None:
        self._context = context
        self._transport = transport
        self.caller = caller
        self.has_replied = False
        self._flush_scheduled = False

    @property
    def is_closed(self) -> bool:
        return self._transport.closed

    def send(self, message: ServerMessage) -> None:
        if not self.has_replied:
            self.has_replied = True
            message.protocol = PROTOCOL_VERSION
        self._transport.buffer(text_frame(encode(message)))
        self.flush_soon()

    def refuse(self, error: HimaliaError, request_id: str | None) -> None:
        """Reply with an error; the connection stays open."""
        extra = {"caller": self.caller}
        logger.debug("refused %s: %s %s", self.caller, error.code, error.message, extra=extra)
        self._context.metrics.count_error(error.code)
        self.send(error_message(error, request_id))

    def acknowledge(self, topic: str, request_ids: Sequence[str | None], appended: Appended) -> None:
        """Buffer the acks of publishes that were committed as one batch; the caller calls ``flush_soon``."""
        name, epoch = topic.encode(), appended.epoch.encode()
        ts = format_ts(appended.ts_us).encode()
        version = b"" if self.has_replied else b'"protocol":%d,' % PROTOCOL_VERSION
        self.has_replied = True
        frames = []
        for request_id, offset in zip(request_ids, appended.offsets, strict=True):
            frames.append(
                text_frame(_ACK % (version, _request_id_field(request_id), name, offset, epoch, ts))
            )
            version = b""
        self._transport.buffer(b"".join(frames))

    def notify(self, notice: NoticeKind) -> None:
        """Send a notice, unless the client has got no reply yet: the first must carry the protocol version."""
        if self.has_replied:
            self._transport.buffer(WEBSOCKET.info(notice))
            self._transport.flush()

    def close(self, error: HimaliaError) -> None:
        """Send an error, then close the connection for it."""
        self._context.metrics.count_error(error.code)
        self._transport.buffer(WEBSOCKET.encode_error(error))
        self._transport.close(error)

    def flush_soon(self) -> None:
        if not self._flush_scheduled:
            self._flush_scheduled = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_scheduled = False
        self._transport.flush()


def _request_id_field(request_id: str | None) -> bytes:
    return b"" if request_id is None else b'"request_id":%b,' % encode(request_id)
