"""The server's side of ``himalia.tables.worker``: send it requests, and kill it if a query takes too long."""

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
from himalia.tables.worker import THREADS_MAX, QueryRequest, ResponseHead

COMMAND = [sys.executable, "-P", "-m", "himalia.tables.worker"]
ENVIRONMENT = {"TOKIO_WORKER_THREADS": str(THREADS_MAX), "RUST_BACKTRACE": "0"}
CHUNK_BYTES = 1 << 18
STOP_WITHIN_S = 5.0


class QueryProcess:
    """Runs one query at a time, in a process that is started when it is needed.

    The engine cannot be stopped in the middle of a query, and may use all memory and all cores: it runs in a process
    that can be limited and killed, so that no query can harm the server. ``run`` blocks; call it in a thread.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, request: QueryRequest) -> bytes:
        """Return the body of the response. Raises the worker's error, or ``QueryTooLarge`` when the time is over."""
        deadline = time.monotonic() + request.time_s
        head, body = self._exchange(request, deadline)
        if head.is_last:
            self._reap()
        if not head.ok:
            failure = msgspec.json.decode(body, type=ErrorBody)
            raise HimaliaError.from_code(failure.code, failure.message)
        return body

    def kill(self) -> None:
        """Kill the process; a query that another thread runs fails."""
        if self._process is not None:
            self._process.kill()

    def close(self) -> None:
        """Kill the process and wait for it."""
        self.kill()
        self._reap()

    def _reap(self) -> int:
        """Wait for the process, which is exiting. Returns its exit code; below 0 it was killed by a signal."""
        process, self._process = self._process, None
        if process is None:
            return 0
        code = process.wait(STOP_WITHIN_S)
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):  # a request that it did not read
                pipe.close()
        return code

    def _exchange(self, request: QueryRequest, deadline: float) -> tuple[ResponseHead, bytes]:
        if self._process is None:
            self._process = subprocess.Popen(
                COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, **ENVIRONMENT}
            )
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(msgspec.json.encode(request) + b"\n")
            self._process.stdin.flush()
            return self._receive(deadline)
        except TimeoutError:
            self.close()
            raise QueryTooLarge(
                f"the query took longer than {request.time_s:g} s; request fewer rows, or a shorter time range"
            ) from None
        except (BrokenPipeError, EOFError):
            if self._reap() < 0:
                raise QueryTooLarge(
                    "the query needs more memory than it may have; request fewer rows"
                ) from None
            raise InternalError("the query process exited unexpectedly; see the server's log") from None

    def _receive(self, deadline: float) -> tuple[ResponseHead, bytes]:
        received = bytearray()
        while b"\n" not in received:
            received += self._read(deadline)
        line, _, body = bytes(received).partition(b"\n")
        head = msgspec.json.decode(line, type=ResponseHead)
        pieces, missing = [body], head.bytes - len(body)
        while missing > 0:
            pieces.append(self._read(deadline))
            missing -= len(pieces[-1])
        return head, b"".join(pieces)

    def _read(self, deadline: float) -> bytes:
        """Return the next bytes. Raises ``TimeoutError`` at the deadline, ``EOFError`` if the process has exited."""
        assert self._process is not None and self._process.stdout is not None
        pipe = self._process.stdout.fileno()
        # Not select, which supports no descriptor above 1023: a server has thousands.
        poll = select.poll()
        poll.register(pipe, select.POLLIN)
        if not poll.poll(max(deadline - time.monotonic(), 0) * 1000):
            raise TimeoutError
        # Bypasses Python's buffer of the pipe, which poll does not see.
        if not (data := os.read(pipe, CHUNK_BYTES)):
            raise EOFError
        return data
