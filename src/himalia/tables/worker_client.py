"""The server's side of ``himalia.tables.worker``: ask it, and end it if it takes too long."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from contextlib import suppress

import msgspec

from himalia.errors import HimaliaError, InternalError, QueryTooLarge
from himalia.protocol import ErrorBody
from himalia.tables.worker import THREADS_MAX, Head, Question

COMMAND = [sys.executable, "-P", "-m", "himalia.tables.worker"]
ENVIRONMENT = {"TOKIO_WORKER_THREADS": str(THREADS_MAX), "RUST_BACKTRACE": "0"}
CHUNK_BYTES = 1 << 18
STOP_WITHIN_S = 5.0


class QueryProcess:
    """Answers one question at a time, in a process that is started when it is needed.

    The engine cannot be stopped in the middle of a query, and takes what memory and processors there are: so that no
    query can hurt whoever asks for it, it runs in a process that can be ended. ``ask`` blocks; call it in a thread.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self, question: Question) -> bytes:
        """The body of the answer. Raises what the worker raises, or ``QueryTooLarge`` when its time is over."""
        deadline = time.monotonic() + question.time_s
        head, body = self._ask(question, deadline)
        if head.is_last:
            self._ended()
        if not head.ok:
            told = msgspec.json.decode(body, type=ErrorBody)
            raise HimaliaError.from_code(told.code, told.message)
        return body

    def kill(self) -> None:
        """End the process while another thread asks it, which then fails."""
        if self._process is not None:
            self._process.kill()

    def close(self) -> None:
        """End the process, whatever it does."""
        self.kill()
        self._ended()

    def _ended(self) -> int:
        """Wait for the process, which is at its end, and tidy up. Returns its exit code; below 0 it was a signal."""
        process, self._process = self._process, None
        if process is None:
            return 0
        code = process.wait(STOP_WITHIN_S)
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):  # a question that it did not take
                pipe.close()
        return code

    def _ask(self, question: Question, deadline: float) -> tuple[Head, bytes]:
        if self._process is None:
            self._process = subprocess.Popen(
                COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, **ENVIRONMENT}
            )
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(msgspec.json.encode(question) + b"\n")
            self._process.stdin.flush()
            return self._receive(deadline)
        except TimeoutError:
            self.close()
            raise QueryTooLarge(
                f"the query took longer than {question.time_s:g} s; ask for fewer rows, or a shorter time"
            ) from None
        except (BrokenPipeError, EOFError):
            if self._ended() < 0:
                raise QueryTooLarge(
                    "the query needs more memory than it may have; ask for fewer rows"
                ) from None
            raise InternalError("the process that reads tables ended; the server's log says why") from None

    def _receive(self, deadline: float) -> tuple[Head, bytes]:
        received = bytearray()
        while b"\n" not in received:
            received += self._read(deadline)
        line, _, body = bytes(received).partition(b"\n")
        head = msgspec.json.decode(line, type=Head)
        pieces, missing = [body], head.bytes - len(body)
        while missing > 0:
            pieces.append(self._read(deadline))
            missing -= len(pieces[-1])
        return head, b"".join(pieces)

    def _read(self, deadline: float) -> bytes:
        """What comes next. ``TimeoutError`` at the deadline, ``EOFError`` if the process has ended."""
        assert self._process is not None and self._process.stdout is not None
        pipe = self._process.stdout.fileno()
        # Not select, which knows no descriptor above 1023: a server has thousands.
        poll = select.poll()
        poll.register(pipe, select.POLLIN)
        if not poll.poll(max(deadline - time.monotonic(), 0) * 1000):
            raise TimeoutError
        # Past the pipe's own buffer, of which poll knows nothing.
        if not (data := os.read(pipe, CHUNK_BYTES)):
            raise EOFError
        return data
