"""A process that this one starts beside itself, hears, and ends."""

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

WORDS_MAX = 20
"""Lines of a child that are remembered."""
LOOK_EVERY_S = 0.02
READ_ON_S = 1.0
"""How long what a child has said may still come after its end."""
FOLLOWERS_END_WITHIN_S = 5.0
"""How long what a child itself started may live on behind it: Spark's Java ends by itself, a moment later."""


class Said(msgspec.Struct, frozen=True):
    """A child has said a line."""

    child: Child
    line: str


class Ended(msgspec.Struct, frozen=True):
    """A child has ended, and so has what it started in its group. All its lines have come before."""

    child: Child


class Child:
    """A module of ours as a process, in a session of its own: a Ctrl-C at the terminal does not reach it.

    What it says on the streams that are ``heard``, and its end, are put into ``news``. It ends with this process,
    however that ends.
    """

    def __init__(
        self,
        module: str,
        *arguments: str,
        news: SimpleQueue[Said | Ended],
        env: Mapping[str, str] | None = None,
        heard: Sequence[str] = ("stdout", "stderr"),
    ) -> None:
        self.has_ended = False
        self._news = news
        self._words: deque[str] = deque(maxlen=WORDS_MAX)
        self._process = subprocess.Popen(
            lifeline_command(module, *arguments),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE if "stdout" in heard else None,
            stderr=subprocess.PIPE if "stderr" in heard else None,
            env={**os.environ, **(env or {})},
            start_new_session=True,
        )
        streams = [stream for stream in (self._process.stdout, self._process.stderr) if stream is not None]
        self._readers = [self._thread(self._read, stream) for stream in streams]
        self._thread(self._wait)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.returncode

    @property
    def last_words(self) -> str:
        """Why it ended, as far as it said so: its error, or else its last line."""
        errors = [line for line in self._words if line.startswith("error: ")]
        last = errors[-1].removeprefix("error: ") if errors else next(reversed(self._words), "")
        return last.strip()

    def signal(self, number: int) -> None:
        """Send it a signal, if it still runs."""
        self._process.send_signal(number)

    def kill(self) -> None:
        """End it now, and what it has started in its group. Only while it has not ended."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass

    # Threads

    def _thread(self, work: Callable[..., None], *arguments: object) -> threading.Thread:
        thread = threading.Thread(target=work, args=arguments, name="himalia-child", daemon=True)
        thread.start()
        return thread

    def _read(self, stream: IO[bytes]) -> None:
        for raw in stream:
            line = raw.decode(errors="replace").rstrip("\n")
            self._words.append(line)
            self._news.put(Said(self, line))

    def _wait(self) -> None:
        self._process.wait()
        self._see_followers_off()
        for reader in self._readers:
            # Not for ever: somebody may hold the same stream.
            reader.join(READ_ON_S)
        self.has_ended = True
        self._news.put(Ended(self))

    def _see_followers_off(self) -> None:
        """Wait until all of its group have ended too, and end those that do not.

        As long as it has members, the group's number is given to nobody else.
        """
        deadline = time.monotonic() + FOLLOWERS_END_WITHIN_S
        while self._has_followers():
            if time.monotonic() > deadline:
                self.kill()
                return
            time.sleep(LOOK_EVERY_S)

    def _has_followers(self) -> bool:
        try:
            os.killpg(self.pid, 0)
        except ProcessLookupError:
            return False
        return True
