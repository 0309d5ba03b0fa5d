"""HTTP to the server from driver and executors: one kept-alive connection, standard library only."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any, TypeVar
from urllib.parse import quote, urlencode, urlsplit

from himalia.errors import BadRequest, ConnectionFailed, HimaliaError
from himalia.spark.connector.planning import TopicState
from himalia.tls import client_context, hint_for
from himalia.token_proof import ANSWER_BYTES_MAX, Challenge, is_same_machine, is_web_token, not_proven

TIMEOUT_S = 60.0

T = TypeVar("T")


@dataclass(frozen=True)
class Address:
    """A server's base URL without a slash at the end, and the token to send it.

    Raises ``BadRequest`` for what no request could carry; the token is never shown.
    """

    url: str
    token: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not _is_url(self.url):
            raise BadRequest(f"{self.url!r} is not the URL of a server; it looks like http://127.0.0.1:8000")
        if self.token and not (self.token.isascii() and self.token.isprintable()):
            raise BadRequest("the token has a line break in it, or a letter that is not ASCII; copy it again")


class Connection:
    """Asks a server. Connects when it is first needed, and anew after a failure. Not for several threads."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._http: HTTPConnection | None = None

    def close(self) -> None:
        if self._http is not None:
            self._http.close()
            self._http = None

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask(
        self,
        method: str,
        path: str,
        read: Callable[[Any], T],
        query: Mapping[str, Any] | None = None,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> T:
        """What ``read`` makes of the server's answer, decoded.

        Raises the server's own error, or ``ConnectionFailed``: also if the answer is not JSON, or ``read`` does not
        find in it what it looks for.
        """
        with self.open(method, path, query, body, headers) as response:
            try:
                return read(json.loads(response.read()))
            except (ValueError, LookupError, TypeError):
                raise self.foreign(response.status) from None

    def foreign(self, status: int) -> ConnectionFailed:
        """The error for an answer that is not one of ours."""
        return _foreign(self._address.url, status)

    def _connect(self) -> HTTPConnection:
        """A connection whose server has proven that it knows the token, where any program could have taken the port."""
        http = _connect(self._address.url)
        token = self._address.token
        if token is None or isinstance(http, HTTPSConnection) or is_web_token(token):
            return http
        http.connect()
        if not is_same_machine(http.sock.getsockname()[0], http.sock.getpeername()[0]):
            return http
        challenge = Challenge(token)
        try:
            http.request("GET", f"{urlsplit(self._address.url).path}{challenge.path}")
            response = http.getresponse()
            # Without a length the answer is none of ours, and reading it could last as long as the connection.
            body = b"" if response.length is None else response.read(ANSWER_BYTES_MAX)
            if response.status == 401:
                raise _error(self._address.url, response.status, body)
            if response.status != 200 or not challenge.is_met(_proof_in(body)):
                raise ConnectionFailed(not_proven(self._address.url), url=self._address.url)
        except BaseException:
            http.close()
            raise
        # Never connect again by itself: what then answers would have proven nothing.
        http.auto_open = 0
        return http

    @contextmanager
    def open(
        self,
        method: str,
        path: str,
        query: Mapping[str, Any] | None = None,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Iterator[HTTPResponse]:
        """An answer to be read inside the block. What is left unread costs the connection, nothing else."""
        url = self._address.url
        target = f"{urlsplit(url).path}{path}"
        if query:
            target += "?" + urlencode({name: value for name, value in query.items() if value is not None})
        sent = {"Authorization": f"Bearer {self._address.token}"} if self._address.token else {}
        response: HTTPResponse | None = None
        try:
            http = self._http = self._http or self._connect()
            http.request(method, target, body, {**sent, **(headers or {})})
            response = http.getresponse()
            if response.status >= 300:
                raise _error(url, response.status, response.read())
            yield response
        except (OSError, HTTPException) as error:
            raise ConnectionFailed(_sentence(url, error), url=url) from error
        finally:
            if response is None or not response.isclosed():
                self.close()


def topic_path(topic: str, *rest: str) -> str:
    return "/".join(("/topics", quote(topic, safe=""), *rest))


def _is_url(url: str) -> bool:
    """Whether requests can be sent there: what is let through here would fail later, in words about something else."""
    try:
        parts = urlsplit(url)
        # Both raise ValueError: a port that is none, and a host that DNS has no way to write.
        host, _ = (parts.hostname or "").encode("idna"), parts.port
    except ValueError:
        return False
    has_blanks = " " in url or not url.isprintable()
    return parts.scheme in ("http", "https") and bool(host) and parts.path.isascii() and not has_blanks


def _connect(url: str) -> HTTPConnection:
    parts = urlsplit(url)
    host = parts.hostname or ""
    if parts.scheme == "https":
        return HTTPSConnection(host, parts.port, timeout=TIMEOUT_S, context=client_context())
    return HTTPConnection(host, parts.port, timeout=TIMEOUT_S)


def _proof_in(body: bytes) -> object:
    try:
        return json.loads(body)["proof"]
    except (ValueError, LookupError, TypeError):
        return None


def _error(url: str, status: int, body: bytes) -> HimaliaError:
    """The exception for an answer that is not a success."""
    try:
        told = json.loads(body)["error"]
        code, message = str(told["code"]), str(told["message"])
    except (ValueError, KeyError, TypeError):
        return _foreign(url, status)
    return HimaliaError.from_code(code, message, status=status)


def _foreign(url: str, status: int) -> ConnectionFailed:
    told = f"{url} answers {status} like no Himalia server does; check the URL"
    return ConnectionFailed(told, url=url, status=status)


def _sentence(url: str, error: Exception) -> str:
    if isinstance(error, ConnectionRefusedError):
        return f"no server answers at {url}; start one with 'himalia serve', or check the URL"
    if isinstance(error, TimeoutError):
        return f"{url} does not answer in time"
    reason = " ".join(str(error).split()) or type(error).__name__
    return f"the connection to {url} failed: {reason}{hint_for(url, reason)}"


PLAIN_URL = re.compile(r"https?://[^/?#@]+(/[^?#]*)?")


def address_of(given: Mapping[str, str]) -> Address:
    """The server that the options, the environment or this machine name. For the driver: executors are told."""
    url = _said(given.get("url")) or _said(os.environ.get("HIMALIA_URL"))
    token = _said(given.get("token"))
    if url and PLAIN_URL.fullmatch(url):
        # There is no token in such a URL, which would go before the environment's.
        known = token or _said(os.environ.get("HIMALIA_TOKEN"))
        if known:
            return Address(url.rstrip("/"), known)
    return _found(url, token)


def _said(value: str | None) -> str | None:
    """Without the line break that comes along from a file."""
    return value.strip() or None if value is not None else None


def _found(url: str | None, token: str | None) -> Address:
    try:
        # Imported here: it needs libraries that a cluster need not have.
        from himalia.client.discovery import ServerLocator
    except ModuleNotFoundError as error:
        raise BadRequest(
            f"give the options url, such as http://10.0.0.1:8000, and token: without the module {error.name!r}, "
            "as here, no server can be looked for"
        ) from None
    found = ServerLocator(url, token).find()
    return Address(found.url, found.token)


def topic_states(connection: Connection) -> dict[str, TopicState]:
    """Every topic that the token may see."""
    return connection.ask("GET", "/topics", _states_in)


def _states_in(told: Any) -> dict[str, TopicState]:
    states = [
        TopicState(str(each["name"]), str(each["epoch"]), int(each["first"]), int(each["end"]))
        for each in told["topics"]
    ]
    return {state.name: state for state in states}


def offsets_at(
    connection: Connection, topics: Iterable[TopicState], moment: datetime | None
) -> dict[str, int]:
    """For each topic the first offset whose record is not older than a moment, its end if there is none."""
    if moment is None:
        return {}
    return {state.name: _offset_at(connection, state, moment) for state in topics}


def _offset_at(connection: Connection, state: TopicState, moment: datetime) -> int:
    query = {"since": moment.astimezone(UTC).isoformat(), "limit": 1, "epoch": state.epoch}
    found = connection.ask("GET", topic_path(state.name, "messages"), _offsets_in, query)
    return found[0] if found else state.end


def _offsets_in(told: Any) -> list[int]:
    return [int(each["offset"]) for each in told["messages"]]
