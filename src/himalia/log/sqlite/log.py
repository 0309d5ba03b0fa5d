"""The log on the event loop's side: it hands jobs to the writer's thread and takes in what that tells."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from himalia.errors import LogUnavailable, TopicNotFound
from himalia.log.api import Appended, Batch, Chunk, Health, LogStats
from himalia.log.cache import RecentRecords, within
from himalia.log.clock import SystemTime, TimeSource
from himalia.log.columnar import ColumnChunk
from himalia.log.sqlite.commands import (
    AppendJob,
    ConfirmClockJob,
    CreateJob,
    DeleteJob,
    Job,
    News,
    SettleJob,
    StopJob,
)
from himalia.log.sqlite.files import length, real_path
from himalia.log.sqlite.reader import Reader
from himalia.log.sqlite.writer import Writer, WriterOptions
from himalia.log.watch import LocalWatch, Watchers
from himalia.record import Position, Record, Retention, TopicInfo
from himalia.topics import check_name

COMMIT_SECONDS_KEPT = 65_536
READ_THREADS = 4

T = TypeVar("T")


class SqliteStats(LogStats, frozen=True):
    steps: int = 0
    """Steps of retention and of erasing deleted topics, each its own small transaction."""


class SqliteLog:
    """A log in one file; see ``himalia.log.api.Log``.

    What ``info``, ``topics`` and ``recent`` answer is a copy of the writer's state that is brought up to date
    with every commit, in the same turn of the event loop in which the commit's futures are done.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        retention: Retention | None = None,
        dedup_window_s: float = 120.0,
        dedup_ids_max: int = 262_144,
        retention_interval_s: float = 1.0,
        retention_wait: float = 1.0,
        retention_paused: bool = False,
        topics_max: int = 100_000,
        producers_max: int = 1_000_000,
        producer_age_s: float = 30 * 86400.0,
        clock: TimeSource | None = None,
        recent_bytes_max: int = 16 << 20,
        recent_count_max: int = 65_536,
        probe_interval_s: float = 1.0,
    ) -> None:
        self._path = Path(path).absolute()
        self._options = WriterOptions(
            retention=retention or Retention(),
            retention_interval_s=retention_interval_s,
            retention_wait=retention_wait,
            retention_paused=retention_paused,
            dedup_window_s=dedup_window_s,
            dedup_ids_max=dedup_ids_max,
            topics_max=topics_max,
            producers_max=producers_max,
            producer_age_s=producer_age_s,
            probe_interval_s=probe_interval_s,
            clock=clock or SystemTime(),
        )
        self._writer: Writer | None = None
        self._reader = Reader(self._path, threads=READ_THREADS)
        self._topics: dict[str, TopicInfo] = {}
        self._recent = RecentRecords(bytes_max=recent_bytes_max, count_max=recent_count_max)
        self._watchers = Watchers()
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
        writer = Writer(self._path, self._options, lambda news: _call(loop, self._take_in, news))
        opening = asyncio.ensure_future(asyncio.to_thread(writer.open))
        try:
            topics = await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(lambda done: None if done.exception() else writer.shut())
            raise
        self._topics = {info.name: info for info in topics}
        self._health = writer.health
        self._writer = writer
        self._ended.clear()
        writer.start(lambda: _call(loop, self._ended.set))

    async def close(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            self._health = Health(ok=False, problem="the log is closed")
            # Readers first: only the last connection to leave can empty the write-ahead log.
            await asyncio.to_thread(self._reader.close)
            writer.submit(StopJob())
        await self._ended.wait()
        self._watchers.end()

    def append(self, batch: Batch) -> asyncio.Future[Appended]:
        future: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        if self._writer is None:
            future.set_exception(_closed())
        else:
            self._writer.submit(AppendJob(future, batch))
        return future

    async def read(self, topic: str, start: int, *, limit: int, bytes_max: int = 1 << 20) -> Chunk:
        info = self._info(topic)
        start = max(start, info.first)
        limit = max(limit, 0)
        records = self._recent.since(info.epoch, start, limit)
        if records or start >= info.end or not limit:
            return Chunk(within(records, bytes_max), info.first, info.end, info.epoch)
        return await self._reader.read(topic, start, limit, bytes_max)

    async def read_columns(
        self, topic: str, start: int, stop: int, *, bytes_max: int = 1 << 20
    ) -> ColumnChunk:
        self._open_writer()
        return await self._reader.read_columns(topic, start, stop, bytes_max)

    def recent(self, topic: str, start: int, epoch: str) -> Sequence[Record] | None:
        info = self._topics.get(topic)
        if info is None or info.epoch != epoch or start < info.first:
            return None
        return [] if start >= info.end else self._recent.since(epoch, start) or None

    async def info(self, topic: str) -> TopicInfo:
        return self._info(topic)

    async def offset_at(self, topic: str, ts_us: int) -> int:
        info = self._info(topic)
        if ts_us > info.last_ts_us or info.first == info.end:
            return info.end
        return await self._reader.offset_at(topic, ts_us)

    async def topics(self) -> Sequence[TopicInfo]:
        self._open_writer()
        return [self._topics[name] for name in sorted(self._topics)]

    async def create(
        self, topic: str, retention: Retention | None = None, owner: str | None = None
    ) -> TopicInfo:
        check_name(topic)
        return await self._submit(lambda future: CreateJob(future, topic, retention, owner))

    async def delete(self, topic: str) -> TopicInfo:
        return await self._submit(lambda future: DeleteJob(future, topic))

    def hold_retention(self, unread: Mapping[str, Position]) -> None:
        self._open_writer().spared.replace(unread)

    def watch(self) -> LocalWatch:
        return self._watchers.add()

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
            disk_bytes=length(self._path) + length(f"{real_path(self._path)}-wal"),
            waiting_topics=self._writer.spared.waiting_topics if self._writer is not None else 0,
            steps=self._steps,
        )

    async def enforce_retention(self) -> None:
        """Remove now what retention does not keep, and erase deleted topics; returns when that is done."""
        await self._submit(SettleJob)

    async def confirm_clock(self) -> str | None:
        return await self._submit(ConfirmClockJob)

    async def _submit(self, job: Callable[[asyncio.Future[T]], Job | SettleJob | ConfirmClockJob]) -> T:
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._open_writer().submit(job(future))
        return await future

    def _take_in(self, news: News) -> None:
        """Everything a turn of the writer changed, visible to all at once; then those who wait are woken."""
        for new in news.added:
            self._recent.add(new.epoch, new.records, new.size_bytes)
        for info in news.ended:
            self._recent.forget(info.epoch)
            known = self._topics.get(info.name)
            if known is not None and known.epoch == info.epoch:
                del self._topics[info.name]
        for info in news.topics:
            self._topics[info.name] = info
        self._count(news)
        self._health = news.health or self._health
        if news.changes:
            self._watchers.notify(news.changes)
        for outcome in news.outcomes:
            if outcome.future.done():
                continue  # Cancelled by whoever waited.
            if outcome.error is not None:
                outcome.future.set_exception(outcome.error)
            else:
                outcome.future.set_result(outcome.result)

    def _count(self, news: News) -> None:
        self._records += news.records
        self._duplicates += news.duplicates
        self._failures += news.failures
        self._steps += news.steps
        if news.commit_seconds is not None:
            self._commits += 1
            self._commit_seconds.append(news.commit_seconds)

    def _info(self, topic: str) -> TopicInfo:
        self._open_writer()
        try:
            return self._topics[topic]
        except KeyError:
            raise TopicNotFound(topic) from None

    def _open_writer(self) -> Writer:
        if self._writer is None:
            raise _closed()
        return self._writer


def _closed() -> LogUnavailable:
    return LogUnavailable("the log is closed")


def _call(loop: asyncio.AbstractEventLoop, callback: Callable[..., None], *given: Any) -> None:
    """Call on the loop from another thread. A loop that is closed already has nobody left to be told."""
    try:
        loop.call_soon_threadsafe(callback, *given)
    except RuntimeError:
        if not loop.is_closed():
            raise
