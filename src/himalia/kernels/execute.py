"""Run code in a kernel and return its result."""

from __future__ import annotations

import asyncio

from himalia.iopub.result import ExecutionResult
from himalia.kernels.history import read_execution
from himalia.kernels.kernel import Kernel
from himalia.kernels.request import Code


async def execute_code(
    kernel: Kernel,
    code: str,
    *,
    priority: int = 0,
    timeout_s: float | None = None,
    silent: bool = False,
    store_history: bool = True,
    stop_on_error: bool = True,
) -> ExecutionResult:
    """Run code and wait until its request is closed.

    The result is read from the log, after the request's last record is committed. Its ``status`` reports code that
    fails and a kernel that dies; neither raises. Cancelling this call cancels the request.
    """
    request = await kernel.execute(
        Code(
            code=code,
            priority=priority,
            timeout_s=timeout_s,
            silent=silent,
            store_history=store_history,
            stop_on_error=stop_on_error,
        )
    )
    try:
        await asyncio.shield(request.closed)
    except asyncio.CancelledError:
        if not request.closed.done():
            kernel.scheduler.cancel(request.id)
        raise
    return await read_execution(kernel.log, kernel.topic, kernel.id, request.id, request.offset)
