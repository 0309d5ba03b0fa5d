"""Statements that delete old rows in small steps, between two groups of appends.

Records are trimmed from the front of several topics at once; producers that were not used for long are deleted once an
hour.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence

import msgspec

from himalia.log.clock import LogClock
from himalia.log.producers import Producers
from himalia.log.sqlite.store import Store

STEP_BYTES = 4 << 20
NEVER_US = (1 << 63) - 1


class Cut(msgspec.Struct, frozen=True, array_like=True):
    """What of a topic goes: the records before ``stop`` that meet one of the three conditions.

    The conditions hold for a record only if they hold for all before it, so that a cut leaves no hole.
    """

    topic: int
    first: int
    stop: int
    """Look no further than this."""
    keep_from: int
    """Records before this offset go."""
    keep_since_us: int
    """Records older than this go."""
    excess_bytes: int
    """The oldest records go until they make up this many bytes; but never the newest one of all."""
    last: int
    """The offset of that one."""
    remember_since_us: int = NEVER_US
    """Of records that are not older, a repeat of their ids must still be recognised."""
    shift_us: int = 0
    """By how much these records are dated later than their ages say."""


class Removed(msgspec.Struct, frozen=True, array_like=True):
    topic: int
    first: int
    """The first offset that is kept."""
    count: int
    bytes: int


# ``before`` is what goes before the record, in bytes: a step ends at STEP_BYTES, but removes at least one record.
_MEASURE = """
    WITH cuts AS (
        SELECT json_extract(value, '$[0]') AS topic, json_extract(value, '$[1]') AS first,
            json_extract(value, '$[2]') AS stop, json_extract(value, '$[3]') AS keep_from,
            json_extract(value, '$[4]') AS keep_since_us, json_extract(value, '$[5]') AS excess_bytes,
            json_extract(value, '$[6]') AS last
        FROM json_each(:cuts)
    ), looked_at AS (
        SELECT cuts.*, offset, size, ts_us,
            sum(size) OVER (PARTITION BY records.topic ORDER BY offset) - size AS before
        FROM cuts CROSS JOIN records
        ON records.topic = cuts.topic AND offset >= cuts.first AND offset < cuts.stop
    )
    SELECT json_group_array(json_array(topic, first + count, count, bytes)) FROM (
        SELECT topic, first, count(*) AS count, sum(size) AS bytes FROM looked_at
        WHERE before < :step_bytes AND (
            offset < keep_from OR ts_us < keep_since_us OR (before < excess_bytes AND offset < last)
        )
        GROUP BY topic
    )
"""

_RANGES = """
    SELECT json_extract(value, '$[0]') AS topic, json_extract(value, '$[1]') AS first,
        json_extract(value, '$[2]') AS stop, json_extract(value, '$[3]') AS remember_since_us,
        json_extract(value, '$[4]') AS shift_us
    FROM json_each(:ranges)
"""

_REMEMBER = f"""
    INSERT OR REPLACE INTO trimmed_ids
    SELECT ts_us - shift_us, records.topic, offset, id,
        CASE WHEN json_valid(CAST(headers AS TEXT)) THEN json_extract(CAST(headers AS TEXT), '$.caller') END
    FROM ({_RANGES}) AS cut CROSS JOIN records
    ON records.topic = cut.topic AND offset >= cut.first AND offset < cut.stop
    WHERE ts_us >= cut.remember_since_us
"""

_REMOVE = f"""
    DELETE FROM records WHERE (topic, offset) IN (
        SELECT records.topic, offset FROM ({_RANGES}) AS cut CROSS JOIN records
        ON records.topic = cut.topic AND offset >= cut.first AND offset < cut.stop
    )
"""

_FIRST_TIMES = f"""
    SELECT json_group_array(json_array(records.topic, ts_us)) FROM ({_RANGES}) AS cut CROSS JOIN records
    ON records.topic = cut.topic AND offset = cut.stop
"""

_decode_removed = msgspec.json.Decoder(list[Removed]).decode
_decode_pairs = msgspec.json.Decoder(list[tuple[int, int]]).decode


def cut(db: sqlite3.Connection, cuts: Sequence[Cut]) -> dict[int, Removed]:
    """Remove records, inside the caller's transaction. Returns what went, by topic; the caller saves that."""
    given = {"cuts": _json(cuts), "step_bytes": STEP_BYTES}
    removed = _decode_removed(db.execute(_MEASURE, given).fetchone()[0])
    remember = {cut.topic: (cut.remember_since_us, cut.shift_us) for cut in cuts}
    ranges = _json([(r.topic, r.first - r.count, r.first, *remember[r.topic]) for r in removed])
    if any(since_us < NEVER_US for since_us, _ in remember.values()):
        db.execute(_REMEMBER, {"ranges": ranges})
    db.execute(_REMOVE, {"ranges": ranges})
    return {r.topic: r for r in removed}


