"""Runs the cells of ``cells.py`` on a kernel of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from himalia.client import Client
from himalia.errors import HimaliaError

CELLS = Path(__file__).with_name("cells.py")
CELL = "# %% "
REPEATED_CELLS = 2
"""The number of cells, at the end, that are repeated."""
REPEAT_EVERY_S = 60.0
STOP_WITHIN_S = 5.0


def read_cells(text: str) -> list[str]:
    """Return the cells of a program; a line that begins with ``# %%`` starts each and stays in it, as a comment."""
    parts = f"\n{text}".split(f"\n{CELL}")[1:]
    return [f"# {part.strip()}" for part in parts]


class Workload:
    """Runs every cell once, then repeats the last ones."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._cells = read_cells(CELLS.read_text(encoding="utf-8"))

    async def run(self) -> None:
        """Run until cancelled, then stop the kernel. Raise ``HimaliaError`` if the kernel does not start or is gone."""
        kernel = await self._client.start_kernel()
        try:
            while True:
                await self._run_cells(kernel.id, self._cells)
                await asyncio.sleep(REPEAT_EVERY_S)
                # Until they fail: after a restart the kernel has lost its variables.
                while await self._run_cells(kernel.id, self._cells[-REPEATED_CELLS:]):
                    await asyncio.sleep(REPEAT_EVERY_S)
        finally:
            await asyncio.shield(self._stop(kernel.id))

    async def _run_cells(self, kernel_id: str, cells: Sequence[str]) -> bool:
        """Run cells, one after the other; return whether the last one succeeded."""
        for code in cells:
            done = await self._client.execute(kernel_id, code)
        return done.status == "ok"

    async def _stop(self, kernel_id: str) -> None:
        try:
            async with asyncio.timeout(STOP_WITHIN_S):
                await self._client.stop_kernel(kernel_id)
        except (HimaliaError, TimeoutError):
            pass  # the kernel has ended, or the server has and ends it
