"""The base of the client's REST resources: the HTTP client, created on first use, and paths."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from himalia.client.discovery import ServerLocator

if TYPE_CHECKING:
    from himalia.client.rest import RestClient


class Resource:
    """Base of the classes whose methods call REST. No call is retried."""

    def __init__(self, locator: ServerLocator, tls: ssl.SSLContext | None, timeout_s: float) -> None:
        self._locator = locator
        self._tls = tls
        self._timeout_s = timeout_s
        self._rest_client: RestClient | None = None

    def _rest(self) -> RestClient:
        if self._rest_client is None:
            # httpx takes long to import, and publishing and subscribing do not need it.
            from himalia.client.rest import RestClient

            self._rest_client = RestClient(self._locator, self._tls, self._timeout_s)
        return self._rest_client

    async def _close_rest(self) -> None:
        rest, self._rest_client = self._rest_client, None
        if rest is not None:
            await rest.close()


def path(*segments: str, **query: Any) -> str:
    """Join the segments of a path, quoted, and the parameters of its query that are not None."""
    given = {name: value for name, value in query.items() if value is not None}
    quoted = "/".join(quote(segment, safe="") for segment in segments)
    return f"/{quoted}?{urlencode(given)}" if given else f"/{quoted}"
