"""Browser sessions as callers use them: sign in, sign out, revoke. ``sessions`` stores them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from starlette.types import Scope

from himalia.errors import BadRequest, SessionsNotStored
from himalia.server.identity.key_check import SERVER, IdentityListener, KeyCheck
from himalia.server.identity.principal import Principal
from himalia.server.identity.request_credentials import (
    RequestCredentials,
    check_link,
    credentials_of,
    key_in_query,
)
from himalia.server.identity.sessions import Session, SessionStore
from himalia.server.identity.sign_in_limit import SignInLimit
from himalia.settings import IdentitySettings
from himalia.tasks import ShieldedTasks


class BrowserSessions:
    """Belongs to the event loop. Everything is recorded in the audit trail, by ``listener``."""

    def __init__(
        self,
        path: Path | None,
        settings: IdentitySettings,
        keys: KeyCheck,
        listener: IdentityListener,
        clock: Callable[[], int],
    ) -> None:
        self.store = SessionStore(path, settings, keys.recall, self._on_revoked, clock)
        self._keys = keys
        self._listener = listener
        self._limit = SignInLimit()
        self._endings = ShieldedTasks()

    def __iter__(self) -> Iterator[Session]:
        return iter(self.store)

    async def sign_in(self, scope: Scope, agent: str) -> tuple[str, Session]:
        """Make a session for the key or token in a header. Returns the secret for its cookie, and the session."""
        credentials = credentials_of(scope)
        if credentials.key is None or not credentials.by_header:
            raise BadRequest("to sign in, send the key as X-API-Key or as Authorization: Bearer")
        return await self._create(scope, credentials.key, agent)

    async def sign_in_by_link(self, scope: Scope, agent: str) -> tuple[str, Session]:
        """Make a session for the key in the URL, whatever other credentials the request has."""
        key = key_in_query(scope)
        if key is None:
            raise BadRequest("the parameter token is empty")
        check_link(scope)
        return await self._create(scope, key, agent)

    async def _create(self, scope: Scope, key: str, agent: str) -> tuple[str, Session]:
        principal, basis = await self._keys.identify(scope, key)
        self._limit.count(principal.name)
        secret, session = self.store.create(basis, self._keys.recall(basis) or principal, agent)
        # Recorded before the first await, where the request may be cancelled: the session exists.
        details = {"session": session.record.id, "address": _address(scope)}
        self._listener.on_identity_event("session_created", principal.name, details)
        self._listener.on_identity_event("signed_in", principal.name, details)
        await self.store.save()
        return secret, session

    def find(self, credentials: RequestCredentials) -> Session | None:
        """Return the session of one of these cookies, if it is valid."""
        found = (self.store.find(secret) for secret in credentials.sessions)
        return next((session for session in found if session is not None), None)

    def of_request(self, scope: Scope) -> Session | None:
        """Return the session whose cookie the request carries, if it is valid."""
        return self.find(credentials_of(scope))

    async def sign_out(self, session: Session) -> None:
        record = session.record
        self._listener.on_identity_event("signed_out", record.basis.caller, {"session": record.id})
        await self._end([session], "signed out")

    async def revoke(self, sessions: list[Session], by: Principal) -> None:
        for session in sessions:
            self._record_revocation(session, by.name)
        await self._end(sessions, "this session was revoked; sign in again")

    def review(self, reason: str) -> None:
        """End sessions whose key or token is no longer valid, and update the rights of the others."""
        self.store.review(reason)

    def sweep(self) -> None:
        """End sessions that have expired, and forget old sign-ins."""
        self.store.expire()
        self._limit.sweep()

    def _on_revoked(self, session: Session) -> None:
        """Called when the store has ended a session that its caller has not."""
        self._record_revocation(session, SERVER)

    def _record_revocation(self, session: Session, by: str) -> None:
        record = session.record
        fields = {"session": record.id, "of": record.basis.caller}
        self._listener.on_identity_event("session_revoked", by, fields)

    async def _end(self, sessions: list[Session], reason: str) -> None:
        """End sessions and everything that they opened, even if the request for it is cancelled meanwhile.

        Raises ``SessionsNotStored`` if the file could not be changed; the sessions have ended nevertheless.
        """
        await self._endings.run(self._remove(sessions, reason))
        if not self.store.is_saved:
            raise SessionsNotStored()

    async def _remove(self, sessions: list[Session], reason: str) -> None:
        try:
            await self.store.remove(sessions)
        finally:
            # A removed session is no longer checked, so nothing else would end what it opened.
            for session in sessions:
                session.principal.credential.end(reason)


def _address(scope: Scope) -> str:
    return str((scope.get("client") or ("unknown", 0))[0])
