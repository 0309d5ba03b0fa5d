"""The REST calls of a client: topics, messages, tables and kernels."""

from __future__ import annotations

import os
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

import httpx
import msgspec

from himalia.client.discovery import Address, Finder
from himalia.client.errors import error_from_answer, translating
from himalia.client.events import Event
from himalia.client.server_proof import PROOF_TIMEOUT_S, is_here, prove
from himalia.errors import ConnectionFailed, TopicExists
from himalia.protocol.models import (
    Attached,
    ClockConfirmed,
    Execution,
    Health,
    Kernel,
    KernelSpecs,
    RevokedResponse,
    SessionList,
    SessionSummary,
    Stats,
    StoredRecord,
    Submitted,
    TableList,
    TableRows,
    TableSummary,
    TopicList,
    TopicSummary,
)
from himalia.record import Retention
from himalia.tls import client_context

NDJSON = "application/x-ndjson"

Answer = TypeVar("Answer")


_decode_record = msgspec.json.Decoder(StoredRecord).decode


class Rest:
    """Calls the server's REST interface. Nothing is retried: each call answers or raises."""

    def __init__(self, finder: Finder, tls: ssl.SSLContext | None, timeout_s: float) -> None:
        self._finder = finder
        self._tls = tls
        self._timeout_s = timeout_s
        self._http: httpx.AsyncClient | None = None

    async def close(self) -> None:
        if self._http is not None:
            await self._http.aclose()

    async def create_topic(self, name: str, retention: Retention | None, *, exist_ok: bool) -> bool:
        body: dict[str, Any] = {"name": name}
        if retention is not None:
            body["retention"] = msgspec.to_builtins(retention)
        try:
            await self.call("POST", "/topics", dict[str, Any], json=body)
        except TopicExists:
            if not exist_ok:
                raise
            return False
        return True

    async def delete_topic(self, name: str) -> None:
        await self.call("DELETE", f"/topics/{quote(name, safe='')}", dict[str, Any])

    async def topics(self) -> list[TopicSummary]:
        return (await self.call("GET", "/topics", TopicList)).topics

    async def stats(self) -> Stats:
        return await self.call("GET", "/stats", Stats)

    async def health(self) -> Health:
        # 503 is a server that says what is wrong with it, which is what was asked.
        return await self.call("GET", "/health", Health, also=503)

    async def confirm_clock(self) -> ClockConfirmed:
        return await self.call("POST", "/clock/confirm", ClockConfirmed)

    async def tables(self) -> list[TableSummary]:
        return (await self.call("GET", "/tables", TableList)).tables

    async def table(self, name: str, parameters: dict[str, Any]) -> TableRows:
        given = {name: value for name, value in parameters.items() if value is not None}
        return await self.call("GET", f"/tables/{quote(name, safe='')}?{urlencode(given)}", TableRows)

    async def sessions(self) -> list[SessionSummary]:
        return (await self.call("GET", "/sessions", SessionList)).sessions

    async def revoke_session(self, id: str) -> None:
        await self.call("DELETE", f"/sessions/{quote(id, safe='')}", RevokedResponse)

    async def revoke_sessions(self, caller: str | None) -> int:
        query = "" if caller is None else "?" + urlencode({"caller": caller})
        return (await self.call("DELETE", f"/sessions{query}", RevokedResponse)).count

    async def read(self, topic: str, parameters: dict[str, Any]) -> AsyncGenerator[Event, None]:
        address = self._finder.find()
        given = {name: value for name, value in parameters.items() if value is not None}
        request = self._client(address).build_request(
            "GET",
            f"{address.url}/topics/{quote(topic, safe='')}/messages",
            params=given,
            headers={**address.headers, "Accept": NDJSON},
            extensions=_extensions(address),
        )
        with translating(address.url, httpx.HTTPError, httpx.InvalidURL):
            response = await self._client(address).send(request, stream=True)
            try:
                if not response.is_success:
                    raise error_from_answer(
                        address.url, response.status_code, await response.aread(), topic=topic
                    )
                async for line in _lines(response):
                    stored = _decode_record(line)
                    yield Event.of(topic, stored.offset, stored.ts, stored.message)
            finally:
                await response.aclose()

    async def call(
        self,
        method: str,
        path: str,
        answer: type[Answer],
        *,
        json: Any = None,
        also: int | None = None,
        is_long: bool = False,
    ) -> Answer:
        """One call and what it answers. ``is_long``: the answer may take any time, only the rest of it may not."""
        address = self._finder.find()
        timeout = httpx.Timeout(self._timeout_s, read=None if is_long else self._timeout_s)
        with translating(address.url, httpx.HTTPError, httpx.InvalidURL):
            response = await self._client(address).request(
                method,
                address.url + path,
                json=json,
                headers=address.headers,
                timeout=timeout,
                extensions=_extensions(address),
            )
        if not response.is_success and response.status_code != also:
            raise error_from_answer(address.url, response.status_code, response.content)
        try:
            # Nothing at all is the answer of what has nothing to say.
            return msgspec.json.decode(response.content or b"null", type=answer)
        except msgspec.MsgspecError:
            raise ConnectionFailed(
                f"{address.url} answers like no Himalia server does; check the URL"
            ) from None

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
    """Have each new connection checked before anything is sent on it: the library tells when there is one."""
    if not address.needs_proof or _is_proxied(address):
        return {}

    async def trace(event: str, info: dict[str, Any]) -> None:
        if event != "connection.connect_tcp.complete":
            return
        stream = info["return_value"]
        if not is_here(stream.get_extra_info("client_addr"), stream.get_extra_info("server_addr")):
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


