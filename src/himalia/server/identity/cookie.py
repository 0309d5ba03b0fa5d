"""The cookie of a browser session: its name, how it is set, and how it is read from a request."""

from __future__ import annotations

from starlette.types import Scope

NAME = "himalia_session"
COOKIES_TRIED_MAX = 4
"""Cookies of our name that are checked: another program on this host can add its own before ours."""


def is_secure(scope: Scope) -> bool:
    return scope["scheme"] in ("https", "wss")


def cookie_name(scope: Scope, *, secure: bool) -> str:
    """Return the name, with the server's port, because browsers send a cookie to every port of its host.

    A browser takes a ``__Host-`` cookie only from this very host, and only over TLS.
    """
    port = (scope.get("server") or ("", 0))[1] or 0
    return f"{'__Host-' if secure else ''}{NAME}_{port}"


def set_cookie(scope: Scope, value: str, age_s: int) -> str:
    """Return the header ``Set-Cookie``; with an age of 0 the browser deletes the cookie."""
    secure = is_secure(scope)
    name = cookie_name(scope, secure=secure)
    header = f"{name}={value}; Path=/; Max-Age={age_s}; HttpOnly; SameSite=Strict"
    return f"{header}; Secure" if secure else header


def session_secrets(scope: Scope, header: str) -> tuple[str, ...]:
    """Return the values of our cookie in the header ``Cookie``.

    Over TLS only the ``__Host-`` cookie counts: any other could have been set by a server without TLS. Takes linear
    time; the standard library's parser takes quadratic time on hostile input.
    """
    names = {cookie_name(scope, secure=True)}
    if not is_secure(scope):
        names.add(cookie_name(scope, secure=False))
    found = []
    for pair in header.split(";"):
        name, _, value = pair.partition("=")
        if name.strip() in names:
            found.append(value.strip())
            if len(found) == COOKIES_TRIED_MAX:
                break
    return tuple(found)