def first_times(db: sqlite3.Connection, removed: Iterable[Removed]) -> dict[int, int]:
    """The time of the first record that is kept, by topic, for those that still have one."""
    ranges = _json([(r.topic, 0, r.first) for r in removed])
    return dict(_decode_pairs(db.execute(_FIRST_TIMES, {"ranges": ranges}).fetchone()[0]))


def forget_ids(db: sqlite3.Connection, before_us: int, limit: int) -> int | None:
    """Drop ids kept aside that no longer count, and return the age of the oldest that is left, if any."""
    db.execute(
        """
        DELETE FROM trimmed_ids WHERE (ts_us, topic, offset) IN (
            SELECT ts_us, topic, offset FROM trimmed_ids WHERE ts_us < ? ORDER BY ts_us LIMIT ?
        )
        """,
        (before_us, limit),
    )
    return oldest_id_us(db)


def take_back_ids(db: sqlite3.Connection, taken_us: int, age_us: int) -> None:
    """Ages were taken back: have ids kept aside that would be newer than now count from when they were stored."""
    db.execute("UPDATE trimmed_ids SET ts_us = ts_us - ? WHERE ts_us > ?", (taken_us, age_us))


def oldest_id_us(db: sqlite3.Connection) -> int | None:
    (oldest_us,) = db.execute("SELECT min(ts_us) FROM trimmed_ids").fetchone()
    return None if oldest_us is None else int(oldest_us)


def erase_producers(db: sqlite3.Connection, topic: int, limit: int) -> list[str]:
    """Remove so many producers of a deleted topic; returns which. Fewer than the limit were the last."""
    rows = db.execute(
        "SELECT producer FROM producers WHERE topic = ? ORDER BY producer LIMIT ?", (topic, limit)
    ).fetchall()
    names = [name for (name,) in rows]
    if names:
        db.execute("DELETE FROM producers WHERE topic = ? AND producer <= ?", (topic, names[-1]))
    return names


def erase_rest(db: sqlite3.Connection, topic: int) -> None:
    """Remove what a deleted topic without records and producers leaves behind."""
    db.execute("DELETE FROM trimmed_ids WHERE topic = ?", (topic,))
    db.execute("DELETE FROM eras WHERE topic = ?", (topic,))
    db.execute("DELETE FROM topic_state WHERE topic = ?", (topic,))
    db.execute("DELETE FROM topics WHERE id = ?", (topic,))


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


SWEEP_EVERY_US = 3600 * 1_000_000
ROWS_PER_STEP = 2000
START = (0, "")
"""Before the first producer: topics are numbered from 1."""


class ProducerSweep:
    """One pass over all producers at a time, in the order of the table. Belongs to the writer's thread.

    The table has no index by age: the index would be written with every batch, while a pass reads a million rows
    in a second or two, spread over steps.
    """

    def __init__(self, producers: Producers, clock: LogClock) -> None:
        self._producers = producers
        self._clock = clock
        self._began_us = -SWEEP_EVERY_US
        # The last row that this pass has looked at; None while there is no pass.
        self._after: tuple[int, str] | None = None

    @property
    def is_due(self) -> bool:
        return self._after is not None and not self._clock.is_held

    def tick(self) -> None:
        """Begin a pass if the last one began an hour ago, or later than now: ages can be taken back."""
        now_us = self._clock.last.age_us
        is_recent = self._began_us <= now_us < self._began_us + SWEEP_EVERY_US
        if self._producers.age_us and self._after is None and not is_recent:
            self._after = START
            self._began_us = now_us

    def step(self, store: Store) -> None:
        """Look at the next rows, and forget those that are too old."""
        assert self._after is not None
        cutoff_us = self._clock.last.age_us - self._producers.age_us
        rows = store.producers_after(*self._after, ROWS_PER_STEP)
        expired = [(topic, producer) for topic, producer, age_us in rows if age_us <= cutoff_us]
        if expired:
            counts = self._producers.counts_without(producer for _, producer in expired)
            with store.transaction():
                store.forget_producers(expired)
                store.save_producer_counts(counts)
            self._producers.update(counts)
        self._after = rows[-1][:2] if len(rows) == ROWS_PER_STEP else None
