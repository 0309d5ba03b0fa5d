"""Finds the credentials in a request: a key or token in a header or the URL, or the cookie of a session."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import parse_qsl

from starlette.datastructures import Headers
from starlette.types import Scope

from himalia.errors import BadRequest, Forbidden
from himalia.server.identity.cookie import session_secrets

OUR_OWN_PAGE = ("same-origin", "none")
"""``Sec-Fetch-Site`` of a request by our own page, and of a URL that a person typed or pasted."""


class RequestCredentials(NamedTuple):
    """Either a key (or JSON Web Token), with whether it was in a header, or the secrets of sessions, or nothing."""

    key: str | None = None
    by_header: bool = False
    sessions: tuple[str, ...] = ()


def credentials_of(scope: Scope) -> RequestCredentials:
    """Return the first of ``X-API-Key``, ``Authorization: Bearer``, ``?token=`` and the cookie.

    ``BadRequest`` if one of them occurs twice: the checked one could then be another than the intended one.
    """
    headers = Headers(scope=scope)
    if key := key_in_headers(headers):
        return RequestCredentials(key, by_header=True)
    if key := key_in_query(scope):
        return RequestCredentials(key)
    cookie = headers.get("cookie")
    # A page of another port of this host is same-site, so the browser sends our cookie with its requests.
    if cookie and headers.get("sec-fetch-site", "same-origin") in OUR_OWN_PAGE:
        return RequestCredentials(sessions=session_secrets(scope, cookie))
    return RequestCredentials()


def key_in_headers(headers: Headers) -> str | None:
    if key := _only(headers.getlist("x-api-key"), "the header X-API-Key"):
        return key
    scheme, _, value = _only(headers.getlist("authorization"), "the header Authorization").partition(" ")
    return value.strip() or None if scheme.lower() == "bearer" else None


def key_in_query(scope: Scope) -> str | None:
    query = scope["query_string"].decode("latin-1")
    if "token" not in query:
        return None
    values = [value for name, value in parse_qsl(query, keep_blank_values=True) if name == "token"]
    return _only(values, "the parameter token") or None


def _only(values: list[str], what: str) -> str:
    if len(values) > 1:
        raise BadRequest(f"{what} occurs {len(values)} times; send one key")
    return values[0] if values else ""


def check_link(scope: Scope) -> None:
    """Raise ``Forbidden`` if another site led the browser to a URL that signs in: it would choose who is signed in."""
    headers = Headers(scope=scope)
    site = headers.get("sec-fetch-site")
    if site is None:
        # A browser without this header may still send the address of the page with the link.
        referrer = headers.get("referer")
        is_ours = referrer is None or _authority(referrer) == headers.get("host", "").lower()
    else:
        is_ours = site in OUR_OWN_PAGE
    if not is_ours:
        raise Forbidden(
            "another site opened this link with a token, and could sign you in as another user; if you trust the "
            "address, paste it into the browser yourself"
        )


def _authority(address: str) -> str:
    return address.partition("://")[2].partition("/")[0].lower()
