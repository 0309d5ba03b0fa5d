"""Ctrl-C and SIGTERM while something goes on that should end in order."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Self


class Stopping:
    """While it is entered, both signals end what is under way, at once or, within ``by``, as that says.

    A stop that was asked for is not an error: after SIGTERM the exit code is 0, after Ctrl-C it is 130.
    """

    def __init__(self) -> None:
        self._stop: Callable[[], None] | None = None
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
        """Within this, each signal calls ``stop``, and nothing else happens."""
        self._stop = stop
        # Again: Spark has put a handler of its own in the place of ours.
        for number in self._before:
            signal.signal(number, self._asked)
        try:
            yield
        finally:
            self._stop = None

    @property
    def is_asked(self) -> bool:
        return self._signal is not None

    def finish(self) -> None:
        """Leave as the signal asked for, if there was one."""
        if self._signal == signal.SIGINT:
            raise KeyboardInterrupt

    def _asked(self, number: int, frame: FrameType | None) -> None:
        if self._stop is None:
            raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(0)
        if self._signal is None:
            print("stopping; once more stops at once", file=sys.stderr, flush=True)
        self._signal = number
        self._stop()
