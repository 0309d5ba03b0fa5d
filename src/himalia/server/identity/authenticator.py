"""Authenticates callers by a key, a JSON Web Token or a browser session, and ends what these opened when they end."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from starlette.types import Scope

from himalia.errors import ConfigurationError, Unauthorized
from himalia.record import now_us
from himalia.server.identity.browser_sessions import BrowserSessions
from himalia.server.identity.credential import Failure
from himalia.server.identity.key_check import SERVER, IdentityListener, KeyCheck
from himalia.server.identity.key_source import KEY_EXPIRED, KeySource
from himalia.server.identity.origin import is_loopback
from himalia.server.identity.principal import Principal, everything
from himalia.server.identity.request_credentials import credentials_of
from himalia.server.identity.token import beside_log
from himalia.settings import Settings

if TYPE_CHECKING:
    from himalia.server.identity.web_token import WebTokens

logger = logging.getLogger("himalia.identity")

CHECK_INTERVAL_S = 1.0
"""How often files are checked for changes and expired credentials are ended."""


class Authenticator:
    """Belongs to the event loop. The constructor raises errors in the settings; ``open`` reads files beside the log.

    Without authentication (``--no-auth``) every caller is ``anonymous``, and there are no sessions.
    """

    def __init__(
        self,
        settings: Settings,
        log_url: str,
        listener: IdentityListener,
        clock: Callable[[], int] = now_us,
    ) -> None:
        if not settings.auth and not is_loopback(settings.host):
            raise ConfigurationError(
                f"--no-auth works on loopback only, not on {settings.host}: "
                "leave authentication on, or listen on 127.0.0.1"
            )
        self._anonymous = None if settings.auth else everything("anonymous")
        self._listener = listener
        self._clock = clock
        self._web_tokens = self._make_web_tokens(settings)
        self._source = KeySource(settings, log_url)
        self.keys = KeyCheck(self._source.keyring, self._web_tokens, listener, clock)
        sessions_path = beside_log(log_url, "sessions") if settings.auth else None
        self.sessions = BrowserSessions(sessions_path, settings, self.keys, listener, clock)
        self._token_watchers: list[Callable[[str], None]] = []
        self._checking: asyncio.Task[None] | None = None

    def _make_web_tokens(self, settings: Settings) -> WebTokens | None:
        wants = settings.jwt_secret_file or settings.jwt_jwks or settings.jwt_issuer or settings.jwt_audience
        if not settings.auth or not wants:
            return None
        # Imported only here: the library takes a while to import.
        from himalia.server.identity.web_token import WebTokens

        return WebTokens(settings, self._on_issuer_keys)

    async def open(self) -> None:
        """Read the files beside the log, which must be open, and begin to check them for changes."""
        await self._source.open()
        # Not recorded as events: these keys expired before the server was started.
        self._source.end_expired(self._clock())
        if self._anonymous is None:
            await asyncio.to_thread(self.sessions.store.load)
            self._checking = asyncio.create_task(self._check_regularly())

    async def close(self) -> None:
        if self._checking is not None:
            self._checking.cancel()
            await asyncio.gather(self._checking, return_exceptions=True)
            self._checking = None
            await self.sessions.store.save()
        if self._web_tokens is not None:
            await self._web_tokens.close()

    @property
    def token(self) -> str | None:
        """The token that permits everything, if there is one; a generated one is known after ``open``."""
        return self._source.token

    @property
    def requires_key(self) -> bool:
        return self._anonymous is None

    @property
    def failures(self) -> Counter[Failure]:
        return self.keys.failures

    def watch_token(self, on_token: Callable[[str], None]) -> None:
        """Call ``on_token`` with each new token, when the generated one is rotated."""
        self._token_watchers.append(on_token)

    async def authenticate(self, scope: Scope) -> Principal:
        """Return the caller of a request or handshake, by its head alone.

        Raises ``Unauthorized`` without a valid key, token or session, after a delay if there were many wrong ones.
        """
        if self._anonymous is not None:
            return self._anonymous
        credentials = credentials_of(scope)
        if credentials.key is not None:
            return (await self.keys.identify(scope, credentials.key))[0]
        session = self.sessions.find(credentials)
        if session is not None:
            return session.principal
        if credentials.sessions:
            await self.keys.refuse(scope, Failure.UNKNOWN_SESSION)
            raise Unauthorized("this session has ended; sign in again")
        self.keys.count(Failure.NO_KEY)
        raise Unauthorized(
            "no key: send it as X-API-Key, as Authorization: Bearer, or as ?token= ('himalia token' prints it)"
        )

    async def prove(self, scope: Scope, key_id: str, nonce: str) -> str:
        """Return the proof that this server knows a key, for a client that has not sent it yet."""
        return await self.keys.prove(scope, key_id, nonce, requires_key=self.requires_key)

    # Changes while the server runs

    async def _check_regularly(self) -> None:
        while True:
            await asyncio.sleep(CHECK_INTERVAL_S)
            try:
                await self.check()
            except Exception:  # callers must be authenticated, whatever is wrong with a file
                logger.exception("checking the keys failed; trying again")

    async def check(self) -> None:
        """End credentials that have expired, and apply changes of files."""
        self._expire()
        if (update := await self._source.reload()) is not None:
            self.sessions.review(update.reason)
            for event, fields in update.events:
                self._listener.on_identity_event(event, SERVER, fields)
            if update.token is not None:
                for on_token in self._token_watchers:
                    on_token(update.token)
        if self._web_tokens is not None and await self._web_tokens.reload():
            self.sessions.review("this session ended, because tokens are signed by another secret now")
        await self.sessions.store.save()

    def _expire(self) -> None:
        now = self._clock()
        for key in self._source.end_expired(now):
            self.sessions.review(KEY_EXPIRED)
            # The old secret of a rotated key may end while the key itself is valid.
            if key.spec is None or not key.spec.is_old:
                self._listener.on_identity_event("key_expired", SERVER, {"name": key.principal.name})
        self.sessions.sweep()
        if self._web_tokens is not None:
            has_sessions = any(session.record.basis.rights is not None for session in self.sessions)
            self._web_tokens.expire(now, has_sessions=has_sessions)

    def _on_issuer_keys(self) -> None:
        """Called when the issuer's keys were fetched: some may have been withdrawn."""
        self.sessions.review("this session ended, because the key that signed its token is no longer valid")
