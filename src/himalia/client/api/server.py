"""The server: health, clock, statistics, and the sessions of browsers."""

from __future__ import annotations

from himalia.client.api.resource import Resource, path
from himalia.protocol.models import (
    ClockConfirmed,
    Health,
    RevokedResponse,
    SessionList,
    SessionSummary,
    Stats,
)


class ServerResource(Resource):
    async def stats(self) -> Stats:
        """Return counters of the server, and of the topics and subscribers that you may see."""
        return await self._rest().call("GET", "/stats", Stats)

    async def health(self) -> Health:
        """Return the server's health, also if it is degraded. Raises if the server does not respond."""
        # A degraded server responds with 503.
        return await self._rest().call("GET", "/health", Health, also=503)

    async def confirm_clock(self) -> ClockConfirmed:
        """Confirm that the clock of the server's machine is right, after ``health`` warned that it jumped."""
        return await self._rest().call("POST", "/clock/confirm", ClockConfirmed)

    async def sessions(self) -> list[SessionSummary]:
        """List the browsers that are signed in as you, or all of them with the right to manage everything."""
        return (await self._rest().call("GET", "/sessions", SessionList)).sessions

    async def revoke_session(self, id: str) -> None:
        """Sign a browser out. Raises ``SessionNotFound``."""
        await self._rest().call("DELETE", path("sessions", id), RevokedResponse)

    async def revoke_sessions(self, caller: str | None = None) -> int:
        """Sign out all browsers of a caller, or all that you may. Returns their number."""
        return (await self._rest().call("DELETE", path("sessions", caller=caller), RevokedResponse)).count
