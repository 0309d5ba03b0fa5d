"""Which hosts and origins the server accepts: the check against DNS rebinding and cross-site requests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from ipaddress import ip_address
from urllib.parse import urlsplit

from himalia.errors import Forbidden


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class OriginCheck:
    """Refuses requests that another site made a browser send: a foreign ``Origin``, or a ``Host`` that is not ours."""

    def __init__(self, host: str, allowed_hosts: Iterable[str], allowed_origins: Iterable[str]) -> None:
        self._hosts = {host.lower(), *(name.lower() for name in allowed_hosts)}
        self._any_host = "*" in self._hosts
        self._origins = {origin.lower().rstrip("/") for origin in allowed_origins}

    def check(self, headers: Mapping[str, str]) -> None:
        """Raise ``Forbidden`` unless host and origin are ours or allowed. A client without Origin is no browser."""
        authority = headers.get("host", "")
        if not self._is_our_host(host_of(authority)):
            raise Forbidden(f"host {authority!r} is not allowed; see --allowed-hosts")
        origin = headers.get("origin")
        if origin is None or origin.lower().rstrip("/") in self._origins:
            return
        if _authority_of(origin) != authority.lower() or not authority:
            raise Forbidden(f"origin {origin!r} is not allowed; see --allowed-origins")

    def _is_our_host(self, host: str) -> bool:
        # DNS rebinding needs a name: a browser with a bare address in its URL has connected to that address.
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


def host_of(authority: str) -> str:
    """Return the name or address in a ``Host`` header; empty if there is none."""
    try:
        return (urlsplit(f"//{authority}").hostname or "").lower()
    except ValueError:
        return ""
