"""What is finished once it has begun: a change and its record in the audit trail, whatever becomes of who asked."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Undivided:
    """Runs work in tasks of its own. A request is cancelled when its client goes away or its credential ends."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[Any]] = set()

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for it; it goes on if nobody waits any more."""
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return await asyncio.shield(task)

    async def settle(self, within_s: float) -> None:
        """Returns when nothing runs any more, or after that time."""
        if self._running:
            await asyncio.wait(self._running, timeout=within_s)
