"""The statements of the write connection, and loading the state. Decides nothing: ``transaction`` does."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from himalia.log.clock import LogClock, SavedClock
from himalia.log.dedup import DedupEntry, scope_key
from himalia.log.sqlite.database import (
    BUSY_TIMEOUT_S,
    RENEW_EPOCHS,
    check,
    connect,
    migrate,
    prepare_to_write,
)
from himalia.log.sqlite.errors import corrupt
from himalia.log.sqlite.multi_row_insert import MultiRowInsert
from himalia.log.sqlite.producer_table import ProducerTable
from himalia.log.sqlite.recovery import Recovery
from himalia.log.topic_state import Era, TopicState
from himalia.log.transaction import LogState, TopicChange, Transaction
from himalia.record import Retention
from himalia.topics import AUDIT_TOPIC, KERNEL_TOPIC_PREFIX

PROBE_BYTES = 65_536
SHRINK_PAGES_MIN = 16_384
"""Free pages (64 MiB) below which the file is not shrunk: new records use them again."""

_insert_records = MultiRowInsert("records", 7)
_insert_topics = MultiRowInsert("topics", 8)
_save_states = MultiRowInsert("topic_state", 6, verb="INSERT OR REPLACE")
_insert_eras = MultiRowInsert("eras", 3)


class Store:
    """The write connection. Used by the writer thread only; raises ``sqlite3.Error``."""

    def __init__(self, path: Path, recovery: Recovery | None = None) -> None:
        """``recovery`` is given when the log is opened, and then has its ``loss``; not for later connections."""
        self.path = path
        self.db = connect(path)
        try:
            if recovery is not None:
                recovery.find_loss(self.db)
            # Before anything is set, which writes to the file: it may belong to another program.
            check(self.db, path)
            prepare_to_write(self.db, path)
            migrate(self.db, path)
        except BaseException:
            self.db.close()
            raise
        self.producers = ProducerTable(self.db)

    def close(self) -> None:
        self.db.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit the block, or roll it back. If ``COMMIT`` fails, only a new connection can tell which happened."""
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
                # SQLite has rolled back by itself, or the connection is unusable and will be replaced.
                pass

    def write(self, transaction: Transaction) -> None:
        """Store a transaction: all of it, or nothing if this raises."""
        with self.transaction():
            self._write_topics(transaction.topic_changes)
            self._write_records(transaction.topic_changes)
            self.producers.write(transaction.topic_changes)
            self.producers.save_counts(transaction.producer_counts)
            self.save_states([change.state for change in transaction.topic_changes])
        self.producers.on_commit(transaction.topic_changes)

    def save_states(self, states: Sequence[TopicState]) -> None:
        values: list[Any] = []
        for state in states:
            values += (state.id, state.first, state.end, state.bytes, state.last_ts_us, state.first_ts_us)
        _save_states(self.db, values)

    def read_topics(self) -> list[TopicState]:
        """Return all topics; those that are deleted and not erased yet have an empty name."""
        rows = self.db.execute(
            """
            SELECT id, coalesce(name, ''), epoch, created_us, retention_age_s, retention_bytes, retention_count,
                first, end, bytes, last_ts_us, first_ts_us, owner
            FROM topics JOIN topic_state ON topic_state.topic = topics.id
            """
        )
        states = [_make_state(*row) for row in rows]
        eras: dict[int, list[Era]] = {}
        for topic, stop, shift_us in self.db.execute("SELECT topic, stop, shift_us FROM eras ORDER BY stop"):
            eras.setdefault(topic, []).append(Era(stop, shift_us))
        for state in states:
            state.eras = tuple(eras.get(state.id, ()))
        return states

    def load_clock(self) -> SavedClock | None:
        row = self.db.execute(
            "SELECT boot_id, steady_us, log_us, age_us, held_until_us, doubt, jump_us, assumed_us FROM clock"
        ).fetchone()
        return None if row is None else SavedClock(*row)

    def save_clock(self, clock: SavedClock) -> None:
        """Inside the caller's transaction."""
        self.db.execute(
            "INSERT OR REPLACE INTO clock VALUES (1, ?, ?, ?, ?, ?, ?, ?, ?)", msgspec.structs.astuple(clock)
        )

    def save_eras(self, states: Sequence[TopicState]) -> None:
        """Replace the eras of these topics, inside the caller's transaction."""
        for state in states:
            self.db.execute("DELETE FROM eras WHERE topic = ?", (state.id,))
        rows = [
            value for state in states for era in state.eras for value in (state.id, era.stop, era.shift_us)
        ]
        _insert_eras(self.db, rows)

    def read_last_topic_id(self) -> int:
        row = self.db.execute("SELECT seq FROM sqlite_sequence WHERE name = 'topics'").fetchone()
        return int(row[0]) if row else 0

    def read_newest_ids(self, topic: int, limit: int) -> Iterator[tuple[str, int, int, bytes]]:
        """Yield ids, offsets, times and headers of a topic's records, the newest first."""
        rows = self.db.execute(
            "SELECT id, offset, ts_us, headers FROM records WHERE topic = ? ORDER BY offset DESC LIMIT ?",
            (topic, limit),
        )
        for id, offset, ts_us, headers in rows:
            yield id.decode(), offset, ts_us, headers

    def read_trimmed_ids(self, after_us: int, shift_us: int) -> Iterator[DedupEntry]:
        """Yield the entries of records that retention has deleted, of those stored after this age."""
        rows = self.db.execute(
            "SELECT topic, id, offset, ts_us, caller FROM trimmed_ids WHERE ts_us > ?", (after_us,)
        )
        for topic, id, offset, age_us, caller in rows:
            yield DedupEntry(topic, scope_key(caller, id.decode()), offset, age_us + shift_us, age_us)

    def check_integrity(self) -> None:
        """Raise ``LogCorrupt`` unless the file is an intact database. Reads all of it."""
        for (text,) in self.db.execute("PRAGMA quick_check(1)"):
            if text != "ok":
                raise corrupt(self.path, text)

    def renew_epochs(self) -> None:
        with self.transaction():
            self.db.execute(RENEW_EPOCHS)

    def shrink(self, pages: int) -> bool:
        """Return free pages to the disk if most of the file is free. Returns whether there may be more."""
        (free,) = self.db.execute("PRAGMA freelist_count").fetchone()
        (total,) = self.db.execute("PRAGMA page_count").fetchone()
        if free < SHRINK_PAGES_MIN or free * 2 < total:
            return False
        # As a script, which runs all steps of the statement without acquiring the GIL in between.
        self.db.executescript(f"PRAGMA incremental_vacuum({pages})")
        return True

    def probe(self) -> None:
        """Write and delete a row, to prove that the log can store."""
        with self.transaction():
            self.db.execute("INSERT INTO probe VALUES (zeroblob(?))", (PROBE_BYTES,))
        with self.transaction():
            self.db.execute("DELETE FROM probe")

    def checkpoint(self) -> None:
        """Copy everything into the main file and truncate the write-ahead log, as far as readers allow."""
        self.db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def truncate_wal(self) -> bool:
        """Do the same as ``checkpoint`` without waiting for readers; return whether the write-ahead log is empty."""
        self.db.execute("PRAGMA busy_timeout = 0")
        try:
            (busy, _frames, _moved) = self.db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        finally:
            self.db.execute(f"PRAGMA busy_timeout = {round(BUSY_TIMEOUT_S * 1000)}")
        return not busy

    def _write_topics(self, changes: Sequence[TopicChange]) -> None:
        deleted = [s.state.id for s in changes if s.deleted and not s.created]
        # Before the new ones: one transaction may delete a topic and create another with the same name.
        for number in deleted:
            self.db.execute("UPDATE topics SET name = NULL WHERE id = ?", (number,))
        values: list[Any] = []
        for change in changes:
            if change.created:
                state = change.state
                kept = state.retention
                name = None if change.deleted else state.name
                values += (state.id, name, state.epoch, state.created_us)
                values += (kept.age_s, kept.bytes, kept.count, state.owner)
        _insert_topics(self.db, values)

    def _write_records(self, changes: Sequence[TopicChange]) -> None:
        values: list[Any] = []
        for change in changes:
            number = change.state.id
            for r, size in zip(change.records, change.sizes, strict=True):
                # As bytearrays: sqlite3 looks for an adapter for every bytes value, which takes longer than
                # copying and binding it.
                id, headers, payload = bytearray(r.id.encode()), bytearray(r.headers), bytearray(r.payload)
                values += (number, r.offset, r.ts_us, size, id, headers, payload)
        _insert_records(self.db, values)


