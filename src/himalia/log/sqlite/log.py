"""The log on the event loop's side: it sends commands to the writer thread and applies the thread's reports."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from himalia.errors import LogUnavailable, TopicNotFound
from himalia.log.api import Appended, Batch, Chunk, Health, LogOptions, LogStats
from himalia.log.cache import RecordCache, limit_bytes
from himalia.log.columnar import ColumnChunk
from himalia.log.sqlite.commands import (
    AppendCommand,
    ConfirmClockCommand,
    CreateCommand,
    DeleteCommand,
    StopCommand,
    WriteCommand,
    WriterReport,
)
from himalia.log.sqlite.files import file_size, real_path
from himalia.log.sqlite.reader import Reader
from himalia.log.sqlite.writer import Writer
from himalia.log.watch import LocalWatch, WatchSet
from himalia.record import Position, Record, Retention, TopicInfo
from himalia.topics import check_name

COMMIT_SECONDS_KEPT = 65_536
READ_THREADS = 4

T = TypeVar("T")


class SqliteStats(LogStats, frozen=True):
    steps: int = 0
    """Steps of maintenance (retention, erasing deleted topics, ...), each a small transaction of its own."""


class SqliteLog:
    """A log in one file; see ``himalia.log.api.Log``.

    ``info``, ``topics`` and ``recent`` read a copy of the writer's state, which is updated with every commit, in the
    same callback of the event loop that resolves the futures of the commit.
    """

    def __init__(self, path: str | os.PathLike[str], options: LogOptions | None = None) -> None:
        self._path = Path(path).absolute()
        self._options = options or LogOptions()
        # None before ``open`` and after ``close``.
        self._writer: Writer | None = None
        self._reader = Reader(self._path, threads=READ_THREADS)
        self._topics: dict[str, TopicInfo] = {}
        self._cache = RecordCache(
            bytes_max=self._options.cache_bytes_max, count_max=self._options.cache_count_max
        )
        self._watches = WatchSet()
        self._health = Health(ok=False, problem="the log is not open")
        self._ended = asyncio.Event()
        self._ended.set()
        self._commit_seconds: deque[float] = deque(maxlen=COMMIT_SECONDS_KEPT)
        self._commits = self._records = self._duplicates = self._failures = self._steps = 0

    @property
    def url(self) -> str:
        return f"sqlite://{self._path}"

    @property
    def path(self) -> Path:
        return self._path

    async def open(self) -> None:
        loop = asyncio.get_running_loop()
        writer = Writer(self._path, self._options, _LoopListener(loop, self))
        opening = asyncio.ensure_future(asyncio.to_thread(writer.open))
        try:
            topics = await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(lambda done: None if done.exception() else writer.close())
            raise
        self._topics = {info.name: info for info in topics}
        self._health = writer.health
        self._writer = writer
        self._ended.clear()
        writer.start()

    async def close(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            self._health = Health(ok=False, problem="the log is closed")
            # Readers first: only the last connection that closes can empty the write-ahead log.
            await asyncio.to_thread(self._reader.close)
            writer.submit(StopCommand())
        await self._ended.wait()
        self._watches.end()

    def append(self, batch: Batch) -> asyncio.Future[Appended]:
        future: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        if self._writer is None:
            future.set_exception(_closed_error())
        else:
            self._writer.submit(AppendCommand(future, batch))
        return future

    async def read(self, topic: str, start: int, *, limit: int, bytes_max: int = 1 << 20) -> Chunk:
        info = self._info(topic)
        start = max(start, info.first)
        limit = max(limit, 0)
        records = self._cache.read_from(info.epoch, start, limit)
        if records or start >= info.end or not limit:
            return Chunk(limit_bytes(records, bytes_max), info.first, info.end, info.epoch)
        return self._limit_to_reported(topic, await self._reader.read(topic, start, limit, bytes_max))

    def _limit_to_reported(self, topic: str, chunk: Chunk) -> Chunk:
        """Leave out records that are committed and not yet reported to the loop, as ``info`` and the cache do.

        Otherwise a reader that has seen a record could find the end of the topic before it a moment later.
        """
        info = self._topics.get(topic)
        if info is None or info.epoch != chunk.epoch or chunk.end <= info.end:
            return chunk
        records = [record for record in chunk.records if record.offset < info.end]
        return Chunk(records, chunk.first, info.end, chunk.epoch)

    async def read_columns(
        self, topic: str, start: int, stop: int, *, bytes_max: int = 1 << 20
    ) -> ColumnChunk:
        self._require_writer()
        return await self._reader.read_columns(topic, start, stop, bytes_max)

    def recent(self, topic: str, start: int, epoch: str) -> Sequence[Record] | None:
        info = self._topics.get(topic)
        if info is None or info.epoch != epoch or start < info.first:
            return None
        return [] if start >= info.end else self._cache.read_from(epoch, start) or None

    async def info(self, topic: str) -> TopicInfo:
        return self._info(topic)

    async def offset_at(self, topic: str, ts_us: int) -> int:
        info = self._info(topic)
        if ts_us > info.last_ts_us or info.first == info.end:
            return info.end
        return await self._reader.offset_at(topic, ts_us)

    async def topics(self) -> Sequence[TopicInfo]:
        self._require_writer()
        return [self._topics[name] for name in sorted(self._topics)]

    async def create(
        self, topic: str, retention: Retention | None = None, owner: str | None = None
    ) -> TopicInfo:
        check_name(topic)
        return await self._submit(lambda future: CreateCommand(future, topic, retention, owner))

    async def delete(self, topic: str) -> TopicInfo:
        return await self._submit(lambda future: DeleteCommand(future, topic))

    def hold_retention(self, unread: Mapping[str, Position]) -> None:
        self._require_writer().hold.replace(unread)

    def watch(self) -> LocalWatch:
        return self._watches.add()

    async def health(self) -> Health:
        return self._health

    def stats(self) -> SqliteStats:
        seconds = list(self._commit_seconds)
        self._commit_seconds.clear()
        return SqliteStats(
            commits=self._commits,
            records=self._records,
            duplicates=self._duplicates,
            failures=self._failures,
            commit_seconds=seconds,
            disk_bytes=file_size(self._path) + file_size(f"{real_path(self._path)}-wal"),
            held_topics=self._writer.hold.held_topics if self._writer is not None else 0,
            steps=self._steps,
        )

    async def confirm_clock(self) -> str | None:
        return await self._submit(ConfirmClockCommand)

    async def _submit(self, make: Callable[[asyncio.Future[T]], WriteCommand | ConfirmClockCommand]) -> T:
        """Send the command that ``make`` returns for a new future to the writer, and await the future."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._require_writer().submit(make(future))
        return await future

    def _apply_report(self, report: WriterReport) -> None:
        """Apply what an iteration of the writer changed in one callback, before any waiting task runs."""
        for added in report.added:
            self._cache.add(added.epoch, added.records, added.size_bytes)
        for info in report.deleted_topics:
            self._cache.remove(info.epoch)
            known = self._topics.get(info.name)
            if known is not None and known.epoch == info.epoch:
                del self._topics[info.name]
        for info in report.topics:
            self._topics[info.name] = info
        self._count(report)
        self._health = report.health or self._health
        if report.changes:
            self._watches.notify(report.changes)
        for outcome in report.outcomes:
            if outcome.future.done():
                continue  # cancelled by the caller
            if outcome.error is not None:
                outcome.future.set_exception(outcome.error)
            else:
                outcome.future.set_result(outcome.result)

    def _count(self, report: WriterReport) -> None:
        self._records += report.records
        self._duplicates += report.duplicates
        self._failures += report.failures
        self._steps += report.steps
        if report.commit_seconds is not None:
            self._commits += 1
            self._commit_seconds.append(report.commit_seconds)

    def _info(self, topic: str) -> TopicInfo:
        self._require_writer()
        try:
            return self._topics[topic]
        except KeyError:
            raise TopicNotFound(topic) from None

    def _require_writer(self) -> Writer:
        if self._writer is None:
            raise _closed_error()
        return self._writer


def _closed_error() -> LogUnavailable:
    return LogUnavailable("the log is closed")


class _LoopListener:
    """Passes what the writer thread reports to the event loop, in order; drops it if the loop is closed."""

    def __init__(self, loop: asyncio.AbstractEventLoop, log: SqliteLog) -> None:
        self._loop = loop
        self._log = log

    def on_report(self, report: WriterReport) -> None:
        self._call(self._log._apply_report, report)

    def on_end(self) -> None:
        self._call(self._log._ended.set)

    def _call(self, callback: Callable[..., None], *arguments: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, *arguments)
        except RuntimeError:
            # A closed loop has no task left to be notified.
            if not self._loop.is_closed():
                raise
