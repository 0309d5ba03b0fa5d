"""The message that a WebSocket client is still sending: its memory is reserved, and it must be complete in time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from himalia.errors import BodyTimeout, HimaliaError, TooManyBodies
from himalia.server.http.body_budget import Reservation
from himalia.server.websocket.reply_writer import ReplyWriter

if TYPE_CHECKING:
    from himalia.server.context import ServerContext

FREE_BYTES = 64 * 1024
"""What each connection may buffer of incomplete messages without a reservation in the budget of request bodies."""


class PartialMessage:
    """Reserves memory for what has arrived of one client's incomplete message, as for the body of a request.

    Beyond the budget, or when the message is not complete in time, the connection is closed.
    """

    __slots__ = ("_context", "_replies", "_reservation", "_since_s")

    def __init__(self, context: ServerContext, replies: ReplyWriter) -> None:
        self._context = context
        self._replies = replies
        self._reservation: Reservation | None = None
        self._since_s = 0.0

    def reserve(self, size: int) -> bool:
        """Reserve ``size`` bytes in all; return False after closing the connection because there is no room."""
        if size <= FREE_BYTES:
            self.release()
            return True
        if self._reservation is None:
            self._reservation = self._context.bodies.reservation(self._replies.caller)
            self._since_s = asyncio.get_running_loop().time()
        try:
            self._reservation.extend(max(0, size - self._reservation.bytes))
        except TooManyBodies as error:
            self._close(error)
            return False
        return True

    def close_if_late(self, now_s: float) -> bool:
        """Close the connection, and return True, if the message has taken too long."""
        timeout_s = self._context.settings.body_timeout_s
        if self._reservation is None or now_s - self._since_s <= timeout_s:
            return False
        self._close(BodyTimeout(f"a message was not complete after {timeout_s:g} s"))
        return True

    def release(self) -> None:
        """Idempotent."""
        if self._reservation is not None:
            self._reservation.release()
            self._reservation = None

    def _close(self, error: HimaliaError) -> None:
        self.release()
        self._replies.close(error)
