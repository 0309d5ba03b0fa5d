"""``python -m himalia.demo``: on the server that runs on this machine, or ``HIMALIA_URL``, until Ctrl-C or SIGTERM."""

from __future__ import annotations

import asyncio
import signal
import sys

from himalia.client import Client
from himalia.demo.runner import Workload
from himalia.demo.shop import Shop
from himalia.errors import HimaliaError


async def main() -> int:
    """Run the demo; return 0 after a signal, 1 if the server is gone."""
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    try:
        async with Client() as client:
            await _run(client)
    except asyncio.CancelledError:
        return 0
    except HimaliaError as error:
        print(f"error: {error.message}", file=sys.stderr, flush=True)
    return 1


async def _run(client: Client) -> None:
    """Run shop and cells; when the shop ends, wait until the kernel is stopped."""
    workload = asyncio.create_task(_run_workload(client))
    try:
        await Shop(client).run()
    finally:
        workload.cancel()
        await asyncio.wait({workload})


async def _run_workload(client: Client) -> None:
    """Run the cells; without a kernel warn, and let the shop continue."""
    try:
        await Workload(client).run()
    except HimaliaError as error:
        print(f"warning: the demo has no kernel: {error.message}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
