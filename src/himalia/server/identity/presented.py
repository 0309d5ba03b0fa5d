"""What a request shows of its caller: a key or token in a header or the address, or the cookie of a session."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import parse_qsl

from starlette.datastructures import Headers
from starlette.types import Scope

from himalia.errors import BadRequest, Forbidden
from himalia.server.identity.cookie import session_secrets

OUR_OWN_PAGE = ("same-origin", "none")
"""``Sec-Fetch-Site`` of a request by our own page, and of an address that a person typed or pasted."""


class Shown(NamedTuple):
    """Either a key (or JSON Web Token), with whether a header carried it, or the secrets of sessions."""

    key: str | None = None
    by_header: bool = False
    sessions: tuple[str, ...] = ()


def shown_by(scope: Scope) -> Shown:
    """The first of ``X-API-Key``, ``Authorization: Bearer``, ``?token=`` and the cookie that is there.

    ``BadRequest`` if one of them is there twice: what is checked and what is meant could then differ.
    """
    headers = Headers(scope=scope)
    if key := key_in_headers(headers):
        return Shown(key, by_header=True)
    if key := key_in_query(scope):
        return Shown(key)
    cookie = headers.get("cookie")
    # The page of another port of this host is same-site, so the browser sends it our cookie along.
    if cookie and headers.get("sec-fetch-site", "same-origin") in OUR_OWN_PAGE:
        return Shown(sessions=session_secrets(scope, cookie))
    return Shown()


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
        raise BadRequest(f"{what} is there {len(values)} times; send one key")
    return values[0] if values else ""


def check_link(scope: Scope) -> None:
    """``Forbidden`` if another site led the browser to an address that signs in: it would choose who is signed in."""
    headers = Headers(scope=scope)
    site = headers.get("sec-fetch-site")
    if site is None:
        # A browser that does not say may still name the page that the link stood on.
        referrer = headers.get("referer")
        is_ours = referrer is None or _authority(referrer) == headers.get("host", "").lower()
    else:
        is_ours = site in OUR_OWN_PAGE
    if not is_ours:
        raise Forbidden(
            "another site led here with a token, and could sign you in as somebody else; if you trust the address, "
            "paste it into the browser yourself"
        )


def _authority(address: str) -> str:
    return address.partition("://")[2].partition("/")[0].lower()
