"""The transport of one WebSocket connection, as its session uses it, and the close codes."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable

from himalia.errors import BodyTimeout, HimaliaError, SlowConsumer, TooManyBodies, Unauthorized
from himalia.pubsub import Outlet
from himalia.server.codecs import WEBSOCKET

CLOSE_POLICY_VIOLATION = 1008
CLOSE_INTERNAL_ERROR = 1011
CLOSE_GOING_AWAY = 1001
CLOSE_SERVICE_RESTART = 1012
CLOSE_TRY_AGAIN_LATER = 1013
CLOSE_UNAUTHORIZED = 4401
"""The credential of the client has ended: its key was removed, replaced or has expired, its session was revoked."""


class ClientTransport(Outlet):
    """An outlet that can also pause its reading, ping its client, and end the connection, in order or at once.

    There are two: ``UvicornTransport``, which ``himalia serve`` uses, and ``AsgiTransport`` for other servers.
    """

    __slots__ = ("last_seen", "on_writable")

    def __init__(self) -> None:
        super().__init__(WEBSOCKET)
        # When the client last showed a sign of life: sent anything, or read what was pending for it.
        self.last_seen = asyncio.get_running_loop().time()
        self.on_writable: Callable[[], None] | None = None

    def resume(self) -> None:
        super().resume()
        if self.on_writable is not None:
            self.on_writable()

    @property
    def unread_bytes(self) -> int:
        """Bytes that the client's machine has not accepted yet, as far as that is known."""
        return self.unsent_bytes

    @abstractmethod
    def pause_reading(self) -> None: ...

    @abstractmethod
    def resume_reading(self) -> None: ...

    @abstractmethod
    def ping(self) -> None:
        """Send a ping frame; the client replies with a pong, which is a sign of life."""

    @abstractmethod
    def send_close(self, code: int, reason: str) -> None:
        """Send a close frame behind what was written; end the connection soon, whatever the client does."""

    @abstractmethod
    def abort(self) -> None:
        """End the connection now."""

    def close(self, error: HimaliaError) -> None:
        self.send_close(_close_code(error), str(error.code))


def _close_code(error: HimaliaError) -> int:
    match error:
        case SlowConsumer() | BodyTimeout():
            return CLOSE_POLICY_VIOLATION
        case TooManyBodies():
            return CLOSE_TRY_AGAIN_LATER
        case Unauthorized():
            return CLOSE_UNAUTHORIZED
        case _:
            return CLOSE_INTERNAL_ERROR
