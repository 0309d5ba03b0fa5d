"""Checks the key or JSON Web Token that a caller presents, and counts and reports refusals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

from starlette.types import Scope

from himalia.errors import Unauthorized, WrongKey
from himalia.server.identity.credential import Failure
from himalia.server.identity.key_source import KEY_EXPIRED
from himalia.server.identity.keyring import Keyring
from himalia.server.identity.principal import Principal
from himalia.server.identity.sessions import SessionBasis
from himalia.token_proof import proof_of

if TYPE_CHECKING:
    from himalia.server.identity.web_token import WebTokens

UNKNOWN_KEY = "invalid key"
SERVER = "server"
"""The caller in events that no caller has caused."""


class IdentityListener(Protocol):
    """Is notified of what callers do to be known, on the event loop."""

    def on_identity_event(self, event: str, caller: str, fields: Mapping[str, object]) -> None:
        """Called with each event for the audit trail."""

    async def on_refusal(self, scope: Scope) -> None:
        """Awaited before a request with a wrong or expired credential gets its error, which it may delay."""


class KeyCheck:
    """Belongs to the event loop. ``clock`` returns microseconds since 1970."""

    def __init__(
        self,
        keyring: Keyring,
        web_tokens: WebTokens | None,
        listener: IdentityListener,
        clock: Callable[[], int],
    ) -> None:
        self.failures: Counter[Failure] = Counter()
        self._keyring = keyring
        self._web_tokens = web_tokens
        self._listener = listener
        self._clock = clock

    async def identify(self, scope: Scope, secret: str) -> tuple[Principal, SessionBasis]:
        """Return the caller with this key or token, and the basis for a session of it, or raise ``Unauthorized``."""
        key = self._keyring.find(secret)
        if key is not None:
            credential = key.principal.credential
            if not credential.has_expired(self._clock()):
                name, digest = key.principal.name, key.digest.hex()
                return key.principal, SessionBasis(name, digest, until_us=credential.expires_us)
            await self.refuse(scope, Failure.EXPIRED)
            raise Unauthorized(KEY_EXPIRED)
        if self._web_tokens is not None and secret.count(".") == 2:
            try:
                return await self._web_tokens.identify(secret)
            except Unauthorized as error:
                is_expired = error.data.get("expired")
                await self.refuse(scope, Failure.EXPIRED if is_expired else Failure.BAD_JWT)
                raise
        await self.refuse(scope, Failure.WRONG_KEY)
        raise WrongKey(UNKNOWN_KEY)

    def recall(self, basis: SessionBasis) -> Principal | None:
        """Return the caller that signed in to a session, if its key is still valid and still has the same caller."""
        if basis.rights is not None:
            return self._web_tokens.recall(basis) if self._web_tokens is not None else None
        try:
            key = self._keyring.by_digest(bytes.fromhex(basis.source))
        except ValueError:
            return None
        if key is None or key.principal.credential.has_expired(self._clock()):
            return None
        return key.principal if key.principal.name == basis.caller else None

    async def prove(self, scope: Scope, key_id: str, nonce: str, *, requires_key: bool) -> str:
        """Return the proof that the server knows a key, for a client that has not sent it yet."""
        key = self._keyring.by_id(key_id)
        if key is not None:
            return proof_of(key.digest, nonce)
        if not requires_key:
            raise WrongKey("this server requires no key (--no-auth) and knows none: connect without one")
        await self.refuse(scope, Failure.WRONG_KEY)
        raise WrongKey(UNKNOWN_KEY)

    async def refuse(self, scope: Scope, failure: Failure) -> None:
        """Count and report a refusal; returns when the error may be sent."""
        self.failures[failure] += 1
        await self._listener.on_refusal(scope)

    def count(self, failure: Failure) -> None:
        """Count a request that presented nothing, which is not reported."""
        self.failures[failure] += 1
