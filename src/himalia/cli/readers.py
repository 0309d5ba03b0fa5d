"""Whoever reads our stdout, and how we learn that they are gone."""

from __future__ import annotations

import asyncio
import os
import stat
import sys
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


async def until_the_reader_leaves(work: Coroutine[Any, Any, Result]) -> Result:
    """Run ``work``; ``BrokenPipeError`` as soon as whoever reads our stdout is gone.

    Writing would tell too, but in a quiet topic the next write may be hours away: ``himalia tail x | head -1``.
    """
    loop = asyncio.get_running_loop()
    left = asyncio.Event()
    output = _pipe_of_stdout()
    if output is not None:
        # The writing end of a pipe is never readable; it only wakes the loop when the reading end is closed.
        loop.add_reader(output, left.set)
    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(left.wait())
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise BrokenPipeError
        return await working
    finally:
        if output is not None:
            loop.remove_reader(output)
        working.cancel()
        leaving.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


def _pipe_of_stdout() -> int | None:
    if os.name != "posix":
        return None
    try:
        output = sys.stdout.fileno()
        return output if stat.S_ISFIFO(os.fstat(output).st_mode) else None
    except (OSError, ValueError):
        return None
