"""``python -m himalia.demo``: on the server that runs on this machine, or ``HIMALIA_URL``, until Ctrl-C or SIGTERM."""

from __future__ import annotations

import asyncio
import signal
import sys

from himalia.client import Client
from himalia.demo.runner import Notebook
from himalia.demo.shop import Shop
from himalia.errors import HimaliaError


async def main() -> int:
    """Returns the exit code: 0 when it was told to stop, 1 when the server is gone."""
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
    """The client stays open until the notebook has stopped its kernel, however the shop ends."""
    notebook = asyncio.create_task(_play(Notebook(client)))
    try:
        await Shop(client).run()
    finally:
        notebook.cancel()
        await asyncio.wait({notebook})


async def _play(notebook: Notebook) -> None:
    """Without a kernel the orders come in all the same."""
    try:
        await notebook.run()
    except HimaliaError as error:
        print(f"warning: the demo has no kernel: {error.message}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
