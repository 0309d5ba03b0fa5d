"""A command on a terminal, and somebody who types."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from tests.cli.command import COMMAND, DEADLINE_S


class TerminalCommand:
    """A command whose stdin, stdout and stderr are one terminal of 24 rows and 80 columns."""

    def __init__(
        self, *arguments: str, env: Mapping[str, str] | None = None, deadline_s: float = DEADLINE_S
    ) -> None:
        self._deadline_s = deadline_s
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.process = subprocess.Popen(
            [*COMMAND, *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
            env={**os.environ, "TERM": "xterm-256color", "NO_COLOR": "", **(env or {})},
        )
        os.close(slave)
        self.screen = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)

    def type(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def until(self, text: str) -> str:
        """Read until this has come; returns all that came so far."""
        deadline = time.monotonic() + self._deadline_s
        while text not in self.screen:
            assert time.monotonic() < deadline, self.screen
            assert self._read(deadline), f"it ended: {self.screen!r}"
        return self.screen

    def end(self) -> int:
        """Read all that it says, and its exit code."""
        deadline = time.monotonic() + self._deadline_s
        while self._read(deadline):
            assert time.monotonic() < deadline, self.screen
        return self.process.wait(self._deadline_s)

    def _read(self, deadline: float) -> bool:
        ready, _, _ = select.select([self._master], [], [], max(deadline - time.monotonic(), 0))
        if not ready:
            return True
        try:
            part = os.read(self._master, 65536)
        except OSError:  # the other side is closed
            return False
        self.screen += part.decode(errors="replace")
        return bool(part)


_STEP = re.compile(r"\n|\r|\x08|\x1b\[([\d;]*)([A-Za-z])|[^\x00-\x1f\x1b]+")


def displayed(written: str, columns: int = 80) -> list[str]:
    """The rows that a terminal shows after this was written to it. Knows what our commands use."""
    rows, row, column = [""], 0, 0
    for step in _STEP.finditer(written):
        text, code, number = step[0], step[2], int(step[1]) if (step[1] or "").isdigit() else None
        if text == "\n":
            row, column = row + 1, 0
        elif text == "\r":
            column = 0
        elif text == "\b":
            column = max(column - 1, 0)
        elif code == "A":
            row = max(row - (number or 1), 0)
        elif code == "C":
            column += number or 1
        elif code == "K":
            rows[row] = rows[row][:column]
        elif code == "J":
            rows[row:] = [rows[row][:column]]
        elif code is None:
            for character in text:
                if column == columns:
                    row, column = row + 1, 0
                rows += [""] * (row + 1 - len(rows))
                rows[row] = rows[row].ljust(column)[:column] + character + rows[row][column + 1 :]
                column += 1
        rows += [""] * (row + 1 - len(rows))
    return [line.rstrip() for line in rows]
