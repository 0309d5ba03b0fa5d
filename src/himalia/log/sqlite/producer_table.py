"""The rows of producers in the log file: the last batch of each, and how many producers each caller has."""

from __future__ import annotations

import sqlite3
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from himalia.log.clock import LogClock
from himalia.log.producers import Producers, ProducerState
from himalia.log.sqlite.multi_row_insert import MultiRowInsert
from himalia.log.transaction import TopicChange

PRODUCERS_CACHED = 65_536
SWEEP_EVERY_US = 3600 * 1_000_000
ROWS_PER_STEP = 2000
START = (0, "")
"""Before the first producer: topics are numbered from 1."""

_save_producers = MultiRowInsert("producers", 7, verb="INSERT OR REPLACE")
_save_counts = MultiRowInsert("producer_counts", 2, verb="INSERT OR REPLACE")


class ProducerTable:
    """The tables ``producers`` and ``producer_counts``, and a cache of rows. Used by the writer thread.

    What writes runs inside the caller's transaction.
    """

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        # By topic and name, the one that has not been used for longest first.
        self._cached: OrderedDict[tuple[int, str], ProducerState] = OrderedDict()

    def find(self, topic: int, producer: str) -> ProducerState | None:
        """Return the last batch of a producer, by the topic's number and the producer's scoped name."""
        last = self._cached.get((topic, producer))
        if last is None:
            row = self._db.execute(
                """
                SELECT sequence, first_offset, count, ts_us, age_us FROM producers
                WHERE topic = ? AND producer = ?
                """,
                (topic, producer),
            ).fetchone()
            if row is None:
                return None
            last = ProducerState(*row)
            self._cache(topic, producer, last)
        return last

    def read_after(self, topic: int, producer: str, limit: int) -> list[tuple[int, str, int]]:
        """Return topics, names and ages of the producers that follow this one in the table."""
        return self._db.execute(
            """
            SELECT topic, producer, age_us FROM producers WHERE (topic, producer) > (?, ?)
            ORDER BY topic, producer LIMIT ?
            """,
            (topic, producer, limit),
        ).fetchall()

    def write(self, changes: Sequence[TopicChange]) -> None:
        """Save the producers of a transaction, and delete the unscoped names that it claimed."""
        values: list[Any] = []
        for change in changes:
            for producer, last in change.producers.items():
                values += (
                    change.state.id,
                    producer,
                    last.sequence,
                    last.first_offset,
                    last.count,
                    last.ts_us,
                    last.age_us,
                )
            for producer in change.claimed:
                given = (change.state.id, producer)
                self._db.execute("DELETE FROM producers WHERE topic = ? AND producer = ?", given)
        _save_producers(self._db, values)

    def on_commit(self, changes: Sequence[TopicChange]) -> None:
        """Update the cache with the changes of a transaction that is committed."""
        for change in changes:
            for producer, last in change.producers.items():
                self._cache(change.state.id, producer, last)
            for producer in change.claimed:
                self._cached.pop((change.state.id, producer), None)

    def delete(self, named: Sequence[tuple[int, str]]) -> None:
        """Delete producers, by the topic's number and the name."""
        self._db.executemany("DELETE FROM producers WHERE topic = ? AND producer = ?", named)
        for topic_and_producer in named:
            self._cached.pop(topic_and_producer, None)

    def erase_topic(self, topic: int, limit: int) -> list[str]:
        """Delete up to ``limit`` producers of a deleted topic; return their names, fewer than ``limit`` at the end."""
        rows = self._db.execute(
            "SELECT producer FROM producers WHERE topic = ? ORDER BY producer LIMIT ?", (topic, limit)
        ).fetchall()
        names = [name for (name,) in rows]
        if names:
            self._db.execute("DELETE FROM producers WHERE topic = ? AND producer <= ?", (topic, names[-1]))
        return names

    def read_counts(self) -> dict[str, int]:
        """Return the number of producers by caller."""
        return dict(self._db.execute("SELECT caller, count FROM producer_counts"))

    def save_counts(self, counts: Mapping[str, int]) -> None:
        """Replace the counts of these callers; delete those that are 0."""
        for caller in [caller for caller, count in counts.items() if not count]:
            self._db.execute("DELETE FROM producer_counts WHERE caller = ?", (caller,))
        _save_counts(self._db, [value for item in counts.items() if item[1] for value in item])

    def _cache(self, topic: int, producer: str, last: ProducerState) -> None:
        self._cached[topic, producer] = last
        self._cached.move_to_end((topic, producer))
        if len(self._cached) > PRODUCERS_CACHED:
            self._cached.popitem(last=False)


class ProducerSweep:
    """Deletes producers that have been unused for too long, in one pass over the table per hour. Writer thread.

    The table has no index by age: the index would be written with every batch, while a pass reads a million rows
    in a second or two, spread over steps.
    """

    def __init__(self, producers: Producers, clock: LogClock) -> None:
        self._producers = producers
        self._clock = clock
        self._began_us = -SWEEP_EVERY_US
        # The last row that this pass has read; None between passes.
        self._after: tuple[int, str] | None = None

    @property
    def is_due(self) -> bool:
        return self._after is not None and not self._clock.is_held

    def tick(self) -> None:
        """Begin a pass if the last one began an hour ago, or later than now: ages can be reduced."""
        now_us = self._clock.last.age_us
        is_recent = self._began_us <= now_us < self._began_us + SWEEP_EVERY_US
        if self._producers.age_us and self._after is None and not is_recent:
            self._after = START
            self._began_us = now_us

    def step(self, table: ProducerTable, transaction: AbstractContextManager[None]) -> None:
        """Read the next rows, and delete those that are too old, in this transaction."""
        assert self._after is not None
        cutoff_us = self._clock.last.age_us - self._producers.age_us
        rows = table.read_after(*self._after, ROWS_PER_STEP)
        expired = [(topic, producer) for topic, producer, age_us in rows if age_us <= cutoff_us]
        if expired:
            counts = self._producers.counts_without(producer for _, producer in expired)
            with transaction:
                table.delete(expired)
                table.save_counts(counts)
            self._producers.update(counts)
        self._after = rows[-1][:2] if len(rows) == ROWS_PER_STEP else None
