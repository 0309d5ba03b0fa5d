"""The values that everything else uses: records, positions, topics and their limits."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

Policy = Literal["drop_oldest", "disconnect", "lossless"]
"""What happens to a subscriber that lags behind by more than its limit."""


class Record(msgspec.Struct, frozen=True, gc=False):
    """One stored message. Immutable, so it may be shared between threads and subscribers.

    ``headers`` and ``payload`` are JSON as bytes, stored as received and never encoded again.
    """

    topic: str
    offset: int
    ts_us: int
    id: str
    headers: bytes
    payload: bytes

    @property
    def size_bytes(self) -> int:
        return size_bytes(self.id, self.headers, self.payload)


class Draft(msgspec.Struct, frozen=True, gc=False):
    """A record that is not stored yet: the log assigns its offset and time."""

    id: str
    payload: bytes
    headers: bytes = b"{}"

    @property
    def size_bytes(self) -> int:
        return size_bytes(self.id, self.headers, self.payload)


class Position(msgspec.Struct, frozen=True):
    """A position in a topic. The offset alone is ambiguous after a topic was deleted and created again."""

    offset: int
    epoch: str


class Retention(msgspec.Struct, frozen=True):
    """How much of a topic is kept; null means the server's default, 0 no limit."""

    # The bounds apply to requests: a client must be able to read whatever limits a server has.
    age_s: Annotated[float | None, Meta(examples=[86400], extra={"request": {"ge": 0, "le": 1e12}})] = None
    bytes: Annotated[
        int | None, Meta(examples=[1_000_000_000], extra={"request": {"ge": 0, "le": 10**15}})
    ] = None
    count: Annotated[int | None, Meta(examples=[100_000], extra={"request": {"ge": 0, "le": 10**15}})] = None

    def with_defaults(self, default: Retention) -> Retention:
        """Return these limits, with those of ``default`` where they are ``None``."""
        return Retention(
            age_s=default.age_s if self.age_s is None else self.age_s,
            bytes=default.bytes if self.bytes is None else self.bytes,
            count=default.count if self.count is None else self.count,
        )

    def scale(self, factor: float) -> Retention:
        """Return these limits multiplied by ``factor``; no limit stays no limit."""
        return Retention(
            age_s=self.age_s and self.age_s * factor,
            bytes=self.bytes and round(self.bytes * factor),
            count=self.count and round(self.count * factor),
        )


class TopicInfo(msgspec.Struct, frozen=True):
    """The state of a topic at one moment. Its records are ``first`` to ``end - 1``."""

    name: str
    epoch: str
    first: int
    end: int
    bytes: int
    created_us: int
    last_ts_us: int
    retention: Retention
    owner: str | None = None
    """The caller that owns the topic, by its qualified name; only topics of kernels have one. It never changes."""


def size_bytes(id: str, headers: bytes, payload: bytes) -> int:
    """Return the size of a record, everywhere: in retention, limits, caches, statistics and the ``size`` of its row."""
    return len(id) + len(headers) + len(payload)


def total_bytes(records: Sequence[Record]) -> int:
    """Return the size of all these records together."""
    # ``size_bytes`` written out: a call for each record would cost as much as encoding it.
    return sum([len(record.id) + len(record.headers) + len(record.payload) for record in records])


def now_us() -> int:
    return time.time_ns() // 1000


@lru_cache(maxsize=256)
def format_ts(ts_us: int) -> str:
    """``2026-11-15T20:17:03.000123Z``; cached because the records of one commit have the same time."""
    seconds, micros = divmod(ts_us, 1_000_000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{micros:06d}Z"


def parse_ts(text: str | float) -> int:
    """Return microseconds from ISO 8601 (UTC if it names no zone) or from seconds since 1970.

    Raises ``ValueError`` if it is neither, or outside the years 1970 to 9999.
    """
    if isinstance(text, str) and not _is_number(text):
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        seconds = moment.timestamp()
    else:
        seconds = float(text)
    if not 0 <= seconds < 253_402_300_800:
        raise ValueError(f"time {text!r} is outside 1970..9999")
    return round(seconds * 1_000_000)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
