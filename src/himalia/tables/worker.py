"""``python -m himalia.tables.worker``: answers questions about tables for a server, in a process of its own.

It reads a line of JSON for each question from its standard input and writes its answer to its standard output: a line
with ``ok`` and the length of the body, then the body. It ends with its input.
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
from himalia.tables.result import Result, rows_of
from himalia.tables.tables import Tables

logger = logging.getLogger("himalia.tables")

MEMORY_BYTES_MAX = 512 << 20
"""By how much a query may let the process grow; the operating system refuses the rest."""
POOL_BYTES_MAX = 384 << 20
"""What the engine may use for what it accounts for itself, so that it mostly says so before the system does."""
KEPT_BYTES_MAX = 128 << 20
"""By how much the process may have grown after an answer; a larger one ends, and the next question has another."""
THREADS_MAX = 4
ENGINE = {
    "datafusion.execution.batch_size": "1024",
    "datafusion.execution.target_partitions": str(min(THREADS_MAX, os.cpu_count() or 1)),
}
NICENESS = 10


class Question(msgspec.Struct, frozen=True):
    """Rows of a table, or with no name what tables there are. Ends after ``time_s``, come what may."""

    path: str
    name: str | None = None
    where: str | None = None
    order: str | None = None
    columns: list[str] | None = None
    limit: int = 100
    bytes_max: int = 16 << 20
    time_s: float = 10.0


class Head(msgspec.Struct, frozen=True):
    """The line before a body. If not ``ok``, the body is an ``ErrorBody``. The process exits after the last one."""

    ok: bool
    bytes: int
    is_last: bool = False


def answer(question: Question) -> bytes:
    """The body of an answer: JSON, bounded in rows and bytes."""
    tables = Tables(question.path, engine=ENGINE, memory_bytes_max=POOL_BYTES_MAX)
    if question.name is None:
        return msgspec.json.encode(TableList(tables.describe()))
    result = tables.read(
        question.name,
        where=question.where,
        order=question.order,
        columns=question.columns,
        # One more than is shown tells whether there are more.
        limit=question.limit + 1,
    )
    rows, truncated = _bounded(result, question.limit, question.bytes_max)
    # Rows are encoded one by one, to bound their size, and are not decoded again.
    return msgspec.json.encode(TableRows(question.name, result.schema.names, rows, truncated))


def _bounded(result: Result, limit: int, bytes_max: int) -> tuple[list[Any], bool]:
    """Rows as JSON up to the limits, and whether there were more."""
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
    # The server decides when to end, also on Ctrl-C; and whoever serves messages goes before whoever counts them.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(NICENESS)
    sink = sys.stdout.buffer
    at_rest = limit_memory()
    for line in sys.stdin.buffer:
        if _respond(line, sink, at_rest):
            return


def limit_memory() -> int:
    """Have the operating system bound what queries may take. Returns the size of the process at rest.

    Linux only: elsewhere the limit either is not enforced or counts what is merely reserved.
    """
    with contextlib.suppress(ImportError):
        from deltalake import QueryBuilder

        QueryBuilder(ENGINE).execute(
            "SELECT 1"
        ).read_all()  # its threads, with their stacks, are part of the rest
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    memory = process_memory()
    if memory is None:
        return 0
    bound = memory.data_bytes + MEMORY_BYTES_MAX
    resource.setrlimit(resource.RLIMIT_DATA, (bound, bound))
    return memory.resident_bytes


class ProcessMemory(NamedTuple):
    """What RLIMIT_DATA counts, and what is in memory."""

    data_bytes: int
    resident_bytes: int


def process_memory() -> ProcessMemory | None:
    """Of this process; ``None`` where the system does not tell."""
    try:
        fields = Path("/proc/self/statm").read_bytes().split()
    except OSError:
        return None
    page = resource.getpagesize()
    return ProcessMemory(int(fields[5]) * page, int(fields[1]) * page)


def _respond(line: bytes, sink: BinaryIO, at_rest: int) -> bool:
    """Answer a question; says whether that was the last answer."""
    ok = True
    try:
        question = msgspec.json.decode(line, type=Question)
        # Ends the process in the middle of whatever it does, should the server be gone that would have ended it.
        signal.setitimer(signal.ITIMER_REAL, question.time_s + 5)
        body = answer(question)
    except HimaliaError as error:
        ok, body = False, msgspec.json.encode(ErrorBody(error.code, error.message))
    except MemoryError:
        told = ErrorBody(
            ErrorCode.QUERY_TOO_LARGE, "the query needs more memory than it may have; ask for fewer rows"
        )
        ok, body = False, msgspec.json.encode(told)
    except Exception:
        logger.exception("reading tables failed")
        told = ErrorBody(ErrorCode.INTERNAL, "reading tables failed; the server's log says why")
        ok, body = False, msgspec.json.encode(told)
    signal.setitimer(signal.ITIMER_REAL, 0)
    memory = process_memory()
    is_last = memory is not None and memory.resident_bytes - at_rest > KEPT_BYTES_MAX
    sink.write(msgspec.json.encode(Head(ok, len(body), is_last)) + b"\n" + body)
    sink.flush()
    return is_last


if __name__ == "__main__":
    main()
