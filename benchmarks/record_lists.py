"""Whether a topic's tail needs its own list of records beside the log's cache: ``python -m benchmarks.record_lists``.

Processor time of one thread, so that a busy machine disturbs it little; the best of several rounds.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Callable
from typing import TypeVar

from himalia.log import Batch, LogOptions, open_log
from himalia.pubsub.filters import compile_filter
from himalia.pubsub.tail import EncodedEvents, Tail, View
from himalia.record import Draft, Record
from himalia.server.codecs import WEBSOCKET

T = TypeVar("T")

RECORDS = 1024
ROUNDS = 7
COMMIT_RECORDS = (1, 64)
READ_BYTES = 256 << 10
FILTER = compile_filter("message.payload.n > 0 && message.payload.text.startsWith('x')")
PAYLOAD = b'{"n":1,"text":"' + b"x" * 180 + b'"}'


def main() -> None:
    records = [
        Record("orders", offset, 1, f"{offset:036}", b'{"publisher":"bench"}', PAYLOAD)
        for offset in range(RECORDS)
    ]
    for count in COMMIT_RECORDS:
        commits = [records[start : start + count] for start in range(0, RECORDS, count)]
        whole_us, list_us = (measure(work, commits) / RECORDS * 1e6 for work in (extend_tail, extend_list))
        print(f"adding a record, commits of {count}: {whole_us:.2f} us, of which the list {list_us:.3f} us")
    print(f"the list of {RECORDS} records: {sys.getsizeof(list(records)):,} bytes")
    print(
        f"a filter on {RECORDS} records of the tail, for all cursors: {measure(evaluate, records) * 1e3:.1f} ms"
    )
    read_s = asyncio.run(measure_reads(records))
    print(f"the same on records read from a log on disk, for each cursor: {read_s * 1e3:.1f} ms")


def measure(work: Callable[[T], None], argument: T) -> float:
    """Return the least processor time of a call."""
    spent = []
    for _ in range(ROUNDS):
        started = time.thread_time()
        work(argument)
        spent.append(time.thread_time() - started)
    return min(spent)


def extend_tail(commits: list[list[Record]]) -> None:
    tail = Tail(0, RECORDS)
    tail.view(WEBSOCKET, None, 0)
    for records in commits:
        tail.extend(records, 64 << 20)


def extend_list(commits: list[list[Record]]) -> None:
    kept: list[Record] = []
    for records in commits:
        kept.extend(records)


def evaluate(records: list[Record]) -> None:
    View(EncodedEvents(WEBSOCKET), FILTER, records[0].offset).extend(records)


async def measure_reads(records: list[Record]) -> float:
    """Return the least processor time, of all threads, of reading the records in chunks and filtering them."""
    with tempfile.TemporaryDirectory() as directory:
        log = open_log(f"sqlite://{directory}/log.db", LogOptions(cache_count_max=0))
        await log.open()
        await log.create("orders")
        await log.append(Batch("orders", [Draft(each.id, each.payload, each.headers) for each in records]))
        spent = []
        for _ in range(ROUNDS):
            started, start = time.process_time(), 0
            while start < len(records):
                chunk = await log.read("orders", start, limit=len(records), bytes_max=READ_BYTES)
                evaluate(list(chunk.records))
                start = chunk.records[-1].offset + 1
            spent.append(time.process_time() - started)
        await log.close()
    return min(spent)


if __name__ == "__main__":
    main()
