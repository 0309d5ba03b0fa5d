"""The server's URL and token: checked, and resolved from options, environment and discovery."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from himalia.errors import BadRequest

# A URL with user, query or fragment may carry a token, which then takes precedence over the environment's.
_PLAIN_URL = re.compile(r"https?://[^/?#@]+(/[^?#]*)?")


@dataclass(frozen=True)
class ServerAddress:
    """A server's base URL without a trailing slash, and its token, which ``repr`` does not show.

    Raises ``BadRequest`` for a URL or token that no request could carry.
    """

    url: str
    token: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not _is_url(self.url):
            raise BadRequest(f"{self.url!r} is not the URL of a server; use the form http://127.0.0.1:8000")
        if self.token and not (self.token.isascii() and self.token.isprintable()):
            raise BadRequest(
                "the token contains a line break or a character that is not ASCII; copy it again"
            )


def _is_url(url: str) -> bool:
    """Whether requests can be sent to it. Checked early: later failures would have less helpful messages."""
    try:
        parts = urlsplit(url)
        # Both raise ValueError: an invalid port, and a host name that cannot be encoded for DNS.
        host, _ = (parts.hostname or "").encode("idna"), parts.port
    except ValueError:
        return False
    has_blanks = " " in url or not url.isprintable()
    return parts.scheme in ("http", "https") and bool(host) and parts.path.isascii() and not has_blanks


def resolve_address(given: Mapping[str, str]) -> ServerAddress:
    """Return the server that the options, the environment or a local server's files name.

    Called on the driver; executors receive its result.
    """
    url = _strip(given.get("url")) or _strip(os.environ.get("HIMALIA_URL"))
    token = _strip(given.get("token"))
    if url and _PLAIN_URL.fullmatch(url):
        known_token = token or _strip(os.environ.get("HIMALIA_TOKEN"))
        if known_token:
            return ServerAddress(url.rstrip("/"), known_token)
    return _discover(url, token)


def _strip(value: str | None) -> str | None:
    """Remove surrounding blanks, such as the line break of a value that was read from a file."""
    return value.strip() or None if value is not None else None


def _discover(url: str | None, token: str | None) -> ServerAddress:
    try:
        # Imported here because it needs packages that the machines of a cluster may lack.
        from himalia.client.discovery import ServerLocator
    except ModuleNotFoundError as error:
        raise BadRequest(
            f"set the options url, such as http://10.0.0.1:8000, and token: server discovery needs the module "
            f"{error.name!r}, which is not installed here"
        ) from None
    found = ServerLocator(url, token).find()
    return ServerAddress(found.url, found.token)
