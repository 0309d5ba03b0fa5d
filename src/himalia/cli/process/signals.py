"""Signals: a graceful stop, interrupting code, and a pipe whose reader left."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Self, TypeVar

from himalia.cli.terminal.output import printable
from himalia.errors import HimaliaError

INTERRUPTED = 130
"""The exit code after Ctrl-C, as of every command."""


class Stopping:
    """While it is entered, both signals end what is under way: at once or, within ``at_work``, in order::

        with Stopping() as stopping, stopping.by(work.stop), work, stopping.at_work():
            work.go_on()

    A stop that was asked for is not an error: after SIGTERM the exit code is 0, after Ctrl-C it is 130.
    """

    def __init__(self) -> None:
        self._stop: Callable[[], None] | None = None
        self._is_at_work = False
        self._signal: int | None = None
        self._before: dict[int, signal.Handlers | Callable[..., object] | int | None] = {}

    def __enter__(self) -> Self:
        self._before = {
            number: signal.signal(number, self._asked) for number in (signal.SIGINT, signal.SIGTERM)
        }
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @contextmanager
    def by(self, stop: Callable[[], None]) -> Iterator[None]:
        """Within this, each signal calls ``stop``."""
        self._stop = stop
        try:
            yield
        finally:
            self._stop = None

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Within this and ``by``, a signal does nothing else."""
        self._is_at_work = True
        try:
            yield
        finally:
            self._is_at_work = False

    @property
    def is_asked(self) -> bool:
        return self._signal is not None

    def finish(self) -> None:
        """Leave as the signal asked for, if there was one."""
        if self._signal == signal.SIGINT:
            raise SystemExit(INTERRUPTED)

    def _asked(self, number: int, frame: FrameType | None) -> None:
        is_first, self._signal = not self.is_asked, number
        if self._stop is not None:
            # Even if it ends at once: what is raised in the middle of foreign code may be swallowed there.
            self._stop()
        if not self._is_at_work:
            # Not KeyboardInterrupt, which Spark's bridge to Java would tell with a traceback.
            raise SystemExit(INTERRUPTED if number == signal.SIGINT else 0)
        if is_first:
            print("stopping; once more stops at once", file=sys.stderr, flush=True)


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
