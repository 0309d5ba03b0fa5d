"""Statements that delete old records in small steps, between two transactions of appends.

A step trims several topics at once, from the front of each.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence

import msgspec

STEP_BYTES = 4 << 20
NEVER_US = (1 << 63) - 1


class TrimRange(msgspec.Struct, frozen=True, array_like=True):
    """What to delete of a topic: the records before ``stop`` that meet one of the three conditions.

    The conditions hold for a record only if they hold for all before it, so that a trim leaves no gap.
    """

    topic: int
    first: int
    stop: int
    """The step looks at no record from here on."""
    keep_from: int
    """Delete records before this offset."""
    keep_since_us: int
    """Delete records dated before this."""
    excess_bytes: int
    """Delete the oldest records until they make up this many bytes, but never ``last``."""
    last: int
    """The offset of the topic's newest record."""
    keep_ids_since_us: int = NEVER_US
    """Ids of records dated from here on are kept: a repeat of them must still be recognised."""
    shift_us: int = 0
    """By how much these records are dated later than their ages say."""


class TrimResult(msgspec.Struct, frozen=True, array_like=True):
    topic: int
    first: int
    """The first offset that was kept."""
    count: int
    bytes: int


# ``before`` is the bytes before the record: a step ends at STEP_BYTES, but deletes at least one record.
_MEASURE = """
    WITH ranges AS (
        SELECT json_extract(value, '$[0]') AS topic, json_extract(value, '$[1]') AS first,
            json_extract(value, '$[2]') AS stop, json_extract(value, '$[3]') AS keep_from,
            json_extract(value, '$[4]') AS keep_since_us, json_extract(value, '$[5]') AS excess_bytes,
            json_extract(value, '$[6]') AS last
        FROM json_each(:ranges)
    ), examined AS (
        SELECT ranges.*, offset, size, ts_us,
            sum(size) OVER (PARTITION BY records.topic ORDER BY offset) - size AS before
        FROM ranges CROSS JOIN records
        ON records.topic = ranges.topic AND offset >= ranges.first AND offset < ranges.stop
    )
    SELECT json_group_array(json_array(topic, first + count, count, bytes)) FROM (
        SELECT topic, first, count(*) AS count, sum(size) AS bytes FROM examined
        WHERE before < :step_bytes AND (
            offset < keep_from OR ts_us < keep_since_us OR (before < excess_bytes AND offset < last)
        )
        GROUP BY topic
    )
"""

_RANGES = """
    SELECT json_extract(value, '$[0]') AS topic, json_extract(value, '$[1]') AS first,
        json_extract(value, '$[2]') AS stop, json_extract(value, '$[3]') AS keep_ids_since_us,
        json_extract(value, '$[4]') AS shift_us
    FROM json_each(:ranges)
"""

_KEEP_IDS = f"""
    INSERT OR REPLACE INTO trimmed_ids
    SELECT ts_us - shift_us, records.topic, offset, id,
        CASE WHEN json_valid(CAST(headers AS TEXT)) THEN json_extract(CAST(headers AS TEXT), '$.caller') END
    FROM ({_RANGES}) AS trim_range CROSS JOIN records
    ON records.topic = trim_range.topic AND offset >= trim_range.first AND offset < trim_range.stop
    WHERE ts_us >= trim_range.keep_ids_since_us
"""

_DELETE = f"""
    DELETE FROM records WHERE (topic, offset) IN (
        SELECT records.topic, offset FROM ({_RANGES}) AS trim_range CROSS JOIN records
        ON records.topic = trim_range.topic AND offset >= trim_range.first AND offset < trim_range.stop
    )
"""

_FIRST_TIMES = f"""
    SELECT json_group_array(json_array(records.topic, ts_us)) FROM ({_RANGES}) AS trim_range CROSS JOIN records
    ON records.topic = trim_range.topic AND offset = trim_range.stop
"""

_decode_results = msgspec.json.Decoder(list[TrimResult]).decode
_decode_pairs = msgspec.json.Decoder(list[tuple[int, int]]).decode


def trim(db: sqlite3.Connection, ranges: Sequence[TrimRange]) -> dict[int, TrimResult]:
    """Delete records, inside the caller's transaction; return the results by topic, for the caller to save."""
    given = {"ranges": _json(ranges), "step_bytes": STEP_BYTES}
    results = _decode_results(db.execute(_MEASURE, given).fetchone()[0])
    ids_since = {planned.topic: (planned.keep_ids_since_us, planned.shift_us) for planned in ranges}
    trimmed = _json([(r.topic, r.first - r.count, r.first, *ids_since[r.topic]) for r in results])
    if any(since_us < NEVER_US for since_us, _ in ids_since.values()):
        db.execute(_KEEP_IDS, {"ranges": trimmed})
    db.execute(_DELETE, {"ranges": trimmed})
    return {r.topic: r for r in results}


def read_first_times(db: sqlite3.Connection, results: Iterable[TrimResult]) -> dict[int, int]:
    """Return the time of the first record that was kept, by topic, for those that still have one."""
    ranges = _json([(r.topic, 0, r.first) for r in results])
    return dict(_decode_pairs(db.execute(_FIRST_TIMES, {"ranges": ranges}).fetchone()[0]))


def expire_trimmed_ids(db: sqlite3.Connection, before_us: int, limit: int) -> int | None:
    """Delete ids of trimmed records that have expired; return the age of the oldest that is left, if any."""
    db.execute(
        """
        DELETE FROM trimmed_ids WHERE (ts_us, topic, offset) IN (
            SELECT ts_us, topic, offset FROM trimmed_ids WHERE ts_us < ? ORDER BY ts_us LIMIT ?
        )
        """,
        (before_us, limit),
    )
    return read_oldest_id_us(db)


def rewind_trimmed_ids(db: sqlite3.Connection, by_us: int, age_us: int) -> None:
    """Reduce the ages of ids of trimmed records that would be newer than now, after ages were reduced by ``by_us``."""
    db.execute("UPDATE trimmed_ids SET ts_us = ts_us - ? WHERE ts_us > ?", (by_us, age_us))


def read_oldest_id_us(db: sqlite3.Connection) -> int | None:
    (oldest_us,) = db.execute("SELECT min(ts_us) FROM trimmed_ids").fetchone()
    return None if oldest_us is None else int(oldest_us)


def erase_topic_rows(db: sqlite3.Connection, topic: int) -> None:
    """Delete the rows of a deleted topic that has no records and producers left."""
    db.execute("DELETE FROM trimmed_ids WHERE topic = ?", (topic,))
    db.execute("DELETE FROM eras WHERE topic = ?", (topic,))
    db.execute("DELETE FROM topic_state WHERE topic = ?", (topic,))
    db.execute("DELETE FROM topics WHERE id = ?", (topic,))


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
