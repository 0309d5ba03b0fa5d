"""JSON Web Tokens: callers that another platform has authenticated, with their rights in the claim ``himalia``."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
import weakref
from collections.abc import Callable
from typing import Any

import jwt

from himalia.errors import ConfigurationError, Unauthorized
from himalia.server.identity.credential import Credential
from himalia.server.identity.jwks import ALGORITHMS, Jwks
from himalia.server.identity.principal import LIMITS, Principal, Right, read_limits, read_rights
from himalia.server.identity.private_file import FileWatch, read_trusted
from himalia.server.identity.sessions import SessionBasis
from himalia.settings import IdentitySettings

logger = logging.getLogger("himalia.identity")

CLAIM = "himalia"
LENGTH_MAX = 16 * 1024
SECRET_BYTES_MIN = 32
"""HS256 requires this: a shorter secret could be guessed from one token."""
SUBJECT_LENGTH_MAX = 256
SKEW_S = 60
"""How far an issuer's clock may be ahead, in the claim ``nbf``."""
EXPIRY_MAX_S = 10**11
"""The latest expiry that is stored exactly: the year 5138."""
EXPIRED = "this token has expired"
SECRET = "jwt_secret_file"
"""The id of the key of HS256, of which there is only one."""
SECRET_FILE = "the secret of jwt_secret_file in"


