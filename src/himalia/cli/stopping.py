"""Ctrl-C and SIGTERM while something goes on that should end in order."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Self

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
