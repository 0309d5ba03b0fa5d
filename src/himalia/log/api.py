"""The interface of a log. Implementations are chosen by URL (see ``himalia.log.open_log``) and share one test suite.

Nothing here assumes that the log lives in this process or that this process is its only writer.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

import msgspec

from himalia.log.clock import SystemTime, TimeSource
from himalia.log.columnar import ColumnChunk
from himalia.record import Draft, Position, Record, Retention, TopicInfo

if TYPE_CHECKING:
    from himalia.settings import LogSettings


class Batch(msgspec.Struct, frozen=True):
    """Drafts for one topic that are stored together, in this order, or not at all.

    With ``epoch``, the batch is refused (``EpochChanged``) if the topic has another one. With ``producer`` and
    ``sequence`` (strictly increasing per producer and topic; gaps are allowed) a batch whose sequence is not above
    the producer's last one is a repeat, and drafts are not looked up by id; see ``himalia.log.producers``.
    """

    topic: str
    drafts: Sequence[Draft]
    epoch: str | None = None
    producer: str | None = None
    sequence: int | None = None
    scope: str | None = None
    """The caller that owns these ids and this producer: ids of two scopes never match. None for the server's own."""


class Appended(msgspec.Struct, frozen=True):
    """The result of appending a batch: an offset for each draft, in order.

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

    ``records[0].offset`` is the requested offset or, if retention has deleted that one, ``first``.
    Empty if the requested offset is ``end`` or more.
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
    """A change of a topic. It carries no records: the watcher reads the log."""

    topic: str
    kind: ChangeKind
    epoch: str
    owner: str | None = None
    """The owner of a topic that was created."""


class Health(msgspec.Struct, frozen=True):
    """Whether the log can store now and, if not, what is wrong and what to do."""

    ok: bool
    problem: str | None = None
    warnings: Sequence[str] = ()
    """What an operator should look at although the log stores."""


class LogStats(msgspec.Struct, frozen=True):
    """Counters since the log was opened; ``commit_seconds`` has one entry per commit since the last call."""

    commits: int
    records: int
    duplicates: int
    failures: int
    commit_seconds: Sequence[float]
    disk_bytes: int
    held_topics: int = 0
    """Topics beyond their limits that retention leaves alone, because of ``hold_retention``."""


class Log(Protocol):
    """A set of topics, each an append-only sequence of records with offsets 0, 1, 2, ... without gaps.

    All methods are called on one event loop, the one ``open`` ran on. A cancelled call leaves the log consistent; a
    cancelled ``append`` may or may not have stored its batch. Storage problems raise ``LogUnavailable`` or a
    subclass; the log stays usable and recovers by itself when the cause is gone.
    """

    @property
    def url(self) -> str: ...

    async def open(self) -> None:
        """Open or create the storage. Called once, before anything else."""

    async def close(self) -> None:
        """Store everything that was accepted, then release the storage. Idempotent."""

    def append(self, batch: Batch) -> asyncio.Future[Appended]:
        """Store a batch; the future is done once the batch survives a crash.

        Batches of one caller are stored in the order of the calls. ``ts_us`` never decreases within a topic, and
        does not follow a jump of the wall clock until the jump is confirmed or an hour old.
        The future fails with ``TopicNotFound``, ``EpochChanged`` or ``LogUnavailable``; then
        nothing of the batch was stored.
        """
        ...

    async def read(self, topic: str, start: int, *, limit: int, bytes_max: int = 1 << 20) -> Chunk:
        """Read up to ``limit`` committed records from offset ``start``; about ``bytes_max``, but at least one."""
        ...

    async def read_columns(
        self, topic: str, start: int, stop: int, *, bytes_max: int = 1 << 20
    ) -> ColumnChunk:
        """Read committed records from ``start`` to before ``stop`` as columns; about ``bytes_max``, at least one.

        Several times faster than ``read``, for callers that read a whole log. Only a few such calls run at a time,
        and the others wait, so that they do not slow down other readers.
        """
        ...

    def recent(self, topic: str, start: int, epoch: str) -> Sequence[Record] | None:
        """Return all committed records from ``start`` to the end if they are in memory, else ``None``.

        ``None`` too if the topic does not exist or has another epoch. An optimisation for live delivery: how much is
        in memory is up to the implementation, but the records of the last append are, unless the log was opened to
        keep nothing in memory.
        """
        ...

    async def info(self, topic: str) -> TopicInfo:
        """Return the topic's state, or raise ``TopicNotFound``."""
        ...

    async def offset_at(self, topic: str, ts_us: int) -> int:
        """Return the first offset whose record is not older than ``ts_us``; the end if there is none."""
        ...

    async def topics(self) -> Sequence[TopicInfo]:
        """Return all topics, sorted by name."""
        ...

    async def create(
        self, topic: str, retention: Retention | None = None, owner: str | None = None
    ) -> TopicInfo:
        """Create an empty topic with a new epoch, or raise ``TopicExists``. Its owner never changes."""
        ...

    async def delete(self, topic: str) -> TopicInfo:
        """Delete the topic and its records, or raise ``TopicNotFound``. Returns the topic's last state."""
        ...

    def hold_retention(self, unread: Mapping[str, Position]) -> None:
        """Keep retention from deleting unread records: of each topic named, those from this position on.

        Replaces the positions of the previous call. A topic that exceeds its limits by more than the setting
        ``retention_wait`` is trimmed all the same, and a position of another epoch is ignored.
        """

    def watch(self) -> Watch:
        """Return an iterator of every change from now on, whichever client caused it."""
        ...

    async def health(self) -> Health: ...

    async def confirm_clock(self) -> str | None:
        """Accept the wall clock: date records by it, and delete records by age again.

        Returns the warning that this resolves; None if the clock was trusted already. See ``himalia.log.clock``.
        """
        ...

    def stats(self) -> LogStats: ...


class Watch(Protocol):
    """Yields the changes since the last iteration; appends to one topic are merged into one, which bounds it.

    Creations and deletions are never merged and keep their order. Ends after ``close`` or when the log closes.
    """

    def __aiter__(self) -> AsyncIterator[Sequence[Change]]: ...

    async def __anext__(self) -> Sequence[Change]: ...

    def close(self) -> None: ...


def _settings_without_retention() -> LogSettings:
    # Imported here: a program that opens no log need not load pydantic.
    from himalia.settings import LogSettings

    return LogSettings(retention_age_s=0)


class LogOptions(msgspec.Struct, frozen=True):
    """What can be chosen about a log: the settings of a server, and what only programs and tests choose.

    By default no record is ever too old.
    """

    settings: LogSettings = msgspec.field(default_factory=_settings_without_retention)
    clock: TimeSource = SystemTime()
    retention_interval_s: float = 1.0
    """How often retention is enforced."""
    retention_paused: bool = False
    """Whether retention starts only with the first call of ``Log.hold_retention``."""
    cache_bytes_max: int = 16 << 20
    """Recent records kept in memory by a log on disk, of all topics together."""
    cache_count_max: int = 65_536
    probe_interval_s: float = 1.0
    """How often a log on disk that failed is probed."""
