"""Child processes of ``himalia up``: their lines and their ends as events in a queue."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from queue import SimpleQueue
from typing import IO

import msgspec

from himalia.child_process import lifeline_command

LINES_KEPT = 20
"""The last lines of a child, kept to report why it ended."""
POLL_INTERVAL_S = 0.02
DRAIN_WITHIN_S = 1.0
"""How long after its end the output of a child is still read."""
GROUP_ENDS_WITHIN_S = 5.0
"""How long the processes that a child started may outlive it: Spark's Java ends by itself, a moment later."""


class OutputLine(msgspec.Struct, frozen=True):
    """A child has written a line."""

    child: ManagedProcess
    line: str


class Exited(msgspec.Struct, frozen=True):
    """A child has ended, and with it every process of its group. All of its lines precede this event."""

    child: ManagedProcess


class ManagedProcess:
    """A Python module as a child process, in a session of its own: a Ctrl-C at the terminal does not reach it.

    The lines of the ``captured`` streams, and its end, are put into ``events`` by threads of this object. It ends with
    this process, however that ends.
    """

    def __init__(
        self,
        module: str,
        *arguments: str,
        events: SimpleQueue[OutputLine | Exited],
        env: Mapping[str, str] | None = None,
        captured: Sequence[str] = ("stdout", "stderr"),
    ) -> None:
        self.has_ended = False
        self._events = events
        self._lines: deque[str] = deque(maxlen=LINES_KEPT)
        self._process = subprocess.Popen(
            lifeline_command(module, *arguments),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE if "stdout" in captured else None,
            stderr=subprocess.PIPE if "stderr" in captured else None,
            env={**os.environ, **(env or {})},
            start_new_session=True,
        )
        streams = [stream for stream in (self._process.stdout, self._process.stderr) if stream is not None]
        self._readers = [_start_thread(self._read, stream) for stream in streams]
        _start_thread(self._wait)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """The exit code; ``None`` while it runs."""
        return self._process.returncode

    @property
    def last_error(self) -> str:
        """The last error that it printed, else its last line; empty if it printed nothing."""
        errors = [line for line in self._lines if line.startswith("error: ")]
        last = errors[-1].removeprefix("error: ") if errors else next(reversed(self._lines), "")
        return last.strip()

    def signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        self._process.send_signal(number)

    def kill(self) -> None:
        """Kill every process of its group. To be called only while ``has_ended`` is false."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass

    # Threads

    def _read(self, stream: IO[bytes]) -> None:
        for raw in stream:
            line = raw.decode(errors="replace").rstrip("\n")
            self._lines.append(line)
            self._events.put(OutputLine(self, line))

    def _wait(self) -> None:
        self._process.wait()
        self._wait_for_group()
        for reader in self._readers:
            # With a limit: a process outside of the group may hold the same stream.
            reader.join(DRAIN_WITHIN_S)
        self.has_ended = True
        self._events.put(Exited(self))

    def _wait_for_group(self) -> None:
        """Wait until every process of the group has ended, and kill those that do not end.

        While the group has members, the system gives its number to no other group.
        """
        deadline = time.monotonic() + GROUP_ENDS_WITHIN_S
        while self._has_group():
            if time.monotonic() > deadline:
                self.kill()
                return
            time.sleep(POLL_INTERVAL_S)

    def _has_group(self) -> bool:
        try:
            os.killpg(self.pid, 0)
        except ProcessLookupError:
            return False
        return True


def _start_thread(work: Callable[..., None], *arguments: object) -> threading.Thread:
    thread = threading.Thread(target=work, args=arguments, name="himalia-child", daemon=True)
    thread.start()
    return thread
