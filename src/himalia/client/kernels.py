"""The REST calls about kernels, in the shape of Jupyter Server's."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from himalia.client.answers import Attached, Execution, Kernel, KernelSpecs, Submitted
from himalia.client.rest import Rest

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