async def _lines(response: httpx.Response) -> AsyncIterator[bytes]:
    """The lines of a body. httpx's own ``aiter_lines`` also breaks at U+2028 and others, which JSON may contain."""
    rest = b""
    async for part in response.aiter_bytes():
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            yield line
    if rest:
        yield rest


Folder = str | os.PathLike[str]


class KernelCalls:
    """What the server is asked about kernels. Nothing is retried: to run code twice is not to run it once."""

    def __init__(self, rest: Rest) -> None:
        self._rest = rest

    async def all(self) -> list[Kernel]:
        return await self._rest.call("GET", "/api/kernels", list[Kernel])

    async def specs(self) -> KernelSpecs:
        return await self._rest.call("GET", "/api/kernelspecs", KernelSpecs)

    async def get(self, kernel_id: str) -> Kernel:
        return await self._rest.call("GET", _path(kernel_id), Kernel)

    async def start(
        self, name: str | None, *, cwd: Folder | None, path: Folder | None, env: Mapping[str, str] | None
    ) -> Kernel:
        wanted = {
            "name": name,
            "cwd": None if cwd is None else os.fspath(cwd),
            "path": None if path is None else os.fspath(path),
            "env": None if env is None else dict(env),
        }
        body = {name: value for name, value in wanted.items() if value is not None}
        # The server has its own limit on how long a kernel may take.
        return await self._rest.call("POST", "/api/kernels", Kernel, json=body, is_long=True)

    async def attach(self, connection_file: str | os.PathLike[str]) -> Kernel:
        body = {"connection_file": os.fspath(connection_file)}
        return await self._rest.call("POST", "/api/kernels/attach", Kernel, json=body, is_long=True)

    async def attach_all(self) -> Attached:
        return await self._rest.call(
            "POST", "/api/kernels/attach", Attached, json={"all": True}, is_long=True
        )

    async def stop(self, kernel_id: str) -> None:
        await self._rest.call("DELETE", _path(kernel_id), type(None), is_long=True)

    async def interrupt(self, kernel_id: str) -> None:
        await self._rest.call("POST", _path(kernel_id, "interrupt"), type(None))

    async def restart(self, kernel_id: str) -> Kernel:
        return await self._rest.call("POST", _path(kernel_id, "restart"), Kernel, is_long=True)

    async def execute(self, kernel_id: str, options: Mapping[str, Any]) -> Execution:
        body = {**options, "wait": True}
        return await self._rest.call("POST", _path(kernel_id, "execute"), Execution, json=body, is_long=True)

    async def submit(self, kernel_id: str, options: Mapping[str, Any]) -> Submitted:
        body = {**options, "wait": False}
        return await self._rest.call("POST", _path(kernel_id, "execute"), Submitted, json=body)

    async def execution(self, kernel_id: str, request_id: str, *, late: bool) -> Execution:
        path = _path(kernel_id, "executions", request_id) + ("?late=true" if late else "")
        return await self._rest.call("GET", path, Execution, is_long=True)

    async def cancel(self, kernel_id: str, request_id: str) -> Execution:
        return await self._rest.call(
            "DELETE", _path(kernel_id, "executions", request_id), Execution, is_long=True
        )

    async def answer_input(self, kernel_id: str, value: str) -> None:
        await self._rest.call("POST", _path(kernel_id, "input"), type(None), json={"value": value})


def _path(kernel_id: str, *more: str) -> str:
    return "/api/kernels/" + "/".join(quote(part, safe="") for part in (kernel_id, *more))
