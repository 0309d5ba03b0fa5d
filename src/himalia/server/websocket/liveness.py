"""Whether a WebSocket client is still there: pings, and how long a silent client is waited for."""

from __future__ import annotations

import logging

from himalia.protocol import NoticeKind
from himalia.server.websocket.flow_control import FlowControl
from himalia.server.websocket.reply_writer import ReplyWriter
from himalia.server.websocket.transport import ClientTransport
from himalia.settings import ConnectionSettings

logger = logging.getLogger("himalia.connection")


class Liveness:
    """Pings one client, and finds out when it is dead: it has neither sent nor read anything since a ping.

    ``ClientTransport.last_seen`` is when the client last sent something. A client that reads what is pending for it,
    however slowly, is alive too.
    """

    __slots__ = ("_flow", "_next_ping", "_pinged_at", "_replies", "_settings", "_transport", "_unread_bytes")

    def __init__(
        self,
        settings: ConnectionSettings,
        transport: ClientTransport,
        flow: FlowControl,
        replies: ReplyWriter,
    ) -> None:
        self._settings = settings
        self._transport = transport
        self._flow = flow
        self._replies = replies
        self._unread_bytes = 0
        self._next_ping = transport.last_seen + settings.heartbeat_s
        # When the oldest ping without a sign of life was sent.
        self._pinged_at: float | None = None

    def is_dead(self, now: float) -> bool:
        """Whether the client has not replied to a ping in time. Called at least four times within each timeout."""
        transport = self._transport
        unread_bytes = transport.unread_bytes
        if unread_bytes < self._unread_bytes:
            transport.last_seen = now
        self._unread_bytes = unread_bytes
        if self._pinged_at is None:
            return False
        # A reply cannot arrive while the server does not read, unless it does not read because the client does not.
        is_unheard = not self._flow.is_reading and not transport.paused
        if transport.last_seen >= self._pinged_at or is_unheard:
            self._pinged_at = None
            return False
        if now - self._pinged_at <= self._timeout_s():
            return False
        caller, silent_s = self._replies.caller, now - transport.last_seen
        extra = {"caller": caller}
        logger.info("closing a connection of %s: no response for %.0f s", caller, silent_s, extra=extra)
        return True

    def ping_if_due(self, now: float) -> None:
        if now < self._next_ping:
            return
        self._next_ping = now + self._settings.heartbeat_s
        if self._pinged_at is None:
            self._pinged_at = now
        self._transport.ping()
        if not self._transport.paused:
            self._replies.notify(NoticeKind.PING)

    def _timeout_s(self) -> float:
        # For a client that is slow to read, the ping waits behind everything that is pending, and so does its reply.
        settings = self._settings
        return settings.stall_timeout_s if self._transport.paused else settings.heartbeat_timeout_s
