"""One kept-alive HTTP connection to a server. Runs on the driver and on executors; standard library only."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from himalia.errors import ConnectionFailed, HimaliaError

TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Address:
    """A server's base URL without a slash at the end, and the token to send it."""

    url: str
    token: str | None = field(default=None, repr=False)


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

    def ask(self, method: str, path: str, query: Mapping[str, Any] | None = None, body: Any = None) -> Any:
        """What the server answers, decoded. Raises the server's own error, or ``ConnectionFailed``."""
        given = None if body is None else json.dumps(body).encode()
        with self.open(method, path, query, given, {"Content-Type": "application/json"}) as response:
            try:
                return json.loads(response.read())
            except ValueError:
                raise ConnectionFailed(_foreign(self._address.url, response.status)) from None

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
            http = self._http = self._http or _connect(url)
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


def _connect(url: str) -> HTTPConnection:
    parts = urlsplit(url)
    host = parts.hostname or ""
    if parts.scheme == "https":
        return HTTPSConnection(host, parts.port, timeout=TIMEOUT_S, context=ssl.create_default_context())
    return HTTPConnection(host, parts.port, timeout=TIMEOUT_S)


def _error(url: str, status: int, body: bytes) -> HimaliaError:
    """The exception for an answer that is not a success."""
    try:
        told = json.loads(body)["error"]
        code, message = str(told["code"]), str(told["message"])
    except (ValueError, KeyError, TypeError):
        return ConnectionFailed(_foreign(url, status), status=status)
    found = _class_of(code)
    error = found.__new__(found)
    # Past the class's own __init__: the server has written the sentence already.
    HimaliaError.__init__(error, message, code=code, status=status)
    return error


def _class_of(code: str) -> type[HimaliaError]:
    """The topmost class of a code; the root for one that is not known here."""
    level: list[type[HimaliaError]] = HimaliaError.__subclasses__()
    while level:
        for known in level:
            if "code" in vars(known) and known.code == code:
                return known
        level = [below for known in level for below in known.__subclasses__()]
    return HimaliaError


def _foreign(url: str, status: int) -> str:
    return f"{url} answers {status} like no Himalia server does; check the URL"


def _sentence(url: str, error: Exception) -> str:
    if isinstance(error, ConnectionRefusedError):
        return f"no server answers at {url}; start one with 'himalia serve', or check the URL"
    if isinstance(error, TimeoutError):
        return f"{url} does not answer in time"
    reason = " ".join(str(error).split()) or type(error).__name__
    if "CERTIFICATE_VERIFY_FAILED" in reason:
        reason += "; if the certificate is your own, name its file in SSL_CERT_FILE"
    return f"the connection to {url} failed: {reason}"