class WebTokens:
    """Checks tokens. HS256 with the secret of a file, RS256, ES256 and EdDSA with a JWKS; never one for the other."""

    def __init__(self, settings: IdentitySettings, on_fetched: Callable[[], None]) -> None:
        """``on_fetched`` is called when the issuer's keys were fetched: some may have been withdrawn."""
        if not settings.jwt_secret_file and not settings.jwt_jwks:
            raise ConfigurationError(
                "jwt_issuer and jwt_audience need jwt_secret_file or jwt_jwks to check tokens"
            )
        if not settings.jwt_issuer or not settings.jwt_audience:
            raise ConfigurationError(
                "JSON Web Tokens need jwt_issuer and jwt_audience: a token is only valid from there and for here"
            )
        self.issuer = settings.jwt_issuer
        self._audience = settings.jwt_audience
        self._secret: bytes | None = None
        self._watch: FileWatch | None = None
        if settings.jwt_secret_file is not None:
            self._watch = FileWatch(settings.jwt_secret_file)
            self._secret = _read_secret(self._watch)
        self._on_fetched = on_fetched
        self._jwks = Jwks(settings.jwt_jwks, on_fetched=self._end_withdrawn) if settings.jwt_jwks else None
        # The credentials of tokens in use, and the ids of their keys. Weak: only what a token opened keeps them.
        self._open: weakref.WeakKeyDictionary[Credential, str] = weakref.WeakKeyDictionary()

    @property
    def source(self) -> str:
        """Identifies what tokens are checked by: a session made by a token ends when that changes."""
        jwks = self._jwks.source if self._jwks else ""
        checked_by = [self._secret or b"", *(part.encode() for part in (jwks, self.issuer, self._audience))]
        return "jwt:" + hashlib.sha256(b"|".join(checked_by)).hexdigest()[:32]

    @property
    def _prefix(self) -> str:
        """The beginning of the names of callers with tokens."""
        return f"jwt:{self.issuer}/"

    async def identify(self, token: str) -> tuple[Principal, SessionBasis]:
        """Return the caller and the basis for its sessions, or raise ``Unauthorized`` with the problem of the token."""
        if len(token) > LENGTH_MAX:
            raise Unauthorized(f"this token has more than {LENGTH_MAX} characters")
        try:
            header = jwt.get_unverified_header(token)
        except (jwt.PyJWTError, ValueError):
            raise Unauthorized("this token is not a JSON Web Token") from None
        key_name, key, algorithm = await self._key(header)
        claims = self._decode(token, key, algorithm)
        name = self._prefix + _subject(claims)
        where = f"the claim {CLAIM!r}"
        table = claims.get(CLAIM)
        if not isinstance(table, dict):
            raise Unauthorized(f"this token has no claim {CLAIM!r} with rights")
        if unknown := sorted(set(table) - {*Right, LIMITS}):
            raise Unauthorized(
                f"{where} has {unknown[0][:80]!r}; it may have {', '.join(Right)} and {LIMITS}"
            )
        try:
            rights, limits = read_rights(table, where), read_limits(table.get(LIMITS), where)
        except ConfigurationError as error:
            raise Unauthorized(error.message) from None
        expires_us = _expiry_us(claims)
        credential = Credential(expires_us)
        self._open[credential] = key_name
        principal = Principal(name, rights, limits=limits, credential=credential)
        return principal, SessionBasis(name, self.source, rights, limits, expires_us, signer=key_name)

    def recall(self, basis: SessionBasis) -> Principal | None:
        """Return the caller of a session that a token made, as long as tokens are checked as they were then."""
        if basis.source != self.source or basis.rights is None or basis.limits is None:
            return None
        if not basis.caller.startswith(self._prefix) or self._is_withdrawn(basis.signer):
            return None
        return Principal(basis.caller, basis.rights, limits=basis.limits)

    async def _key(self, header: dict[str, Any]) -> tuple[str, Any, str]:
        algorithm, kid = header.get("alg"), header.get("kid")
        if algorithm == "HS256" and self._secret is not None:
            return SECRET, self._secret, algorithm
        if algorithm in ALGORITHMS and self._jwks is not None:
            found = await self._jwks.key(None if kid is None else str(kid), algorithm)
            if found is None:
                raise Unauthorized("this token is signed by a key that its issuer does not publish")
            return found.id, found.key, algorithm
        raise Unauthorized(f"tokens signed by {str(algorithm)[:20]!r} are not accepted here")

    def _decode(self, token: str, key: Any, algorithm: str) -> dict[str, Any]:
        try:
            claims: dict[str, Any] = jwt.decode(
                token,
                key,
                algorithms=[algorithm],
                audience=self._audience,
                issuer=self.issuer,
                options={
                    "require": ["exp", "iss", "aud", "sub"],
                    "verify_iat": False,  # when it was issued does not matter
                    "verify_nbf": False,  # below, with allowance for clocks
                },
            )
        except jwt.ExpiredSignatureError:
            raise Unauthorized(EXPIRED, expired=True) from None
        except jwt.InvalidSignatureError:
            raise Unauthorized("the signature of this token is wrong") from None
        except (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError) as error:
            raise Unauthorized(f"this token is not valid here: {error}") from None
        not_before = claims.get("nbf", 0)
        if not isinstance(not_before, int | float) or not_before > time.time() + SKEW_S:
            raise Unauthorized("this token is not valid yet")
        return claims

    # Ending

    def expire(self, now_us: int, *, has_sessions: bool = False) -> None:
        """Called often: end tokens that have expired, and fetch the issuer's keys so that withdrawn ones are noticed.

        ``has_sessions``: whether there are sessions that tokens have made, which count as tokens in use.
        """
        for credential in list(self._open):
            if credential.has_expired(now_us):
                credential.end(EXPIRED)
        if self._jwks is not None and (has_sessions or len(self._open)):
            self._jwks.refresh_soon()

    def _is_withdrawn(self, signer: str) -> bool:
        if signer == SECRET:
            return self._secret is None
        return self._jwks is None or self._jwks.has_withdrawn(signer)

    def _end_withdrawn(self) -> None:
        self._end_signed_by({name for name in self._open.values() if self._is_withdrawn(name)})
        self._on_fetched()

    async def reload(self) -> bool:
        """Reload files that have changed. Returns True if the secret did; tokens signed by the old one end then."""
        if self._jwks is not None:
            await self._jwks.reload()
        if self._watch is None or not await asyncio.to_thread(self._watch.has_changed):
            return False
        try:
            secret = await asyncio.to_thread(_read_secret, self._watch)
        except ConfigurationError as error:
            logger.warning("%s; the previous one remains valid", error.message)
            return False
        self._secret = secret
        self._end_signed_by({SECRET})
        return True

    def _end_signed_by(self, names: set[str]) -> None:
        for credential, name in list(self._open.items()):
            if name in names:
                credential.end("the key that signed this token is no longer valid")

    async def close(self) -> None:
        if self._jwks is not None:
            await self._jwks.close()


def _read_secret(watch: FileWatch) -> bytes:
    secret = read_trusted(watch.path, SECRET_FILE).strip()
    if len(secret) < SECRET_BYTES_MIN:
        raise ConfigurationError(
            f"{SECRET_FILE} {watch.path} has {len(secret)} bytes; HS256 needs at least {SECRET_BYTES_MIN}"
        )
    return secret


def _subject(claims: dict[str, Any]) -> str:
    subject = claims.get("sub")
    if (
        not isinstance(subject, str)
        or not subject.isprintable()
        or not 0 < len(subject) <= SUBJECT_LENGTH_MAX
    ):
        raise Unauthorized(f"the claim 'sub' is not a text of 1 to {SUBJECT_LENGTH_MAX} printable characters")
    return subject


def _expiry_us(claims: dict[str, Any]) -> int:
    # The library has checked that this is an integer of any size, or the text of one.
    return min(int(claims["exp"]), EXPIRY_MAX_S) * 1_000_000
