"""``python -m himalia.tables.worker``: runs queries for a server, in a separate process.

It reads one line of JSON per request from its standard input and writes the response to its standard output: a line
with ``ok`` and the length of the body, then the body. It exits at the end of its input.
"""

from __future__ import annotations

import contextlib
import logging
import os
import resource
import signal
import sys
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import msgspec

from himalia.errors import ErrorCode, HimaliaError
from himalia.protocol import ErrorBody
from himalia.protocol.models import TableList, TableRows
from himalia.tables.delta_tables import Tables
from himalia.tables.result import Result, rows_of

logger = logging.getLogger("himalia.tables")

MEMORY_BYTES_MAX = 512 << 20
"""By how much a query may let the process grow; the operating system denies memory beyond that."""
POOL_BYTES_MAX = 384 << 20
"""The limit of the memory that the engine accounts for, so that the engine usually fails before the system does."""
KEPT_BYTES_MAX = 128 << 20
"""By how much the process may have grown after a response; a larger one exits, and the next request starts another."""
THREADS_MAX = 4
ENGINE = {
    "datafusion.execution.batch_size": "1024",
    "datafusion.execution.target_partitions": str(min(THREADS_MAX, os.cpu_count() or 1)),
}
NICENESS = 10


class QueryRequest(msgspec.Struct, frozen=True):
    """A request for rows of a table, or without a name for the list of tables. Aborted after ``time_s``."""

    path: str
    name: str | None = None
    where: str | None = None
    order: str | None = None
    columns: list[str] | None = None
    limit: int = 100
    bytes_max: int = 16 << 20
    time_s: float = 10.0


class ResponseHead(msgspec.Struct, frozen=True):
    """The line before a body. If not ``ok``, the body is an ``ErrorBody``. The process exits after the last one."""

    ok: bool
    bytes: int
    is_last: bool = False


def execute(request: QueryRequest) -> bytes:
    """Run the query and return the body of the response: JSON, limited in rows and bytes."""
    tables = Tables(request.path, engine=ENGINE, memory_bytes_max=POOL_BYTES_MAX)
    if request.name is None:
        return msgspec.json.encode(TableList(tables.describe()))
    result = tables.read(
        request.name,
        where=request.where,
        order=request.order,
        columns=request.columns,
        # One more than is returned, to know whether there are more.
        limit=request.limit + 1,
    )
    rows, truncated = _limit_rows(result, request.limit, request.bytes_max)
    # Rows are encoded one by one, to limit their size, and are not decoded again.
    return msgspec.json.encode(TableRows(request.name, result.schema.names, rows, truncated))


def _limit_rows(result: Result, limit: int, bytes_max: int) -> tuple[list[Any], bool]:
    """Return rows as JSON up to the limits, and whether there are more."""
    rows: list[Any] = []
    size = 0
    for batch in result:
        for row in rows_of(batch):
            encoded = msgspec.json.encode(row)
            size += len(encoded)
            if len(rows) == limit or (size > bytes_max and rows):
                return rows, True
            rows.append(msgspec.Raw(encoded))
    return rows, False


def main() -> None:
    # The server ends this process, also on Ctrl-C.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Serving messages has priority over queries.
    os.nice(NICENESS)
    sink = sys.stdout.buffer
    at_rest = limit_memory()
    for line in sys.stdin.buffer:
        if _handle(line, sink, at_rest):
            return


def limit_memory() -> int:
    """Let the operating system limit the memory of queries. Returns the resident size of the idle process.

    Linux only: elsewhere the limit is either not enforced, or includes memory that is only reserved.
    """
    with contextlib.suppress(ImportError):
        from deltalake import QueryBuilder

        # Starts its threads, whose stacks are part of the idle process.
        QueryBuilder(ENGINE).execute("SELECT 1").read_all()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    memory = process_memory()
    if memory is None:
        return 0
    bound = memory.data_bytes + MEMORY_BYTES_MAX
    resource.setrlimit(resource.RLIMIT_DATA, (bound, bound))
    return memory.resident_bytes


class ProcessMemory(NamedTuple):
    """The size that RLIMIT_DATA limits, and the resident size."""

    data_bytes: int
    resident_bytes: int


def process_memory() -> ProcessMemory | None:
    """Read the memory of this process; ``None`` where the system does not report it."""
    try:
        fields = Path("/proc/self/statm").read_bytes().split()
    except OSError:
        return None
    page = resource.getpagesize()
    return ProcessMemory(int(fields[5]) * page, int(fields[1]) * page)


def _handle(line: bytes, sink: BinaryIO, at_rest: int) -> bool:
    """Respond to a request; return whether this was the last response."""
    ok = True
    try:
        request = msgspec.json.decode(line, type=QueryRequest)
        # The server ends a query that takes too long; this ends it if the server is gone.
        signal.setitimer(signal.ITIMER_REAL, request.time_s + 5)
        body = execute(request)
    except HimaliaError as error:
        ok, body = False, msgspec.json.encode(ErrorBody(error.code, error.message))
    except MemoryError:
        failure = ErrorBody(
            ErrorCode.QUERY_TOO_LARGE, "the query needs more memory than it may have; request fewer rows"
        )
        ok, body = False, msgspec.json.encode(failure)
    except Exception:
        logger.exception("a query failed")
        failure = ErrorBody(
            ErrorCode.INTERNAL, "the query failed with an internal error; see the server's log"
        )
        ok, body = False, msgspec.json.encode(failure)
    signal.setitimer(signal.ITIMER_REAL, 0)
    memory = process_memory()
    is_last = memory is not None and memory.resident_bytes - at_rest > KEPT_BYTES_MAX
    sink.write(msgspec.json.encode(ResponseHead(ok, len(body), is_last)) + b"\n" + body)
    sink.flush()
    return is_last


if __name__ == "__main__":
    main()