def _make_state(*row: Any) -> TopicState:
    number, name, epoch, created_us, age_s, size_bytes, count, *rest = row
    return TopicState(number, name, epoch, created_us, Retention(age_s, size_bytes, count), *rest)


def load_topics(store: Store, log_state: LogState) -> list[TopicState]:
    """Load the topics of the file into the state; return those that are deleted but not erased yet."""
    states = store.read_topics()
    log_state.topics = {state.name: state for state in states if state.name}
    log_state.last_topic_id = store.read_last_topic_id()
    log_state.producers.counts = store.producers.read_counts()
    return [state for state in states if not state.name]


def load_dedup(store: Store, log_state: LogState, clock: LogClock) -> None:
    """Load the dedup index, in time that does not depend on the length of the history."""
    dedup = log_state.dedup
    dedup.clear()
    if not dedup.is_enabled:
        return
    age_us, shift_us = clock.now().age_us, clock.shift_us
    cutoff_us = age_us - dedup.window_us
    known = {state.id for state in log_state.topics.values()}
    entries = [entry for entry in store.read_trimmed_ids(cutoff_us, shift_us) if entry.topic in known]
    for state in log_state.topics.values():
        if state.age_us(state.end - 1, state.last_ts_us, shift_us) <= cutoff_us:
            continue
        is_own = state.name == AUDIT_TOPIC or state.name.startswith(KERNEL_TOPIC_PREFIX)
        for id, offset, ts_us, headers in store.read_newest_ids(state.id, dedup.ids_max):
            # At most now: the times of a topic with wrong dates are meaningless.
            stored_us = min(state.age_us(offset, ts_us, shift_us), age_us)
            if stored_us <= cutoff_us:
                break
            key = id if is_own else scope_key(_caller(headers), id)
            entries.append(DedupEntry(state.id, key, offset, ts_us, stored_us))
        if len(entries) > 2 * dedup.ids_max:
            entries = _newest(entries, dedup.ids_max)
            cutoff_us = max(cutoff_us, entries[0].age_us - 1)
    dedup.add(_newest(entries, dedup.ids_max), age_us)


class _CallerHeader(msgspec.Struct):
    caller: str | None = None


_decode_caller = msgspec.json.Decoder(_CallerHeader).decode


def _caller(headers: bytes) -> str | None:
    """Return the caller of a record, from the header that the server wrote; None for one of an earlier version."""
    try:
        return _decode_caller(headers).caller
    except msgspec.MsgspecError:
        return None


def _newest(entries: list[DedupEntry], count: int) -> list[DedupEntry]:
    """Return the newest of these entries, the oldest of them first."""
    return sorted(entries, key=lambda entry: (entry.age_us, entry.topic, entry.offset))[-count:]
