"""Kernels, and running code in them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from os import PathLike
from typing import Literal, TypedDict, Unpack, overload

from himalia.client.api.resource import Resource, path
from himalia.protocol.models import (
    Attached,
    AttachRequest,
    ExecuteRequest,
    Execution,
    InputRequest,
    Kernel,
    KernelSpecs,
    StartKernelRequest,
    Submitted,
)

File = str | PathLike[str]


class ExecuteOptions(TypedDict, total=False):
    """Options of ``execute``; ``himalia.protocol.models.ExecuteRequest`` has their defaults."""

    timeout_s: float | None
    """Interrupt the kernel if the code runs longer than this; time in the queue does not count."""
    priority: int
    """Of the waiting requests, the one with the highest priority is sent first."""
    silent: bool
    store_history: bool
    allow_stdin: bool
    """Let the code ask for input: an ``input_request`` appears in the topic, and ``answer_input`` replies."""
    stop_on_error: bool


class KernelResource(Resource):
    async def kernels(self) -> list[Kernel]:
        """List the running kernels whose output you may read."""
        return await self._rest().call("GET", _path(), list[Kernel])

    async def kernelspecs(self) -> KernelSpecs:
        """List the kinds of kernel that ``start_kernel`` can start."""
        return await self._rest().call("GET", "/api/kernelspecs", KernelSpecs)

    async def kernel(self, kernel_id: str) -> Kernel:
        """Return one kernel. Raises ``KernelNotFound``."""
        return await self._rest().call("GET", _path(kernel_id), Kernel)

    async def start_kernel(
        self,
        name: str | None = None,
        *,
        cwd: File | None = None,
        path: File | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Kernel:
        """Start a kernel, and return when it is ready. Its working directory is ``cwd``, a directory of the server's
        machine, or the nearest existing directory above ``path``."""
        request = StartKernelRequest(
            name=name,
            cwd=None if cwd is None else os.fspath(cwd),
            path=None if path is None else os.fspath(path),
            env=None if env is None else dict(env),
        )
        # The server limits how long a kernel may take to start.
        return await self._rest().call("POST", _path(), Kernel, body=request, is_long=True)

    async def attach_kernel(self, connection_file: File) -> Kernel:
        """Have the server listen to a kernel that another program started, and store its output from then on.
        A name without a directory is looked up in Jupyter's runtime directory."""
        request = AttachRequest(connection_file=os.fspath(connection_file))
        return await self._rest().call("POST", _path("attach"), Kernel, body=request, is_long=True)

    async def attach_all_kernels(self) -> Attached:
        """Have the server listen to every kernel of Jupyter's runtime directory that answers."""
        request = AttachRequest(all=True)
        return await self._rest().call("POST", _path("attach"), Attached, body=request, is_long=True)

    async def stop_kernel(self, kernel_id: str) -> None:
        """Stop a kernel; detach from one that was attached. Its topic stays."""
        await self._rest().call("DELETE", _path(kernel_id), type(None), is_long=True)

    async def interrupt_kernel(self, kernel_id: str) -> None:
        """Interrupt the running code, which ends with ``KeyboardInterrupt`` or its language's equivalent."""
        await self._rest().call("POST", _path(kernel_id, "interrupt"), type(None))

    async def restart_kernel(self, kernel_id: str) -> Kernel:
        """Restart the kernel's process. Running and waiting requests end as ``aborted``; id and topic stay."""
        return await self._rest().call("POST", _path(kernel_id, "restart"), Kernel, is_long=True)

    @overload
    async def execute(
        self, kernel_id: str, code: str, *, wait: Literal[True] = True, **options: Unpack[ExecuteOptions]
    ) -> Execution: ...

    @overload
    async def execute(
        self, kernel_id: str, code: str, *, wait: Literal[False], **options: Unpack[ExecuteOptions]
    ) -> Submitted: ...

    async def execute(
        self, kernel_id: str, code: str, *, wait: bool = True, **options: Unpack[ExecuteOptions]
    ) -> Execution | Submitted:
        """Run code in a kernel.

        With ``wait``, return its result when it has ended, whatever the outcome and however long it takes; without,
        return at once where its records begin: ``subscribe(submitted.topic, from_=submitted.offset)``. Never retried,
        because code may have side effects. See ``ExecuteOptions``; the ``timeout_s`` there does not bound this call.
        """
        request = ExecuteRequest(code=code, wait=wait, **options)
        target = _path(kernel_id, "execute")
        if wait:
            return await self._rest().call("POST", target, Execution, body=request, is_long=True)
        return await self._rest().call("POST", target, Submitted, body=request)

    async def execution(self, kernel_id: str, request_id: str, *, late: bool = False) -> Execution:
        """Return the result of a request: while it runs, after its kernel has ended, and as long as the log stores it.
        ``late`` includes output that arrived after the request ended, for example from a thread."""
        target = _path(kernel_id, "executions", request_id, late=True if late else None)
        return await self._rest().call("GET", target, Execution, is_long=True)

    async def cancel_execution(self, kernel_id: str, request_id: str) -> Execution:
        """End a request as ``cancelled``: drop it if it waits, interrupt it if it runs."""
        target = _path(kernel_id, "executions", request_id)
        return await self._rest().call("DELETE", target, Execution, is_long=True)

    async def answer_input(self, kernel_id: str, value: str) -> None:
        """Send the line that the running code waits for."""
        request = InputRequest(value=value)
        await self._rest().call("POST", _path(kernel_id, "input"), type(None), body=request)


def _path(*segments: str, late: bool | None = None) -> str:
    return path("api", "kernels", *segments, late=late)
