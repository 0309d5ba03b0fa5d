"""The command as users run it: a process of its own, its real output and exit code."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import IO, Self

DEADLINE_S = 30.0
COMMAND = [sys.executable, "-m", "himalia.cli"]


def himalia(
    *arguments: str,
    stdin: str | bytes | None = None,
    env: Mapping[str, str] | None = None,
    deadline_s: float = DEADLINE_S,
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    data = stdin.encode() if isinstance(stdin, str) else stdin
    done = subprocess.run(
        [*COMMAND, *arguments],
        input=data,
        stdin=subprocess.DEVNULL if data is None else None,
        capture_output=True,
        timeout=deadline_s,
        env={**os.environ, **(env or {})},
    )
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


class RunningCommand:
    """A command that goes on: read its lines as they come, send it signals, wait for its end."""

    def __init__(
        self,
        *arguments: str,
        env: Mapping[str, str] | None = None,
        stdin: int | None = None,
        deadline_s: float = DEADLINE_S,
    ) -> None:
        self.process = subprocess.Popen(
            [*COMMAND, *arguments],
            stdin=subprocess.DEVNULL if stdin is None else stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **(env or {})},
        )
        # Whatever happens, no test waits for ever.
        self._watchdog = threading.Timer(deadline_s, self.process.kill)
        self._watchdog.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._watchdog.cancel()
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()

    def line(self) -> str:
        """The next line of stdout."""
        return _line(self.process.stdout)

    def error_line(self) -> str:
        """The next line of stderr."""
        return _line(self.process.stderr)

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def end(self) -> int:
        return self.process.wait(DEADLINE_S)


def _line(stream: IO[bytes] | None) -> str:
    assert stream is not None
    return stream.readline().decode().rstrip("\n")


class ServeCommand(RunningCommand):
    """``himalia serve`` that is ready."""

    def __init__(
        self, *arguments: str, env: Mapping[str, str] | None = None, deadline_s: float = DEADLINE_S
    ) -> None:
        super().__init__("serve", *arguments, env=env, deadline_s=deadline_s)
        self.greeting = self.line()
        found = re.search(r"(http\S+?)/(?:\?token=(\S+))? ", self.greeting)
        assert found, (self.greeting, self.process.stderr and self.process.stderr.read())
        self.url, self.token = found[1], found[2]

    @property
    def port(self) -> str:
        return self.url.rpartition(":")[2]


def assert_sentence(done: subprocess.CompletedProcess[str], code: int, *parts: str) -> None:
    """It failed with this code, and with one line on stderr that has these parts; nothing on stdout."""
    assert done.returncode == code, (done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    lines: Sequence[str] = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("error: ")
    for part in parts:
        assert part in lines[0]
