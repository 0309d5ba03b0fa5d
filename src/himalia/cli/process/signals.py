"""Signals: a graceful stop, interrupting code, and a pipe whose reader has closed it."""

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

from himalia.cli.terminal.output import escape_controls
from himalia.errors import HimaliaError

INTERRUPTED = 130
"""The exit code of every command after Ctrl-C."""


class GracefulStop:
    """While it is entered, SIGINT and SIGTERM end the process: at once or, within ``defer_exit``, in order::

        with GracefulStop() as stop, stop.call_on_signal(work.stop), work, stop.defer_exit():
            work.run()

    A requested stop is not an error: after SIGTERM the exit code is 0, after Ctrl-C it is 130.
    """

    def __init__(self) -> None:
        self._stop: Callable[[], None] | None = None
        self._is_deferred = False
        self._signal: int | None = None
        self._before: dict[int, signal.Handlers | Callable[..., object] | int | None] = {}

    def __enter__(self) -> Self:
        self._before = {
            number: signal.signal(number, self._on_signal) for number in (signal.SIGINT, signal.SIGTERM)
        }
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @contextmanager
    def call_on_signal(self, stop: Callable[[], None]) -> Iterator[None]:
        """Have each signal call ``stop`` within this block."""
        self._stop = stop
        try:
            yield
        finally:
            self._stop = None

    @contextmanager
    def defer_exit(self) -> Iterator[None]:
        """Within this block a signal does not end the process: ``stop`` ends the work, and ``finish`` follows."""
        self._is_deferred = True
        try:
            yield
        finally:
            self._is_deferred = False

    @property
    def is_requested(self) -> bool:
        return self._signal is not None

    def finish(self) -> None:
        """Exit with the code that belongs to the signal; return if there was none, or SIGTERM."""
        if self._signal == signal.SIGINT:
            raise SystemExit(INTERRUPTED)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        is_first, self._signal = not self.is_requested, number
        if self._stop is not None:
            # Also if the process ends at once: an exception raised in foreign code may be swallowed there.
            self._stop()
        if not self._is_deferred:
            # Not KeyboardInterrupt, for which Spark's bridge to Java would print a traceback.
            raise SystemExit(INTERRUPTED if number == signal.SIGINT else 0)
        if is_first:
            print("stopping; a second signal stops at once", file=sys.stderr, flush=True)


Interrupt = Callable[[], Awaitable[None]]


class Interrupts:
    """While it is entered, signals cancel the current task; the first Ctrl-C within ``redirect_to`` interrupts instead.

    ``count`` is the number of times that Ctrl-C was pressed. Used on the event loop only.
    """

    def __init__(self) -> None:
        self.count = 0
        self._task: asyncio.Task[Any] | None = None
        self._target: Interrupt | None = None
        self._interrupting: asyncio.Task[None] | None = None

    def __enter__(self) -> Self:
        self._task = asyncio.current_task()
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, self._on_ctrl_c)
        for number in (signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._leave)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().remove_signal_handler(number)

    @contextmanager
    def redirect_to(self, interrupt: Interrupt) -> Iterator[None]:
        """Have the first Ctrl-C within this block call ``interrupt``, instead of ending the command."""
        self._target = interrupt
        try:
            yield
        finally:
            self._target = None

    def _on_ctrl_c(self) -> None:
        self.count += 1
        if self._target is None or self.count > 1:
            self._leave()
        else:
            self._interrupting = asyncio.get_running_loop().create_task(self._interrupt(self._target))

    async def _interrupt(self, interrupt: Interrupt) -> None:
        print("interrupting the kernel; press Ctrl-C again to leave", file=sys.stderr, flush=True)
        try:
            await interrupt()
        except HimaliaError as error:
            print(
                f"the kernel cannot be interrupted: {escape_controls(error.message)}",
                file=sys.stderr,
                flush=True,
            )

    def _leave(self) -> None:
        if self._task is not None:
            self._task.cancel()


Result = TypeVar("Result")


async def run_until_pipe_closes(work: Coroutine[Any, Any, Result]) -> Result:
    """Run ``work``; raise ``BrokenPipeError`` as soon as the process that reads stdout closes the pipe.

    A write would fail too, but in a quiet topic the next write may be hours away: ``himalia tail x | head -1``.
    """
    loop = asyncio.get_running_loop()
    closed = asyncio.Event()
    pipe = _stdout_pipe()
    if pipe is not None:
        # The writing end of a pipe is never readable; it only wakes the loop when the reading end is closed.
        loop.add_reader(pipe, closed.set)
    task, watcher = asyncio.ensure_future(work), asyncio.ensure_future(closed.wait())
    try:
        await asyncio.wait({task, watcher}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise BrokenPipeError
        return await task
    finally:
        if pipe is not None:
            loop.remove_reader(pipe)
        task.cancel()
        watcher.cancel()
        await asyncio.gather(task, watcher, return_exceptions=True)


def _stdout_pipe() -> int | None:
    """Return the descriptor of stdout if that is a pipe."""
    if os.name != "posix":
        return None
    try:
        output = sys.stdout.fileno()
        return output if stat.S_ISFIFO(os.fstat(output).st_mode) else None
    except (OSError, ValueError):
        return None
