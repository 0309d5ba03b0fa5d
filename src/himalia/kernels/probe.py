"""Whether something listens where a connection file says: asked once, before a kernel is attached."""

from __future__ import annotations

import asyncio
import os

from himalia.errors import BadRequest, KernelUnavailable
from himalia.kernels.connection_file import PORTS, ConnectionInfo

RETRY_S = 0.1
CONNECT_WITHIN_S = 3.0


async def check_listening(connection: ConnectionInfo, *, within_s: float) -> None:
    """``KernelUnavailable`` if nothing listens at the kernel's shell port within this time: it may be starting.

    ``BadRequest`` if there cannot be such a port. A kernel that listens and does not answer is not found out here.
    """
    if connection.transport not in ("tcp", "ipc") or not all(
        0 < getattr(connection, f"{port}_port") < 65536 for port in PORTS
    ):
        raise BadRequest("the connection file names an address that cannot be")
    deadline = asyncio.get_running_loop().time() + within_s
    while not await _is_listening(connection):
        if asyncio.get_running_loop().time() >= deadline:
            endpoint = connection.endpoint("shell")
            raise KernelUnavailable(f"nothing listens at {endpoint}: the kernel has ended", endpoint=endpoint)
        await asyncio.sleep(RETRY_S)


async def _is_listening(connection: ConnectionInfo) -> bool:
    if connection.transport == "ipc":
        return await asyncio.to_thread(os.path.exists, connection.endpoint("shell").removeprefix("ipc://"))
    try:
        async with asyncio.timeout(CONNECT_WITHIN_S):
            _, writer = await asyncio.open_connection(connection.ip, connection.shell_port)
    except (OSError, TimeoutError, ValueError):
        return False
    writer.close()
    return True
