"""The one place where callers are known: by a key, a JSON Web Token or a session, until what they showed ends."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING

from starlette.types import Scope

from himalia.errors import BadRequest, ConfigurationError, SessionsNotStored, Unauthorized, WrongKey
from himalia.record import now_us
from himalia.server.identity.credential import Failure
from himalia.server.identity.keyring import Key, Keyring
from himalia.server.identity.keys import read_keys
from himalia.server.identity.origin import is_loopback
from himalia.server.identity.presented import Shown, check_link, key_in_query, shown_by
from himalia.server.identity.principal import Principal, everything
from himalia.server.identity.private_file import FileWatch
from himalia.server.identity.secret import check_strength, new_secret
from himalia.server.identity.sessions import Basis, Session, Sessions, SignIns
from himalia.server.identity.token import TokenFile, beside_log
from himalia.server.undivided import Undivided
from himalia.settings import Settings
from himalia.token_proof import proof_of

if TYPE_CHECKING:
    from himalia.server.identity.web_token import WebTokens

logger = logging.getLogger("himalia.identity")

LOOK_INTERVAL_S = 1.0
"""How often files are looked at and expired credentials are ended."""
KEY_EXPIRED = "this key has expired"
UNKNOWN_KEY = "this key is unknown"
SERVER = "server"
"""The caller of what the server notices by itself."""

OnEvent = Callable[[str, str, Mapping[str, object]], None]


class Authenticator:
    """Knows callers. Made from the settings, whose mistakes it tells at once; ``open`` reads what lies beside the log.

    ``on_event`` is called with what an audit wants to know: its name, the caller and details. ``on_wrong_key`` is
    awaited before a wrong key is answered. ``on_token`` is called with a new token when the generated one was rotated.
    """

    def __init__(self, settings: Settings, log_url: str, clock: Callable[[], int] = now_us) -> None:
        self._settings = settings
        self._clock = clock
        self.token: str | None = None
        self.failures: Counter[Failure] = Counter()
        self.on_event: OnEvent = lambda event, caller, fields: None
        self.on_wrong_key: Callable[[Scope], Awaitable[None]] | None = None
        self.on_token: Callable[[str], None] = lambda token: None
        self._anonymous = everything("anonymous") if not settings.auth else None
        self._keyring = Keyring()
        self._keys_watch: FileWatch | None = None
        self._token_file: TokenFile | None = None
        self._token_watch: FileWatch | None = None
        self._web_tokens: WebTokens | None = None
        self._configure(log_url)
        self.sessions = Sessions(
            beside_log(log_url, "sessions") if settings.auth else None,
            self._recall,
            age_s=settings.session_s,
            sessions_max=settings.sessions_max,
            clock=clock,
            on_revoked=self._revoked_session,
        )
        self._sign_ins = SignIns()
        self._undivided = Undivided()
        self._looking: asyncio.Task[None] | None = None

    def _configure(self, log_url: str) -> None:
        settings = self._settings
        if not settings.auth:
            if not is_loopback(settings.host):
                raise ConfigurationError(
                    f"--no-auth works on loopback only, not on {settings.host}: "
                    "leave authentication on, or listen on 127.0.0.1"
                )
            if settings.token:
                # Clients that send it all the same have us prove that we know it first.
                self._keyring = Keyring([Key.of_token(settings.token)])
            return
        if settings.jwt_secret_file or settings.jwt_jwks or settings.jwt_issuer or settings.jwt_audience:
            # Only where it is asked for: the library takes a while to import.
            from himalia.server.identity.web_token import WebTokens

            self._web_tokens = WebTokens(settings)
            self._web_tokens.on_withdrawn = self._end_withdrawn_sessions
        if settings.keys_file is not None:
            self._keys_watch = FileWatch(settings.keys_file)
            specs = read_keys(settings.keys_file)
            self._keyring = Keyring(Key.of(spec) for spec in specs)
            self._warn_of_plain_keys()
        elif settings.token:
            check_strength(settings.token, "the token (--token, HIMALIA_TOKEN)")
            self.token = settings.token
            self._keyring = Keyring([Key.of_token(settings.token)])
        else:
            self._token_file = TokenFile.of_log(log_url)
            if self._token_file is None:
                self.token = new_secret()
                self._keyring = Keyring([Key.of_token(self.token)])

    async def open(self) -> None:
        """Read what lies beside the log, which has to be open, and begin to watch what can change."""
        if self._token_file is not None:
            # Before it is read: one that is rotated meanwhile is seen as a change.
            self._token_watch = FileWatch(self._token_file.path)
            self.token = await asyncio.to_thread(self._token_file.read_or_make)
            self._keyring.set_token(self.token)
        # What expired before this server ran is nothing that happens now.
        self._end_expired_keys(self._clock())
        if self._anonymous is None:
            await asyncio.to_thread(self.sessions.load)
            self._looking = asyncio.create_task(self._look())

    async def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
            self._looking = None
            await self.sessions.save()
        if self._web_tokens is not None:
            await self._web_tokens.close()

    # Knowing callers

    async def authenticate(self, scope: Scope) -> Principal:
        """The caller of a request or handshake, by its head alone.

        ``Unauthorized`` without a valid key, token or session, a while later where too many wrong ones came.
        """
        if self._anonymous is not None:
            return self._anonymous
        shown = shown_by(scope)
        if shown.key is not None:
            return (await self._by_key(scope, shown.key))[0]
        session = self._session_of(shown)
        if session is not None:
            return session.principal
        if shown.sessions:
            await self._refuse(scope, Failure.UNKNOWN_SESSION)
            raise Unauthorized("this session has ended; sign in again")
        self.failures[Failure.NO_KEY] += 1
        raise Unauthorized(
            "no key: send it as X-API-Key, as Authorization: Bearer, or as ?token= ('himalia token' prints it)"
        )

    async def _by_key(self, scope: Scope, secret: str) -> tuple[Principal, Basis]:
        key = self._keyring.find(secret)
        if key is not None:
            credential = key.principal.credential
            if not credential.has_expired(self._clock()):
                basis = Basis(key.principal.name, key.digest.hex(), until_us=credential.expires_us)
                return key.principal, basis
            await self._refuse(scope, Failure.EXPIRED)
            raise Unauthorized(KEY_EXPIRED)
        if self._web_tokens is not None and secret.count(".") == 2:
            try:
                return await self._web_tokens.identify(secret)
            except Unauthorized as error:
                is_expired = error.data.get("expired")
                await self._refuse(scope, Failure.EXPIRED if is_expired else Failure.BAD_JWT)
                raise
        await self._refuse(scope, Failure.WRONG_KEY)
        raise WrongKey(UNKNOWN_KEY)

    def _revoked_session(self, session: Session) -> None:
        fields = {"session": session.kept.id, "of": session.kept.basis.caller}
        self.on_event("session_revoked", SERVER, fields)

    async def _refuse(self, scope: Scope, failure: Failure) -> None:
        """Count, record and slow down a wrong or expired key, or a session that is not known."""
        self.failures[failure] += 1
        if self.on_wrong_key is not None:
            await self.on_wrong_key(scope)

    def _session_of(self, shown: Shown) -> Session | None:
        found = (self.sessions.find(secret) for secret in shown.sessions)
        return next((session for session in found if session is not None), None)

    def _recall(self, basis: Basis) -> Principal | None:
        """The caller that a session stands on, while the key that signed in is still the same."""
        if basis.rights is not None:
            return self._web_tokens.recall(basis) if self._web_tokens is not None else None
        try:
            key = self._keyring.by_digest(bytes.fromhex(basis.source))
        except ValueError:
            return None
        if key is None or key.principal.credential.has_expired(self._clock()):
            return None
        return key.principal if key.principal.name == basis.caller else None

    async def prove(self, scope: Scope, key_id: str, nonce: str) -> str:
        """The proof that this server knows a key, for a client that has not sent it yet."""
        key = self._keyring.by_id(key_id)
        if key is None and self._anonymous is not None:
            raise WrongKey("this server asks for no key (--no-auth), and knows none: connect without one")
        if key is None:
            await self._refuse(scope, Failure.WRONG_KEY)
            raise WrongKey(UNKNOWN_KEY)
        return proof_of(key.digest, nonce)

    # Sessions

    async def sign_in(self, scope: Scope, agent: str) -> tuple[str, Session] | None:
        """Make a session for the key or token in a header. None with ``--no-auth``, where nobody has to sign in."""
        if self._anonymous is not None:
            return None
        shown = shown_by(scope)
        if shown.key is None or not shown.by_header:
            raise BadRequest("to sign in, send the key as X-API-Key or as Authorization: Bearer")
        return await self._make_session(scope, shown.key, agent)

    async def sign_in_by_link(self, scope: Scope, agent: str) -> tuple[str, Session] | None:
        """Make a session for the key in the address, whatever else the request shows; None with ``--no-auth``."""
        if self._anonymous is not None:
            return None
        key = key_in_query(scope)
        if key is None:
            raise BadRequest("the parameter token is empty")
        check_link(scope)
        return await self._make_session(scope, key, agent)

    async def _make_session(self, scope: Scope, key: str, agent: str) -> tuple[str, Session]:
        principal, basis = await self._by_key(scope, key)
        self._sign_ins.count(principal.name)
        secret, session = self.sessions.create(basis, self._recall(basis) or principal, agent)
        # Before anything is waited for, which may be cancelled: the session is there.
        details = {"session": session.kept.id, "address": _address(scope)}
        self.on_event("session_created", principal.name, details)
        self.on_event("signed_in", principal.name, details)
        await self.sessions.save()
        return secret, session

    def session(self, scope: Scope) -> Session | None:
        """The session whose cookie the request carries, if it counts."""
        return self._session_of(shown_by(scope))

    async def sign_out(self, session: Session) -> None:
        self.on_event("signed_out", session.kept.basis.caller, {"session": session.kept.id})
        await self._end([session], "signed out")

    async def revoke(self, sessions: list[Session], by: Principal) -> None:
        for session in sessions:
            fields = {"session": session.kept.id, "of": session.kept.basis.caller}
            self.on_event("session_revoked", by.name, fields)
        await self._end(sessions, "this session was revoked; sign in again")

    async def _end(self, sessions: list[Session], why: str) -> None:
        """End sessions with all that they have opened, also if the request that asks for it is cancelled.

        ``SessionsNotStored`` if the file could not be changed: they have ended all the same.
        """
        await self._undivided.run(self._remove(sessions, why))
        if not self.sessions.is_saved:
            raise SessionsNotStored()

    async def _remove(self, sessions: list[Session], why: str) -> None:
        try:
            await self.sessions.remove(sessions)
        finally:
            # Nothing else ends what was opened by a session that is forgotten.
            for session in sessions:
                session.principal.credential.end(why)

    # What changes while the server runs

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK_INTERVAL_S)
            try:
                await self.look()
            except Exception:  # whatever is wrong with a file, callers go on being known
                logger.exception("the keys could not be looked at")

    async def look(self) -> None:
        """End what has expired, and take over what has changed in files."""
        self._expire()
        await self._reload_token()
        await self._reload_keys()
        if self._web_tokens is not None and await self._web_tokens.reload():
            self.sessions.review("this session ended, because tokens are signed by another secret now")
        await self.sessions.save()

    def _expire(self) -> None:
        now = self._clock()
        for key in self._end_expired_keys(now):
            self.sessions.review(KEY_EXPIRED)
            # The old secret of a key that was rotated may end while the key itself is valid.
            if key.spec is None or not key.spec.is_old:
                self.on_event("key_expired", SERVER, {"name": key.principal.name})
        self.sessions.expire()
        self._sign_ins.sweep()
        if self._web_tokens is not None:
            has_sessions = any(session.kept.basis.rights is not None for session in self.sessions)
            self._web_tokens.expire(now, has_sessions=has_sessions)

    def _end_expired_keys(self, now: int) -> list[Key]:
        ended = []
        for key in self._keyring:
            credential = key.principal.credential
            if credential.ended is None and credential.has_expired(now):
                credential.end(KEY_EXPIRED)
                ended.append(key)
        return ended

    def _end_withdrawn_sessions(self) -> None:
        self.sessions.review("this session ended, because the key that signed its token is no longer valid")

    async def _reload_token(self) -> None:
        watch, file = self._token_watch, self._token_file
        if watch is None or file is None or not await asyncio.to_thread(watch.has_changed):
            return
        try:
            token = await asyncio.to_thread(file.read_trusted)
        except ConfigurationError as error:
            logger.warning("%s; the last one stays in use", error.message)
            return
        if token is None:
            logger.warning(
                "the token in %s is gone, or others may read or change it; the last one stays in use",
                file.path,
            )
        elif self._keyring.set_token(token):
            self.token = token
            self.sessions.review("the token was replaced by a new one; sign in again")
            self.on_event("token_rotated", SERVER, {})
            self.on_token(token)
            logger.info("the token was rotated")

    async def _reload_keys(self) -> None:
        watch = self._keys_watch
        if watch is None or not await asyncio.to_thread(watch.has_changed):
            return
        try:
            # In a thread, parsed too: a file with thousands of keys takes a while.
            specs = await asyncio.to_thread(read_keys, watch.path, may_be_empty=True)
        except ConfigurationError as error:
            logger.warning("%s; the keys that were read before stay in use", error.message)
            return
        changes = self._keyring.update(specs)
        self.sessions.review("the key that signed in was removed or replaced; sign in again")
        self._warn_of_plain_keys()
        for change in changes:
            self.on_event(change.event, SERVER, {"name": change.caller})
        logger.info(
            "the keys file %s was read again: %s",
            watch.path,
            ", ".join(f"{change.event} {change.caller}" for change in changes) or "no key changed",
        )

    def _warn_of_plain_keys(self) -> None:
        plain = [key.spec.name for key in self._keyring if key.spec is not None and key.spec.is_plain]
        if plain:
            logger.warning(
                "keys are in the clear in %s: %s; 'himalia keys hash --keys-file %s' replaces them by hashes",
                self._settings.keys_file,
                ", ".join(plain[:10]) + (", ..." if len(plain) > 10 else ""),
                self._settings.keys_file,
            )


def _address(scope: Scope) -> str:
    return str((scope.get("client") or ("unknown", 0))[0])
