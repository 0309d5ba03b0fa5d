"""When a client is not read: back-pressure from the log, and from a client that does not read its replies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from himalia.server.websocket.transport import ClientTransport

if TYPE_CHECKING:
    from himalia.server.context import ServerContext


class FlowControl:
    """Pauses and resumes reading from one client. Belongs to the event loop.

    Reading stays paused while a command of the client runs, while too many of its publishes or too many bytes of all
    publishes are uncommitted, and while its transport is full. ``resume`` may be called at any time: it does nothing
    as long as one of these holds.
    """

    __slots__ = ("_context", "_transport", "in_flight", "is_busy", "is_reading")

    def __init__(self, context: ServerContext, transport: ClientTransport) -> None:
        self._context = context
        self._transport = transport
        self.is_reading = True
        # Whether a command is running; later messages wait behind it.
        self.is_busy = False
        # Publishes of this client that are not committed yet.
        self.in_flight = 0
        transport.on_writable = self.resume

    def pause(self) -> None:
        if self.is_reading:
            self.is_reading = False
            self._transport.pause_reading()
            if self._context.is_full:
                self._context.hold(self.resume)

    def resume(self) -> None:
        if self.is_reading or self.is_busy or self._transport.paused:
            return
        if self._context.is_full:
            self._context.hold(self.resume)
        elif self.in_flight <= self._context.settings.publishes_in_flight_max // 2:
            self.is_reading = True
            self._transport.resume_reading()
