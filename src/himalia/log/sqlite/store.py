"""The statements of the writer's connection. Nothing here decides anything: ``staging`` has decided."""

from __future__ import annotations

import sqlite3
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from himalia.log.ids import StoredId
from himalia.log.sqlite.connection import connect, prepare_to_write
from himalia.log.sqlite.schema import check, migrate
from himalia.log.sqlite.wide import WideInsert
from himalia.log.staging import Group, ProducerMark, Staged, TopicState
from himalia.record import Retention

PRODUCERS_REMEMBERED = 65_536
PROBE_BYTES = 65_536
SHRINK_PAGES_MIN = 16_384
"""Free pages (64 MiB) below which the file is not shrunk: they will be used again."""

_insert_records = WideInsert("records", 7)
_insert_topics = WideInsert("topics", 7)
_save_states = WideInsert("topic_state", 6, verb="INSERT OR REPLACE")
_save_producers = WideInsert("producers", 6, verb="INSERT OR REPLACE")


class Store:
    """The write connection. Used by one thread; raises ``sqlite3.Error``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.db = connect(path)
        try:
            # Before anything is set, and so written: it may be somebody else's file.
            check(self.db, path)
            prepare_to_write(self.db, path)
            migrate(self.db, path)
        except BaseException:
            self.db.close()
            raise
        self._producers: OrderedDict[tuple[int, str], ProducerMark] = OrderedDict()

    def close(self) -> None:
        self.db.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All or nothing. When ``COMMIT`` itself fails, only a new connection can tell which of the two."""
        self.db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self.db.execute("COMMIT")
        except BaseException:
            self.rollback()
            raise

    def rollback(self) -> None:
        if self.db.in_transaction:
            try:
                self.db.execute("ROLLBACK")
            except sqlite3.Error:
                # SQLite has rolled back by itself, or the connection is beyond use and will be replaced.
                pass

    def write(self, group: Group) -> None:
        with self.transaction():
            self._write_topics(group.staged)
            self._write_records(group.staged)
            self._write_producers(group.staged)
            self.save_states([staged.state for staged in group.staged])
        for staged in group.staged:
            for producer, mark in staged.marks.items():
                self._remember(staged.state.id, producer, mark)

    def save_states(self, states: Sequence[TopicState]) -> None:
        values: list[Any] = []
        for state in states:
            values += (state.id, state.first, state.end, state.bytes, state.last_ts_us, state.first_ts_us)
        _save_states(self.db, values)

    def find_producer(self, topic: int, producer: str) -> ProducerMark | None:
        mark = self._producers.get((topic, producer))
        if mark is None:
            row = self.db.execute(
                "SELECT sequence, first_offset, count, ts_us FROM producers WHERE topic = ? AND producer = ?",
                (topic, producer),
            ).fetchone()
            if row is None:
                return None
            mark = ProducerMark(*row)
            self._remember(topic, producer, mark)
        return mark

    def topics(self) -> list[TopicState]:
        """All topics; those that are deleted and not erased yet have an empty name."""
        rows = self.db.execute(
            """
            SELECT id, coalesce(name, ''), epoch, created_us,
                retention_age_s, retention_bytes, retention_count, first, end, bytes, last_ts_us, first_ts_us
            FROM topics JOIN topic_state ON topic_state.topic = topics.id
            """
        )
        return [_state(*row) for row in rows]

    def last_topic_id(self) -> int:
        row = self.db.execute("SELECT seq FROM sqlite_sequence WHERE name = 'topics'").fetchone()
        return int(row[0]) if row else 0

    def newest_ids(self, topic: int, after_us: int, limit: int) -> Iterator[StoredId]:
        """Ids of a topic's records younger than that, the newest first."""
        rows = self.db.execute(
            "SELECT id, offset, ts_us FROM records WHERE topic = ? ORDER BY offset DESC LIMIT ?",
            (topic, limit),
        )
        for id, offset, ts_us in rows:
            if ts_us <= after_us:
                return
            yield StoredId(topic, id.decode(), offset, ts_us)

    def trimmed_ids(self, after_us: int) -> Iterator[StoredId]:
        rows = self.db.execute(
            "SELECT topic, id, offset, ts_us FROM trimmed_ids WHERE ts_us > ?", (after_us,)
        )
        for topic, id, offset, ts_us in rows:
            yield StoredId(topic, id.decode(), offset, ts_us)

    def shrink(self, pages: int) -> bool:
        """Give free pages back to the disk if most of the file is free. Returns whether there are more."""
        (free,) = self.db.execute("PRAGMA freelist_count").fetchone()
        (total,) = self.db.execute("PRAGMA page_count").fetchone()
        if free < SHRINK_PAGES_MIN or free * 2 < total:
            return False
        # A script, because it takes all steps of the statement without asking for Python's lock in between.
        self.db.executescript(f"PRAGMA incremental_vacuum({pages})")
        return True

    def probe(self) -> None:
        """Prove that something can be stored, by storing it."""
        with self.transaction():
            self.db.execute("INSERT INTO probe VALUES (zeroblob(?))", (PROBE_BYTES,))
        with self.transaction():
            self.db.execute("DELETE FROM probe")

    def checkpoint(self) -> None:
        """Move everything into the main file and empty the write-ahead log, as far as readers allow."""
        self.db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def _write_topics(self, all_staged: Sequence[Staged]) -> None:
        deleted = [s.state.id for s in all_staged if s.deleted and not s.created]
        # Before the new ones: a name may be freed and taken again in one group.
        for number in deleted:
            self.db.execute("UPDATE topics SET name = NULL WHERE id = ?", (number,))
        values: list[Any] = []
        for staged in all_staged:
            if staged.created:
                state = staged.state
                kept = state.retention
                name = None if staged.deleted else state.name
                values += (state.id, name, state.epoch, state.created_us, kept.age_s, kept.bytes, kept.count)
        _insert_topics(self.db, values)

    def _write_records(self, all_staged: Sequence[Staged]) -> None:
        values: list[Any] = []
        for staged in all_staged:
            number = staged.state.id
            for r in staged.records:
                size = len(r.id) + len(r.headers) + len(r.payload)
                # As bytearrays: sqlite3 looks for an adapter for every bytes value, which takes longer than
                # copying and binding it.
                id, headers, payload = bytearray(r.id.encode()), bytearray(r.headers), bytearray(r.payload)
                values += (number, r.offset, r.ts_us, size, id, headers, payload)
        _insert_records(self.db, values)

    def _write_producers(self, all_staged: Sequence[Staged]) -> None:
        values: list[Any] = []
        for staged in all_staged:
            for producer, mark in staged.marks.items():
                values += (
                    staged.state.id,
                    producer,
                    mark.sequence,
                    mark.first_offset,
                    mark.count,
                    mark.ts_us,
                )
        _save_producers(self.db, values)

    def _remember(self, topic: int, producer: str, mark: ProducerMark) -> None:
        self._producers[topic, producer] = mark
        self._producers.move_to_end((topic, producer))
        if len(self._producers) > PRODUCERS_REMEMBERED:
            self._producers.popitem(last=False)


def _state(*row: Any) -> TopicState:
    number, name, epoch, created_us, age_s, size_bytes, count, *rest = row
    return TopicState(number, name, epoch, created_us, Retention(age_s, size_bytes, count), *rest)
