"""Background tasks that belong to one object."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class TaskSet:
    """The background tasks of one object, on one event loop.

    Keeps a reference to each task while it runs, because asyncio keeps none, and logs every task that fails: nothing
    awaits these tasks, so the exception would otherwise be lost. Empty (false) when no task is running.
    """

    def __init__(self, logger: logging.Logger, failure: str) -> None:
        """``failure`` is the log line of a task that failed; its traceback is appended."""
        self._logger = logger
        self._failure = failure
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run ``work`` as a task of the running event loop."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_done)
        return task

    async def wait(self) -> None:
        """Wait for the tasks that are running now; failures are logged, not raised."""
        if self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def cancel(self) -> None:
        """Cancel the tasks that are running now, and wait until they have ended."""
        for task in self._tasks:
            task.cancel()
        await self.wait()

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._logger.error("%s", self._failure, exc_info=error)


class ShieldedTasks:
    """Work that completes once it has begun, even if the caller that waits for it is cancelled.

    For work of two steps that must not be separated, such as a change and its audit record: a request is cancelled
    when its client disconnects or its credential ends.
    """

    def __init__(self) -> None:
        self._running: set[asyncio.Task[Any]] = set()

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run ``work`` in a task of its own, and return its result."""
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return await asyncio.shield(task)

    async def wait(self, timeout_s: float) -> None:
        """Wait until no work is running, at most for so long."""
        if self._running:
            await asyncio.wait(self._running, timeout=timeout_s)
