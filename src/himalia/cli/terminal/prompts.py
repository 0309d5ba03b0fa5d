"""Asking whoever sits at the terminal, for code that calls ``input()``."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

END_OF_INPUT = "\x04"
"""What Jupyter sends where a terminal has Ctrl-D: the code gets its ``EOFError``."""
_LOCAL_MODES = 3
"""Which of the settings of a terminal has the flag for echoing."""


class Terminal:
    """The terminal's keyboard. As a context manager it leaves the terminal as it was, also from within a password."""

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
        """Nobody sees what is typed. To be entered before the prompt is shown: people type at once."""
        import termios

        changed = termios.tcgetattr(sys.stdin)
        changed[_LOCAL_MODES] &= ~termios.ECHO
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, changed)
        try:
            yield
        finally:
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, self._settings)

    async def read_line(self) -> str:
        """A line that somebody types. Read by a thread that nobody waits for: there may never be one."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[str] = loop.create_future()

        def settle(line: str) -> None:
            if not answer.done():
                answer.set_result(line)

        def read() -> None:
            line = sys.stdin.readline()
            try:
                loop.call_soon_threadsafe(settle, line.rstrip("\n") if line else END_OF_INPUT)
            except RuntimeError:  # the loop is closed; nobody asks any more
                pass

        threading.Thread(target=read, name="himalia-keyboard", daemon=True).start()
        return await answer
