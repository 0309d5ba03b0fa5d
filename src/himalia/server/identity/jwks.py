"""The public keys of an issuer (JWKS), from a URL or a file: cached, and fetched again for an unknown key id."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

import jwt
import msgspec

from himalia.errors import ConfigurationError, IssuerUnavailable
from himalia.server.identity.origin import is_loopback
from himalia.server.identity.private_file import FileWatch, check_writers

if TYPE_CHECKING:
    import httpx

logger = logging.getLogger("himalia.identity")

ALGORITHMS = ("RS256", "ES256", "EdDSA")
FETCH_TIMEOUT_S = 5.0
CACHE_S = 600.0
"""After this long the set is fetched again, while requests still use the old one."""
ATTEMPT_INTERVAL_S = 30.0
"""Between two attempts, so that tokens with invented key ids do not cause constant requests to the issuer."""
STALE_MAX_S = 24 * 3600.0
"""How long the last keys of an issuer that does not respond are trusted."""
BYTES_MAX = 1024 * 1024
KEYS_MAX = 100
MATERIAL = ("kty", "crv", "n", "e", "x", "y")
"""The members that identify a key."""


class _Set(msgspec.Struct):
    keys: list[dict[str, Any]]


class IssuerKey(NamedTuple):
    """A public key. ``id`` names its material too: an issuer may replace a key and keep its ``kid``."""

    id: str
    key: jwt.PyJWK

    @classmethod
    def of(cls, kid: str, key: jwt.PyJWK, data: dict[str, Any]) -> IssuerKey:
        material = msgspec.json.encode([kid, *(data.get(part) for part in MATERIAL)])
        return cls(hashlib.sha256(material).hexdigest()[:32], key)


class Jwks:
    """Never blocks the event loop: the set is fetched in the background, by one attempt that all requests share."""

    def __init__(
        self,
        source: str,
        clock: Callable[[], float] = time.monotonic,
        *,
        on_fetched: Callable[[], None] | None = None,
    ) -> None:
        """``on_fetched`` is called when the set was fetched: keys may have been withdrawn since the last time."""
        self.source = source
        self._clock = clock
        self._keys: dict[str, IssuerKey] = {}
        self._fetched_at: float | None = None
        self._tried_at: float | None = None
        self._attempt: asyncio.Task[None] | None = None
        self._on_fetched = on_fetched
        self._watch: FileWatch | None = None
        if _is_url(source):
            _check_url(source)
        else:
            self._watch = FileWatch(Path(source))
            self._keys, self._fetched_at = _read_keys(source), clock()

    async def key(self, kid: str | None, algorithm: str) -> IssuerKey | None:
        """Return the key with this id, or the only one there is; None if it is not in the set.

        ``IssuerUnavailable`` if the set was never fetched, or not for a day.
        """
        found = self._find(kid, algorithm)
        if found is None or self._is_stale():
            await self._refresh()
            found = self._find(kid, algorithm)
        elif self._age_s() > CACHE_S:
            self.refresh_soon()
        if self._is_stale():
            raise IssuerUnavailable(
                f"tokens cannot be checked now: {_without_query(self.source)} does not respond"
            )
        return found

    def has_withdrawn(self, id: str) -> bool:
        """Whether the issuer no longer has the key with this ``IssuerKey.id``, as far as is known."""
        return self._fetched_at is not None and all(known.id != id for known in self._keys.values())

    def refresh_soon(self) -> None:
        """Begin to fetch the set if it is old and no attempt is running."""
        if self._age_s() > CACHE_S and self._may_try():
            self._begin()

    async def reload(self) -> None:
        """Reload the set if it is a file that has changed; if the file is invalid, the previous keys remain valid."""
        if self._watch is not None and await asyncio.to_thread(self._watch.has_changed):
            await asyncio.wait({self._begin()})

    def _find(self, kid: str | None, algorithm: str) -> IssuerKey | None:
        if kid is None:
            fitting = [known for known in self._keys.values() if known.key.algorithm_name == algorithm]
            return fitting[0] if len(fitting) == 1 else None
        known = self._keys.get(kid)
        return known if known is not None and known.key.algorithm_name == algorithm else None

    def _age_s(self) -> float:
        return float("inf") if self._fetched_at is None else self._clock() - self._fetched_at

    def _is_stale(self) -> bool:
        return self._age_s() > STALE_MAX_S

    def _may_try(self) -> bool:
        return self._attempt is not None or (
            self._tried_at is None or self._clock() - self._tried_at >= ATTEMPT_INTERVAL_S
        )

    def _begin(self) -> asyncio.Task[None]:
        if self._attempt is None:
            self._tried_at = self._clock()
            self._attempt = asyncio.create_task(self._fetch())
        return self._attempt

    async def _refresh(self) -> None:
        if self._may_try():
            # The attempt continues for other requests if this one is cancelled.
            await asyncio.wait({self._begin()}, timeout=FETCH_TIMEOUT_S + 1)

    async def _fetch(self) -> None:
        try:
            keys = _parse(await _read(self.source))
        except (OSError, ValueError, msgspec.MsgspecError, ConfigurationError) as error:
            logger.warning(
                "cannot fetch the keys of the issuer at %s: %s", _without_query(self.source), error
            )
            return
        finally:
            self._attempt = None
        self._keys, self._fetched_at = keys, self._clock()
        if self._on_fetched is not None:
            self._on_fetched()

    async def close(self) -> None:
        if self._attempt is not None:
            self._attempt.cancel()
            await asyncio.gather(self._attempt, return_exceptions=True)


def _check_url(url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme != "https" and not is_loopback(parts.hostname or ""):
        raise ConfigurationError(
            f"jwt_jwks is {_without_query(url)}: without https, anyone on the network path could insert a key"
        )


def _read_keys(path: str) -> dict[str, IssuerKey]:
    """Return the keys of a file, when the server starts; ``ConfigurationError`` if it has none that can be trusted."""
    try:
        return _parse(_read_file(path))
    except (OSError, ValueError, msgspec.MsgspecError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigurationError(
            f"jwt_jwks names {path}, which is neither an https URL nor a file with keys: {reason}"
        ) from None


def _is_url(source: str) -> bool:
    return source.startswith(("https://", "http://"))


def _without_query(source: str) -> str:
    return source.partition("?")[0]


async def _read(source: str) -> bytes:
    """Return the bytes of the set, read in a thread or over the network."""
    if not _is_url(source):
        return await asyncio.to_thread(_read_file, source)
    content = await _download(source)
    _check_size(content)
    return content


def _check_size(content: bytes) -> None:
    if len(content) > BYTES_MAX:
        raise ValueError(f"it has more than {BYTES_MAX} bytes")


def _read_file(path: str) -> bytes:
    check_writers(Path(path), "the keys of jwt_jwks in")
    with Path(path).open("rb") as file:
        content = file.read(BYTES_MAX + 1)
    _check_size(content)
    return content


async def _download(url: str) -> bytes:
    """Fetch with one deadline in all, which also ends a response that arrives byte by byte."""
    client = await asyncio.to_thread(_make_client, url)
    import httpx  # which the thread has done

    content = b""
    try:
        async with asyncio.timeout(FETCH_TIMEOUT_S), client, client.stream("GET", url) as response:
            if response.status_code != 200:
                raise ValueError(f"status {response.status_code}")
            async for part in response.aiter_bytes():
                content += part
                if len(content) > BYTES_MAX:
                    break
    except TimeoutError:
        raise ValueError(f"it took more than {FETCH_TIMEOUT_S:g} s") from None
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ValueError(str(error) or type(error).__name__) from None
    return content


def _make_client(url: str) -> httpx.AsyncClient:
    """Return an HTTP client. Called in a thread: importing the library and reading the authorities take long."""
    import httpx

    # Without https the issuer is on this machine, and a proxy in between could insert a key.
    is_secure = url.startswith("https:")
    return httpx.AsyncClient(timeout=FETCH_TIMEOUT_S, follow_redirects=False, trust_env=is_secure)


def _parse(content: bytes) -> dict[str, IssuerKey]:
    """Return the usable keys by their ids; one without an id gets its index as id."""
    found: dict[str, IssuerKey] = {}
    for number, data in enumerate(msgspec.json.decode(content, type=_Set).keys[:KEYS_MAX]):
        if data.get("use", "sig") != "sig":
            continue
        try:
            key = jwt.PyJWK(data)
        except (jwt.PyJWTError, ValueError, TypeError):
            continue  # a type of key that is not supported
        # With a symmetric key, everyone who can read the set could sign tokens.
        if key.algorithm_name in ALGORITHMS:
            kid = str(data.get("kid") or f"#{number}")
            found[kid] = IssuerKey.of(kid, key, data)
    if not found:
        raise ValueError(f"it has no key for {', '.join(ALGORITHMS)}")
    return found
