"""Who may do what: keys and their rights, and which hosts and origins the server answers to."""

from __future__ import annotations

import hmac
import secrets
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from http.cookies import SimpleCookie
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

from himalia.errors import BadRequest, ConfigurationError, Forbidden, Unauthorized
from himalia.settings import Settings
from himalia.topics import check_pattern, matches

COOKIE = "himalia_token"


class Right(StrEnum):
    PUBLISH = "publish"
    SUBSCRIBE = "subscribe"
    MANAGE = "manage"
    EXECUTE = "execute"


class Principal:
    """Somebody who is known, and what they may do. ``named`` is false for the token and for ``--no-auth``."""

    def __init__(self, name: str, rights: Mapping[Right, Sequence[str]], *, named: bool = True) -> None:
        self.name = name
        self.named = named
        self._rights = rights
        self._known: dict[tuple[Right, str], bool] = {}

    def may(self, right: Right, topic: str) -> bool:
        """Whether one of the patterns of this right matches the topic."""
        known = self._known.get((right, topic))
        if known is None:
            patterns = self._rights.get(right, ())
            known = any(matches(pattern, topic) for pattern in patterns)
            if len(self._known) < 10_000:
                self._known[right, topic] = known
        return known

    def may_some(self, right: Right) -> bool:
        return bool(self._rights.get(right))

    def may_all(self, right: Right) -> bool:
        """Whether this right covers every topic."""
        return ">" in self._rights.get(right, ())

    def require(self, right: Right, topic: str) -> None:
        if not self.may(right, topic):
            raise Forbidden(
                f"key {self.name!r} has no right to {right} on {topic!r}", right=right, topic=topic
            )


def everything(name: str) -> Principal:
    return Principal(name, dict.fromkeys(Right, (">",)), named=False)


class Keyring:
    """Knows callers by their key. Comparison takes the same time whether or not a key is right."""

    def __init__(self, keys: Mapping[str, Principal], *, open_to_all: bool = False) -> None:
        self._keys = [(key.encode(), principal) for key, principal in keys.items()]
        self._nobody = everything("anonymous") if open_to_all else None

    def identify(self, headers: Mapping[str, str], query: str) -> Principal:
        """The caller, by ``X-API-Key``, ``Authorization: Bearer``, ``?token=`` or the page's cookie."""
        if self._nobody is not None:
            return self._nobody
        presented = _presented_key(headers, query)
        if presented is None:
            raise Unauthorized(
                "no key: send it as X-API-Key, as Authorization: Bearer, or as ?token= (it was printed at start)"
            )
        found: Principal | None = None
        for key, principal in self._keys:
            if hmac.compare_digest(key, presented.encode()):
                found = principal
        if found is None:
            raise Unauthorized("this key is not known here")
        return found


def _presented_key(headers: Mapping[str, str], query: str) -> str | None:
    if key := headers.get("x-api-key"):
        return key
    scheme, _, credentials = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and credentials:
        return credentials.strip()
    if token := parse_qs(query).get("token"):
        return token[0]
    if cookie := headers.get("cookie"):
        try:
            morsel = SimpleCookie(cookie).get(COOKIE)
        except Exception:  # a cookie that no parser understands is no key
            return None
        return unquote(morsel.value) if morsel else None
    return None


def make_keyring(settings: Settings) -> tuple[Keyring, str | None]:
    """The keyring that the settings ask for, and the token to print if there is one."""
    if not settings.auth:
        if not is_loopback(settings.host):
            raise ConfigurationError(
                f"--no-auth works on loopback only, not on {settings.host}: "
                "leave authentication on, or listen on 127.0.0.1"
            )
        return Keyring({}, open_to_all=True), None
    if settings.keys_file is not None:
        return Keyring(read_keys(settings.keys_file)), None
    token = settings.token or secrets.token_urlsafe(24)
    return Keyring({token: everything("token")}), token


def read_keys(path: Path) -> dict[str, Principal]:
    """The keys of a TOML file: a table per key under ``[keys.<name>]`` with ``key`` and patterns per right."""
    try:
        tables = tomllib.loads(path.read_text()).get("keys", {})
    except OSError as error:
        raise ConfigurationError(f"cannot read the keys file {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"the keys file {path} is not TOML: {error}") from None
    if not tables or not isinstance(tables, dict):
        raise ConfigurationError(f'the keys file {path} has no keys; add [keys.name] with key = "..."')
    keys: dict[str, Principal] = {}
    for name, table in tables.items():
        key, principal = _read_key(path, name, table)
        if key in keys:
            raise ConfigurationError(f"two keys in {path} are the same: {keys[key].name} and {name}")
        keys[key] = principal
    return keys


def _read_key(path: Path, name: str, table: object) -> tuple[str, Principal]:
    where = f"[keys.{name}] in {path}"
    if not isinstance(table, dict):
        raise ConfigurationError(f"{where} is not a table")
    key = table.get("key")
    if not isinstance(key, str) or len(key) < 16:
        raise ConfigurationError(f'{where} needs key = "..." of at least 16 characters')
    unknown = set(table) - {"key", *Right}
    if unknown:
        raise ConfigurationError(f"{where} has {sorted(unknown)[0]!r}; rights are {', '.join(Right)}")
    rights = {right: _read_patterns(where, right, table.get(right, [])) for right in Right}
    return key, Principal(name, rights)


def _read_patterns(where: str, right: str, patterns: object) -> list[str]:
    if not isinstance(patterns, list) or not all(isinstance(pattern, str) for pattern in patterns):
        raise ConfigurationError(f"{right} of {where} is not a list of topic patterns")
    try:
        return [check_pattern(pattern) for pattern in patterns]
    except BadRequest as error:
        raise ConfigurationError(f"{right} of {where}: {error.message}") from None


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class Frontier:
    """Refuses requests that a browser was tricked into: a foreign ``Origin``, or a ``Host`` that is not ours."""

    def __init__(self, host: str, allowed_hosts: Iterable[str], allowed_origins: Iterable[str]) -> None:
        self._hosts = {host.lower(), *(name.lower() for name in allowed_hosts)}
        self._any_host = "*" in self._hosts
        self._origins = {origin.lower().rstrip("/") for origin in allowed_origins}

    def check(self, headers: Mapping[str, str]) -> None:
        """``Forbidden`` unless host and origin are ours or allowed. No Origin means: not a browser."""
        authority = headers.get("host", "")
        if not self._is_our_host(_host_of(authority)):
            raise Forbidden(f"this server does not answer to host {authority!r}; see --allowed-hosts")
        origin = headers.get("origin")
        if origin is None or origin.lower().rstrip("/") in self._origins:
            return
        if _authority_of(origin) != authority.lower() or not authority:
            raise Forbidden(f"origin {origin!r} is not allowed; see --allowed-origins")

    def _is_our_host(self, host: str) -> bool:
        # Rebinding works by names: a browser that was given a bare address went to that address.
        return self._any_host or host == "localhost" or host in self._hosts or _is_address(host)


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _authority_of(origin: str) -> str:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


def _host_of(authority: str) -> str:
    try:
        return (urlsplit(f"//{authority}").hostname or "").lower()
    except ValueError:
        return ""
