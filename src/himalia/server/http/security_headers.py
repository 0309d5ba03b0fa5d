"""Security headers of every response: what a browser may do with it."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

from starlette.datastructures import Headers
from starlette.types import Scope

from himalia.server.identity.origin import host_of, is_loopback

POLICY = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
"""For everything that is not a page: nothing may be loaded, run or framed."""
TRANSPORT_SECURITY = ("Strict-Transport-Security", "max-age=31536000")

_HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_ENCODED = [(name.lower().encode(), value.encode()) for name, value in _HEADERS.items()]
_OVER_TLS = (TRANSPORT_SECURITY[0].lower().encode(), TRANSPORT_SECURITY[1].encode())


def demands_tls(scope: Scope) -> bool:
    """Whether the response to this request must have ``Strict-Transport-Security``.

    Browsers apply it to a host name with all its ports, so it is not sent for names of the browser's own machine,
    where other servers speak plain HTTP.
    """
    return scope["scheme"] in ("https", "wss") and not is_loopback(
        host_of(Headers(scope=scope).get("host", ""))
    )


def security_headers() -> dict[str, str]:
    return dict(_HEADERS)


def add_security_headers(start: MutableMapping[str, Any], *, demands_tls: bool) -> None:
    """Add those that an ``http.response.start`` lacks; a page has its own policy."""
    headers = list(start.get("headers", []))
    present = {name.lower() for name, _ in headers}
    headers += [pair for pair in _ENCODED if pair[0] not in present]
    if demands_tls:
        headers.append(_OVER_TLS)
    start["headers"] = headers


def with_transport_security(response: bytes) -> bytes:
    """Return a complete HTTP response with ``Strict-Transport-Security`` added."""
    status, _, rest = response.partition(b"\r\n")
    return b"%b\r\n%b: %b\r\n%b" % (status, *_OVER_TLS, rest)
