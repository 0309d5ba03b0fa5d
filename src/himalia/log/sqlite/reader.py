"""Reads the log file in a pool of threads, while the writer thread writes to it."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

import msgspec

from himalia.errors import TopicNotFound
from himalia.log.api import Chunk
from himalia.log.columnar import ColumnChunk, PackedColumn, to_columns
from himalia.log.sqlite.database import connect_reader
from himalia.log.sqlite.errors import records_missing, translate_errors
from himalia.record import Record

T = TypeVar("T")

ROWS_PER_QUERY = 8192
LENGTH_MIN = 1 << 20
"""Room for the numbers of that many rows as text."""

_STATE = """
    SELECT id, epoch, first, end, bytes FROM topics JOIN topic_state ON topic_state.topic = topics.id WHERE name = ?
"""

# All records in one row, for the reason given at ``MultiRowInsert``: fetching row by row was 40 times slower next to a
# busy event loop, and no faster than this on an idle one.
_RECORDS = """
    SELECT json_group_array(offset), json_group_array(ts_us),
        json_group_array(length(id)), json_group_array(length(headers)), json_group_array(length(payload)),
        CAST(group_concat(id, '') AS BLOB),
        CAST(group_concat(headers, '') AS BLOB),
        CAST(group_concat(payload, '') AS BLOB)
    FROM (
        SELECT * FROM records
        WHERE topic = :topic AND offset >= :start AND offset < :start + max(1, (
            SELECT count(*) FROM (
                SELECT sum(size) OVER (ORDER BY offset) AS total FROM records
                WHERE topic = :topic AND offset >= :start AND offset < :stop
            ) WHERE total <= :bytes_max
        ))
        ORDER BY offset
    )
"""

# The same for columns. Without the sub-queries, which cost as much again: rows come in the order of the key, since the
# table is its own and only index.
_COLUMNS = """
    SELECT count(*), min(offset), max(offset), json_group_array(ts_us),
        json_group_array(length(id)), json_group_array(length(headers)), json_group_array(length(payload)),
        CAST(group_concat(id, '') AS BLOB),
        CAST(group_concat(headers, '') AS BLOB),
        CAST(group_concat(payload, '') AS BLOB)
    FROM records WHERE topic = :topic AND offset >= :start AND offset < :stop
"""

# Times never decrease and offsets have no gaps, so the offset can be found by bisection.
_OFFSET_AT = """
    WITH RECURSIVE search (low, high) AS (
        SELECT first, end FROM topic_state WHERE topic = :topic
        UNION ALL
        SELECT iif(ts_us < :ts_us, offset + 1, low), iif(ts_us < :ts_us, high, offset)
        FROM search JOIN records ON topic = :topic AND offset = (low + high) / 2
        WHERE low < high
    )
    SELECT low FROM search WHERE low >= high
