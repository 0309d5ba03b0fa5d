"""Ctrl-C while code runs: once interrupts the code, twice leaves."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from himalia.cli.output import printable
from himalia.errors import HimaliaError

Interrupt = Callable[[], Awaitable[None]]


class Interrupts:
    """While it is entered, signals cancel the current task, but for the first Ctrl-C in the middle of something that
    can be interrupted. ``count`` says how often Ctrl-C came."""

    def __init__(self) -> None:
        self.count = 0
        self._target: Interrupt | None = None
        self._interrupting: asyncio.Task[None] | None = None

    def __enter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._loop.add_signal_handler(signal.SIGINT, self._pressed)
        for number in (signal.SIGTERM, signal.SIGHUP):
            self._loop.add_signal_handler(number, self._leave)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            self._loop.remove_signal_handler(number)

    @contextmanager
    def aimed_at(self, interrupt: Interrupt) -> Iterator[None]:
        """Within this, the first Ctrl-C calls ``interrupt``. Elsewhere it leaves."""
        self._target = interrupt
        try:
            yield
        finally:
            self._target = None

    def _pressed(self) -> None:
        self.count += 1
        if self._target is None or self.count > 1:
            self._leave()
        else:
            self._interrupting = self._loop.create_task(self._interrupt(self._target))

    async def _interrupt(self, interrupt: Interrupt) -> None:
        print("interrupting; Ctrl-C again leaves", file=sys.stderr, flush=True)
        try:
            await interrupt()
        except HimaliaError as error:
            print(f"it cannot be interrupted: {printable(error.message)}", file=sys.stderr, flush=True)

    def _leave(self) -> None:
        self._task.cancel()
