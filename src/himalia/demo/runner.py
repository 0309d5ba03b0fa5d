"""Running the cells of ``cells.py`` on a kernel of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from himalia.client import Client
from himalia.errors import HimaliaError

WORKLOAD = Path(__file__).with_name("cells.py")
CELL = "# %% "
AGAIN = 2
"""So many of the last cells are run again and again."""
AGAIN_EVERY_S = 60.0
STOP_WITHIN_S = 5.0


def read_cells(text: str) -> list[str]:
    """The cells of a program in which a line that begins with ``# %%`` begins each; that line stays, as a comment."""
    parts = f"\n{text}".split(f"\n{CELL}")[1:]
    return [f"# {part.strip()}" for part in parts]


class Notebook:
    """The workload: all of its cells once, and from then on the last ones now and then."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._cells = read_cells(WORKLOAD.read_text(encoding="utf-8"))

    async def run(self) -> None:
        """Run until cancelled; the kernel ends with it. Raises a ``HimaliaError`` if there is no kernel, or no more."""
        kernel = await self._client.start_kernel()
        try:
            while True:
                await self._play(kernel.id, self._cells)
                await asyncio.sleep(AGAIN_EVERY_S)
                # Until they fail: somebody may have restarted the kernel, which then knows nothing.
                while await self._play(kernel.id, self._cells[-AGAIN:]):
                    await asyncio.sleep(AGAIN_EVERY_S)
        finally:
            await asyncio.shield(self._stop(kernel.id))

    async def _play(self, kernel_id: str, cells: Sequence[str]) -> bool:
        """Run cells, one after the other; says whether the last one went well."""
        for code in cells:
            done = await self._client.execute(kernel_id, code)
        return done.status == "ok"

    async def _stop(self, kernel_id: str) -> None:
        try:
            async with asyncio.timeout(STOP_WITHIN_S):
                await self._client.stop_kernel(kernel_id)
        except (HimaliaError, TimeoutError):
            pass  # it is gone already, or the server is and ends it
