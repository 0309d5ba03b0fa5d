"""Headers that every answer has: what a browser may do with it, and what it may not."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

POLICY = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
"""For everything that is not a page: nothing may be loaded, run or framed."""
TRANSPORT_SECURITY = "max-age=31536000"

_HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_ENCODED = [(name.lower().encode(), value.encode()) for name, value in _HEADERS.items()]
_OVER_TLS = (b"strict-transport-security", TRANSPORT_SECURITY.encode())


def security_headers() -> dict[str, str]:
    return dict(_HEADERS)


def add_security_headers(start: MutableMapping[str, Any], *, is_tls: bool) -> None:
    """Give an ``http.response.start`` those that it lacks; a page has a policy of its own."""
    headers = list(start.get("headers", []))
    present = {name.lower() for name, _ in headers}
    headers += [pair for pair in _ENCODED if pair[0] not in present]
    if is_tls:
        headers.append(_OVER_TLS)
    start["headers"] = headers
