"""The terminal's keyboard, for code that calls ``input()``."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

END_OF_INPUT = "\x04"
"""What Jupyter clients send for Ctrl-D: the code gets its ``EOFError``."""
_LOCAL_MODES = 3
"""The index of the terminal's setting that has the flag for echo."""


class Keyboard:
    """Reads lines from the terminal. As a context manager it restores the terminal's settings, also echo."""

    def __init__(self) -> None:
        self._settings: Any = None

    def __enter__(self) -> Self:
        if sys.stdin.isatty():
            import termios

            self._settings = termios.tcgetattr(sys.stdin)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._settings is not None:
            import termios

            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, self._settings)

    @contextmanager
    def without_echo(self) -> Iterator[None]:
        """Turn echo off within this block. Enter it before the prompt is shown: users type at once."""
        import termios

        changed = termios.tcgetattr(sys.stdin)
        changed[_LOCAL_MODES] &= ~termios.ECHO
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, changed)
        try:
            yield
        finally:
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, self._settings)

    async def read_line(self) -> str:
        """Return the next line that the user types. A daemon thread reads it, as it may never come."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[str] = loop.create_future()

        def resolve(line: str) -> None:
            if not answer.done():
                answer.set_result(line)

        def read() -> None:
            line = sys.stdin.readline()
            try:
                loop.call_soon_threadsafe(resolve, line.rstrip("\n") if line else END_OF_INPUT)
            except RuntimeError:  # the loop is closed: the command has ended
                pass

        threading.Thread(target=read, name="himalia-keyboard", daemon=True).start()
        return await answer