"""

_decode_integers = msgspec.json.Decoder(list[int]).decode


class Reader:
    """A small pool of reading threads. Called on the event loop; each call uses a connection of its own."""

    def __init__(self, path: Path, *, threads: int) -> None:
        self._path = path
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="himalia-log-read")
        # One bulk read at a time: SQLite has one lock for all its memory allocations, so two of them would only wait
        # for each other, and delay the writer. The other threads are for reads of a few records.
        self._bulk = asyncio.Lock()
        self._idle: SimpleQueue[sqlite3.Connection] = SimpleQueue()

    async def read(self, topic: str, start: int, limit: int, bytes_max: int) -> Chunk:
        return await self._run(lambda db: _read(db, self._path, topic, start, limit, bytes_max))

    async def read_columns(self, topic: str, start: int, stop: int, bytes_max: int) -> ColumnChunk:
        async with self._bulk:
            return await self._run(lambda db: _read_columns(db, self._path, topic, start, stop, bytes_max))

    async def offset_at(self, topic: str, ts_us: int) -> int:
        return await self._run(lambda db: _offset_at(db, self._path, topic, ts_us))

    def close(self) -> None:
        """Finish running reads, then close. Blocks: call it in a thread."""
        self._threads.shutdown(wait=True)
        while True:
            try:
                self._idle.get_nowait().close()
            except Empty:
                return

    async def _run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        def in_thread() -> T:
            with translate_errors(self._path), self._connection() as db:
                return work(db)

        return await asyncio.get_running_loop().run_in_executor(self._threads, in_thread)

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        """Yield a connection inside one read transaction: all its reads see the same state."""
        try:
            db = self._idle.get_nowait()
        except Empty:
            db = connect_reader(self._path)
        try:
            db.execute("BEGIN")
            yield db
            db.execute("COMMIT")
        except BaseException:
            # It may be in any state; the next call opens a new one.
            db.close()
            raise
        self._idle.put(db)


def _read(db: sqlite3.Connection, path: Path, topic: str, start: int, limit: int, bytes_max: int) -> Chunk:
    found = db.execute(_STATE, (topic,)).fetchone()
    if found is None:
        raise TopicNotFound(topic)
    number, epoch, first, end, size_bytes = found
    start = max(start, first)
    stop = min(end, start + limit)
    # How many rows to read to fill bytes_max, estimated from the average record, with a margin.
    guess = bytes_max * (end - first) * 5 // (max(size_bytes, 1) * 4)
    rows_max = min(max(guess, 16), ROWS_PER_QUERY)
    records: list[Record] = []
    while start < stop and (bytes_max > 0 or not records):
        rows = (number, start, min(stop, start + rows_max), bytes_max)
        chunk = _records(db, path, topic, *rows)
        size = sum([record.size_bytes for record in chunk])
        if records and size > bytes_max:
            break
        records += chunk
        bytes_max -= size
        start += len(chunk)
    return Chunk(records, first, end, epoch)


def _records(
    db: sqlite3.Connection, path: Path, topic: str, number: int, start: int, stop: int, bytes_max: int
) -> list[Record]:
    """Return at least one record from ``start`` on, and further ones before ``stop`` that fit into ``bytes_max``."""
    given = {"topic": number, "start": start, "stop": stop, "bytes_max": bytes_max}
    row = db.execute(_RECORDS, given).fetchone()
    offsets, times, *lengths = (_decode_integers(column) for column in row[:5])
    if not offsets or offsets != list(range(start, start + len(offsets))):
        raise records_missing(path, topic, start)
    ids, headers, payloads = row[5:]
    records = []
    a = b = c = 0
    for offset, ts_us, id_length, headers_length, payload_length in zip(
        offsets, times, *lengths, strict=True
    ):
        a_end, b_end, c_end = a + id_length, b + headers_length, c + payload_length
        records.append(
            Record(topic, offset, ts_us, ids[a:a_end].decode(), headers[b:b_end], payloads[c:c_end])
        )
        a, b, c = a_end, b_end, c_end
    return records


def _read_columns(
    db: sqlite3.Connection, path: Path, topic: str, start: int, stop: int, bytes_max: int
) -> ColumnChunk:
    found = db.execute(_STATE, (topic,)).fetchone()
    if found is None:
        raise TopicNotFound(topic)
    number, epoch, first, end, size_bytes = found
    start = max(start, first)
    # As many as fill bytes_max if they are of average size, as they usually are.
    guess = bytes_max * (end - first) // max(size_bytes, 1) + 1
    stop = min(stop, end, start + min(guess, ROWS_PER_QUERY))
    row = _fetch_columns(db, number, start, stop, 2 * bytes_max) if start < stop else None
    if row is None:
        return to_columns(_read(db, path, topic, start, max(stop - start, 0), bytes_max), start)
    if row[:3] != (stop - start, start, stop - 1):
        raise records_missing(path, topic, start)
    times, *lengths = (_decode_integers(column) for column in row[3:7])
    ids, headers, payloads = map(PackedColumn, row[7:], lengths)
    return ColumnChunk(start, times, ids, headers, payloads, first, end, epoch)


def _fetch_columns(
    db: sqlite3.Connection, number: int, start: int, stop: int, length_max: int
) -> tuple[Any, ...] | None:
    """Return the row of ``_COLUMNS``; None if it would be too long, which SQLite finds out without building it."""
    given = {"topic": number, "start": start, "stop": stop}
    usual = db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, max(length_max, LENGTH_MIN))
    try:
        row: tuple[Any, ...] = db.execute(_COLUMNS, given).fetchone()
        return row
    except sqlite3.DataError:
        return None
    finally:
        db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, usual)


def _offset_at(db: sqlite3.Connection, path: Path, topic: str, ts_us: int) -> int:
    found = db.execute(_STATE, (topic,)).fetchone()
    if found is None:
        raise TopicNotFound(topic)
    offset = db.execute(_OFFSET_AT, {"topic": found[0], "ts_us": ts_us}).fetchone()
    if offset is None:
        raise records_missing(path, topic, found[2])
    return int(offset[0])
