"""HTTP from driver and executors to the server: one kept-alive connection, standard library only."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any, TypeVar
from urllib.parse import urlencode, urlsplit

from himalia.connection_errors import make_connection_error, make_unexpected_response_error
from himalia.errors import ConnectionFailed, HimaliaError
from himalia.spark.connector.address import ServerAddress
from himalia.tls import client_context
from himalia.token_proof import ANSWER_BYTES_MAX, Challenge, is_same_machine, is_web_token, not_proven

TIMEOUT_S = 60.0

T = TypeVar("T")


class ServerConnection:
    """A connection to a server, opened by the first request and again after a failure. For one thread."""

    def __init__(self, address: ServerAddress) -> None:
        self._address = address
        self._http: HTTPConnection | None = None

    def close(self) -> None:
        if self._http is not None:
            self._http.close()
            self._http = None

    def __enter__(self) -> ServerConnection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def request(
        self,
        method: str,
        path: str,
        parse: Callable[[Any], T],
        query: Mapping[str, Any] | None = None,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> T:
        """Send a request and return its JSON response, decoded by ``parse``.

        Raises the server's own error, or ``ConnectionFailed``: also if the response is not JSON, or lacks what
        ``parse`` looks up in it.
        """
        with self.open(method, path, query, body, headers) as response:
            try:
                return parse(json.loads(response.read()))
            except (ValueError, LookupError, TypeError):
                raise self.unexpected_response(response.status) from None

    def unexpected_response(self, status: int) -> ConnectionFailed:
        """Make the error for a response that no Himalia server sends."""
        return make_unexpected_response_error(self._address.url, status)

    @contextmanager
    def open(
        self,
        method: str,
        path: str,
        query: Mapping[str, Any] | None = None,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Iterator[HTTPResponse]:
        """Send a request and yield its response. Leaving the block before its end closes the connection."""
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
                raise _make_error(url, response.status, response.read())
            yield response
        except (OSError, HTTPException) as error:
            raise make_connection_error(url, error) from error
        finally:
            if response is None or not response.isclosed():
                self.close()

    def _connect(self) -> HTTPConnection:
        """Connect; on this machine, where any program can listen on a port, the server proves first that it has the
        token, before the token is sent to it."""
        http = _make_connection(self._address.url)
        token = self._address.token
        if token is None or isinstance(http, HTTPSConnection) or is_web_token(token):
            return http
        http.connect()
        if not is_same_machine(http.sock.getsockname()[0], http.sock.getpeername()[0]):
            return http
        try:
            self._require_proof(http, Challenge(token))
        except BaseException:
            http.close()
            raise
        # Do not reconnect implicitly: the next listener would not have proven anything.
        http.auto_open = 0
        return http

    def _require_proof(self, http: HTTPConnection, challenge: Challenge) -> None:
        url = self._address.url
        http.request("GET", f"{urlsplit(url).path}{challenge.path}")
        response = http.getresponse()
        # A response without a length is not the server's, and reading it could block as long as the connection lasts.
        body = b"" if response.length is None else response.read(ANSWER_BYTES_MAX)
        if response.status == 401:
            raise _make_error(url, response.status, body)
        if response.status != 200 or not challenge.is_met(_extract_proof(body)):
            raise ConnectionFailed(not_proven(url), url=url)


def _make_connection(url: str) -> HTTPConnection:
    parts = urlsplit(url)
    host = parts.hostname or ""
    if parts.scheme == "https":
        return HTTPSConnection(host, parts.port, timeout=TIMEOUT_S, context=client_context())
    return HTTPConnection(host, parts.port, timeout=TIMEOUT_S)


def _extract_proof(body: bytes) -> object:
    try:
        return json.loads(body)["proof"]
    except (ValueError, LookupError, TypeError):
        return None


def _make_error(url: str, status: int, body: bytes) -> HimaliaError:
    """Make the exception for a response that is not a success."""
    try:
        error = json.loads(body)["error"]
        code, message = str(error["code"]), str(error["message"])
    except (ValueError, KeyError, TypeError):
        return make_unexpected_response_error(url, status)
    return HimaliaError.from_code(code, message, status=status)
