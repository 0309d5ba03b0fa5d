"""The server's address: from the caller, the environment, or a server that runs on this machine."""

from __future__ import annotations

import os
from ipaddress import ip_address
from urllib.parse import parse_qs, urlsplit, urlunsplit
from urllib.request import getproxies, proxy_bypass

import msgspec

from himalia.errors import BadRequest, ConnectionFailed
from himalia.local_server import RunningServer, find_running_servers
from himalia.token_proof import is_web_token

NO_SERVER = "no server runs on this machine; start one with 'himalia serve', or give a URL (HIMALIA_URL)"
_SCHEMES = {"http": "http", "https": "https", "ws": "http", "wss": "https"}


class Address(msgspec.Struct, frozen=True):
    """A server's base URL, without a trailing slash, and the token for it."""

    url: str
    token: str | None

    @property
    def websocket_url(self) -> str:
        return "ws" + self.url.removeprefix("http") + "/ws"

    @property
    def is_secure(self) -> bool:
        return self.url.startswith("https:")

    @property
    def is_loopback(self) -> bool:
        """Whether the URL names this machine, to which requests never go through a proxy."""
        host = urlsplit(self.url).hostname or ""
        if host == "localhost":
            return True
        try:
            return ip_address(host).is_loopback
        except ValueError:
            return False

    @property
    def needs_proof(self) -> bool:
        """Whether a server on this machine must prove that it knows the token before the client sends it.

        Any program can take the port of a server that is down. TLS authenticates the server by itself, and a JSON Web
        Token is not known to the server beforehand.
        """
        return self.token is not None and not self.is_secure and not is_web_token(self.token)

    def is_proxied(self, *schemes: str) -> bool:
        """Return whether the environment sets a proxy for this server under one of these schemes."""
        if self.is_loopback or proxy_bypass(urlsplit(self.url).hostname or ""):
            return False
        return not getproxies().keys().isdisjoint(schemes)

    @property
    def is_overheard(self) -> bool:
        """Whether the token would cross a network unencrypted."""
        return self.token is not None and not self.is_loopback and not self.is_secure

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}


class ServerLocator:
    """Locates the server for each connection: after a restart it may have another port and token.

    URL and token are taken independently from the argument, else from ``HIMALIA_URL`` and ``HIMALIA_TOKEN``, else from
    the runtime file of a server on this machine. Of several servers it takes the newest, and from then on the one with
    the same log. A URL may be the one that ``himalia serve`` printed, with ``?token=``.
    """

    def __init__(self, url: str | None = None, token: str | None = None) -> None:
        self._url: str | None = None
        token_in_url = None
        if url := url or os.environ.get("HIMALIA_URL"):
            self._url, token_in_url = _parse_url(url)
        self._token = token or token_in_url or os.environ.get("HIMALIA_TOKEN") or None
        self._log: str | None = None

    def find(self) -> Address:
        """Return the current address. Raises ``ConnectionFailed`` if there is no server."""
        if self._url is not None and self._token is not None:
            return Address(self._url, self._token)
        server = self._find_running()
        if self._url is not None:
            return Address(self._url, server.token if server else None)
        if server is None:
            raise ConnectionFailed(NO_SERVER)
        return Address(server.url, self._token or server.token)

    def _find_running(self) -> RunningServer | None:
        servers = find_running_servers()
        if self._url is not None:
            return next((server for server in servers if server.url == self._url), None)
        if self._log is not None:
            servers = [server for server in servers if server.log == self._log]
        if not servers:
            return None
        self._log = servers[0].log
        return servers[0]


def _parse_url(url: str) -> tuple[str, str | None]:
    """Split a URL into base URL and token. The token never stays in the URL, where logs would show it."""
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        scheme, _ = _SCHEMES[parts.scheme.lower()], parts.port
    except (KeyError, ValueError):
        scheme = ""
    if not scheme or not parts.hostname:
        shown = url.partition("?")[0]
        raise BadRequest(f"{shown!r} is not the URL of a server; use the form http://127.0.0.1:8000")
    token = parse_qs(parts.query).get("token", [None])[0]
    return urlunsplit((scheme, parts.netloc, parts.path.rstrip("/"), "", "")), token
