"""A terminal for the commands of a document: a real shell that keeps its directory and its variables."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import psutil

_END = "-- end of command --"
_ENDED = re.compile(rf"{_END} (\d+)\n")
STOP_MAX_S = 30.0


class Terminal:
    """One shell. Standard output and standard error are one stream, as they are on a screen."""

    def __init__(self, directory: Path, environment: Mapping[str, str]) -> None:
        self._shell = subprocess.Popen(
            ["bash", "--norc"],
            cwd=directory,
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._heard = ""
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        # Each command is a process group of its own, so that Ctrl-C ends it and not the shell.
        self._type("set -m; trap : INT")

    def _read(self) -> None:
        assert self._shell.stdout is not None
        while piece := os.read(self._shell.stdout.fileno(), 65536):
            with self._news:
                self._heard += piece.decode(errors="replace")
                self._news.notify_all()

    def _type(self, line: str) -> None:
        assert self._shell.stdin is not None
        self._shell.stdin.write(f"{line}\n".encode())
        self._shell.stdin.flush()

    def begin(self, command: str) -> None:
        """Start a command. What was printed before is forgotten."""
        with self._news:
            self._heard = ""
        # On two lines: of an interrupted one, the shell passes over the rest.
        self._type(f"eval {shlex.quote(command)} </dev/null\necho {shlex.quote(_END)} $?")

    @property
    def lines(self) -> list[str]:
        """What the command has printed so far, an unfinished line only once it has ended."""
        whole = self._heard[: self._heard.rfind("\n") + 1]
        return _ENDED.sub("", whole).splitlines()

    @property
    def status(self) -> int | None:
        """The exit code of the command, once it has ended."""
        ended = _ENDED.search(self._heard)
        return int(ended[1]) if ended else None

    def wait(self, condition: Callable[[], bool], within_s: float) -> bool:
        """Whether the condition came to hold. It is looked at whenever something is printed."""
        deadline = time.monotonic() + within_s
        with self._news:
            while not condition():
                left_s = deadline - time.monotonic()
                if left_s <= 0 or self._shell.poll() is not None:
                    return condition()
                self._news.wait(min(left_s, 1.0))
        return True

    def interrupt(self) -> None:
        """Ctrl-C, for the command that runs."""
        deadline = time.monotonic() + STOP_MAX_S
        while not (groups := self._groups()):
            assert time.monotonic() < deadline, "there is no command to interrupt"
            time.sleep(0.01)
        for group in groups:
            os.killpg(group, signal.SIGINT)

    def _groups(self) -> set[int]:
        """The process groups of what runs. Right after its start a process is still in that of the shell."""
        children = psutil.Process(self._shell.pid).children()
        return {os.getpgid(child.pid) for child in children} - {self._shell.pid}

    def close(self) -> None:
        """End the shell, and what a document that failed has left running in it."""
        left = psutil.Process(self._shell.pid).children(recursive=True)
        for child in left:
            _signal(child, signal.SIGTERM)
        _, alive = psutil.wait_procs(left, STOP_MAX_S)
        for child in alive:
            _signal(child, signal.SIGKILL)
        self._shell.kill()
        self._shell.wait()


def _signal(process: psutil.Process, number: int) -> None:
    try:
        process.send_signal(number)
    except psutil.NoSuchProcess:
        pass
