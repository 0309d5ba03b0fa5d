"""HTTP: one call to REST and its decoded response, or the lines of a streamed one."""

from __future__ import annotations

import ssl
from collections.abc import AsyncGenerator, Callable
from typing import Any, TypeVar

import httpx
import msgspec

from himalia.client.discovery import Address, ServerLocator
from himalia.client.errors import make_response_error, translate_errors
from himalia.client.server_proof import PROOF_TIMEOUT_S, is_local, prove
from himalia.connection_errors import make_unexpected_response_error
from himalia.ndjson import split_lines
from himalia.protocol import encode
from himalia.tls import client_context

NDJSON = "application/x-ndjson"
JSON = "application/json"

Decoded = TypeVar("Decoded")


class RestClient:
    """Calls the server's REST API. Calls are not retried: each returns or raises."""

    def __init__(self, locator: ServerLocator, tls: ssl.SSLContext | None, timeout_s: float) -> None:
        self._locator = locator
        self._tls = tls
        self._timeout_s = timeout_s
        self._http: httpx.AsyncClient | None = None

    async def close(self) -> None:
        if self._http is not None:
            await self._http.aclose()

    async def call(
        self,
        method: str,
        path: str,
        response_type: type[Decoded],
        *,
        body: msgspec.Struct | None = None,
        also: int | None = None,
        is_long: bool = False,
    ) -> Decoded:
        """Call REST and decode the response.

        ``also`` is a status that is not an error, besides the successful ones. ``is_long``: the response may take any
        time; the timeout bounds only connecting and sending.
        """
        address = self._locator.find()
        headers = address.headers if body is None else {**address.headers, "Content-Type": JSON}
        with translate_errors(address.url, httpx.HTTPError, httpx.InvalidURL):
            response = await self._client(address).request(
                method,
                address.url + path,
                content=None if body is None else encode(body),
                headers=headers,
                timeout=httpx.Timeout(self._timeout_s, read=None if is_long else self._timeout_s),
                extensions=_extensions(address),
            )
        if not response.is_success and response.status_code != also:
            raise make_response_error(address.url, response.status_code, response.content)
        try:
            # A response without content decodes to None.
            return msgspec.json.decode(response.content or b"null", type=response_type)
        except msgspec.MsgspecError:
            raise make_unexpected_response_error(address.url) from None

    async def stream(
        self, path: str, decode: Callable[[bytes], Decoded], **data: Any
    ) -> AsyncGenerator[Decoded, None]:
        """Yield the decoded lines of NDJSON. ``data`` is added to the error if the server refuses the call."""
        address = self._locator.find()
        request = self._client(address).build_request(
            "GET",
            address.url + path,
            headers={**address.headers, "Accept": NDJSON},
            extensions=_extensions(address),
        )
        with translate_errors(address.url, httpx.HTTPError, httpx.InvalidURL):
            response = await self._client(address).send(request, stream=True)
            try:
                if not response.is_success:
                    content = await response.aread()
                    raise make_response_error(address.url, response.status_code, content, **data)
                async for line in split_lines(response.aiter_bytes()):
                    yield decode(line)
            finally:
                await response.aclose()

    def _client(self, address: Address) -> httpx.AsyncClient:
        if self._http is None:
            verify = (self._tls or client_context()) if address.is_secure else False
            self._http = httpx.AsyncClient(
                timeout=self._timeout_s, verify=verify, trust_env=_is_proxied(address)
            )
        return self._http


def _is_proxied(address: Address) -> bool:
    return address.is_proxied("https" if address.is_secure else "http", "all")


def _extensions(address: Address) -> dict[str, Any]:
    """Verify the server on each new connection, before a request is sent on it; httpx calls ``trace`` then."""
    if not address.needs_proof or _is_proxied(address):
        return {}

    async def trace(event: str, info: dict[str, Any]) -> None:
        if event != "connection.connect_tcp.complete":
            return
        stream = info["return_value"]
        if not is_local(stream.get_extra_info("client_addr"), stream.get_extra_info("server_addr")):
            return
        try:
            await prove(
                address,
                lambda data: stream.write(data, timeout=PROOF_TIMEOUT_S),
                lambda: stream.read(65536, timeout=PROOF_TIMEOUT_S),
            )
        except BaseException:
            await stream.aclose()
            raise

    return {"trace": trace}
