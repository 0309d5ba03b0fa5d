"""What a log is. Implementations are chosen by URL (see ``himalia.log.open_log``) and share one test suite.

Nothing here assumes that the log lives in this process or that this process is its only writer.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from enum import StrEnum
from typing import Protocol

import msgspec

from himalia.log.columnar import ColumnChunk
from himalia.record import Draft, Position, Record, Retention, TopicInfo


class Batch(msgspec.Struct, frozen=True):
    """Drafts for one topic that are stored together, in this order, or not at all.

    With ``epoch``, the batch is refused (``EpochChanged``) if the topic has another one. With ``producer`` and
    ``sequence`` (which only grows, per producer and topic; holes are fine) a batch whose sequence is not above
    the producer's last one is a repeat, and drafts are not looked up by id; see ``himalia.log.producers``.
    """

    topic: str
    drafts: Sequence[Draft]
    epoch: str | None = None
    producer: str | None = None
    sequence: int | None = None
    scope: str | None = None
    """Whose ids and producers these are: those of one scope are no repeats of another's. None for the server's own."""


class Appended(msgspec.Struct, frozen=True):
    """What became of a batch: an offset for each draft, in order.

    A draft whose id was stored within the window gets the offset it had then and is counted in
    ``duplicates``. A whole batch recognised by producer and sequence has ``duplicates == len(drafts)``; its
    offsets are known for the producer's latest batch and are ``-1`` for an older one.
    """

    epoch: str
    offsets: Sequence[int]
    ts_us: int
    duplicates: int = 0


class Chunk(msgspec.Struct, frozen=True):
    """Consecutive records of a topic and the state of the topic at the moment of reading.

    ``records[0].offset`` is the offset asked for or, where retention has passed it, ``first``.
    Empty when the offset asked for is ``end`` or more.
    """

    records: Sequence[Record]
    first: int
    end: int
    epoch: str


class ChangeKind(StrEnum):
    APPENDED = "appended"
    CREATED = "created"
    DELETED = "deleted"


class Change(msgspec.Struct, frozen=True):
    """Something happened to a topic. It carries no records: whoever cares reads the log."""

    topic: str
    kind: ChangeKind
    epoch: str
    owner: str | None = None
    """Of a topic that was created."""


class Health(msgspec.Struct, frozen=True):
    """Whether the log can store now and, if not, what is wrong and what to do, in words."""

    ok: bool
    problem: str | None = None
    warnings: Sequence[str] = ()
    """What an operator should look at although the log stores, in words."""


class LogStats(msgspec.Struct, frozen=True):
    """Counters since the log was opened; ``commit_seconds`` has one entry per commit since the last call."""

    commits: int
    records: int
    duplicates: int
    failures: int
    commit_seconds: Sequence[float]
    disk_bytes: int
    waiting_topics: int = 0
    """Topics beyond their limits that retention leaves alone, because of ``hold_retention``."""


class Log(Protocol):
    """A set of topics, each an append-only sequence of records with offsets 0, 1, 2, ... without holes.

    All methods are called on one event loop, the one ``open`` ran on. A cancelled call leaves the log sound; a
    cancelled ``append`` may or may not have stored its batch, as with any lost answer. Storage problems raise
    ``LogUnavailable`` or a subclass; the log stays usable and recovers by itself when the cause is gone.
    """

    @property
    def url(self) -> str: ...

    async def open(self) -> None:
        """Open or create the storage. Called once, before anything else."""

    async def close(self) -> None:
        """Store everything that was accepted, then let go of the storage. Idempotent."""

    def append(self, batch: Batch) -> asyncio.Future[Appended]:
        """Store a batch; the future is done only after a crash can no longer take it back.

        Batches of one caller are stored in the order of the calls. ``ts_us`` never decreases within a topic, and
        does not follow a jump of the wall clock until that is confirmed or an hour old.
        The future fails with ``TopicNotFound``, ``EpochChanged`` or ``LogUnavailable``; then
        nothing of the batch was stored.
        """
        ...

    async def read(self, topic: str, start: int, *, limit: int, bytes_max: int = 1 << 20) -> Chunk:
        """Up to ``limit`` committed records from offset ``start``, at most about ``bytes_max`` but at least one."""
        ...

    async def read_columns(
        self, topic: str, start: int, stop: int, *, bytes_max: int = 1 << 20
    ) -> ColumnChunk:
        """Committed records from ``start`` on, before ``stop``, column by column; about ``bytes_max``, at least one.

        Several times quicker than ``read``, for those who read a whole log. It does not get in the way of others:
        few such calls are at work at a time, and the rest wait their turn.
        """
        ...

    def recent(self, topic: str, start: int, epoch: str) -> Sequence[Record] | None:
        """All committed records from ``start`` to the end, if they are at hand without I/O; else ``None``.

        ``None`` too if the topic is gone or has another epoch. An optimisation for live delivery: how much is at hand
        is up to the implementation, but the records of the last append are,
        unless it was opened to keep nothing in memory.
        """
        ...

    async def info(self, topic: str) -> TopicInfo:
        """The topic's state, or ``TopicNotFound``."""
        ...

    async def offset_at(self, topic: str, ts_us: int) -> int:
        """The first offset whose record is not older than ``ts_us``; the end if there is none."""
        ...

    async def topics(self) -> Sequence[TopicInfo]:
        """All topics, by name."""
        ...

    async def create(
        self, topic: str, retention: Retention | None = None, owner: str | None = None
    ) -> TopicInfo:
        """Make an empty topic with a new epoch, or fail with ``TopicExists``. It keeps its owner until its end."""
        ...

    async def delete(self, topic: str) -> TopicInfo:
        """Take the topic and its records away, or fail with ``TopicNotFound``. Returns what it was."""
        ...

    def hold_retention(self, unread: Mapping[str, Position]) -> None:
        """Have retention leave alone what somebody has not read yet: of each topic, from this position on.

        Replaces what was said before. A topic that is beyond its limits by more than the log's ``retention_wait``
        is cut all the same, and a position of another epoch counts for nothing.
        """

    def watch(self) -> Watch:
        """Tell of every change from now on, whoever caused it."""
        ...

    async def health(self) -> Health: ...

    async def confirm_clock(self) -> str | None:
        """The wall clock is right: date records by it, and remove what is too old again.

        Returns the warning that this answers; None if the clock was not doubted. See ``himalia.log.clock``.
        """
        ...

    def stats(self) -> LogStats: ...


class Watch(Protocol):
    """Yields the changes since the last turn, appends to one topic folded into one; so it is bounded.

    Created and deleted are never folded away and keep their order. Ends after ``close`` or the log's end.
    """

    def __aiter__(self) -> AsyncIterator[Sequence[Change]]: ...

    async def __anext__(self) -> Sequence[Change]: ...

    def close(self) -> None: ...
