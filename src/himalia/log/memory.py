"""A log in this process's memory: the reference for every other implementation. Everything runs on the event loop."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from himalia.errors import HimaliaError, LogUnavailable, TopicNotFound
from himalia.log import not_a_log
from himalia.log.api import Appended, Batch, Chunk, Health, LogOptions, LogStats
from himalia.log.cache import RecordRun, limit_bytes
from himalia.log.clock import LogClock
from himalia.log.columnar import ColumnChunk, to_columns
from himalia.log.memory_retention import MemoryProducers, MemoryRetention
from himalia.log.topic_state import TopicState
from himalia.log.transaction import LogState, Transaction
from himalia.log.watch import LocalWatch, WatchSet
from himalia.record import Position, Record, Retention, TopicInfo
from himalia.topics import check_name

T = TypeVar("T")


def open_url(url: str, options: LogOptions | None = None) -> MemoryLog:
    """Return a new log; its URL is ``memory://`` and names nothing else. See ``himalia.log.open_log``."""
    if url.partition(":")[2] not in ("", "//"):
        raise not_a_log(url)
    return MemoryLog(options)


class MemoryLog:
    """A log that ends with the process; see ``himalia.log.api.Log``.

    A topic keeps its last 100 records unless the settings' ``retention_count``, or the topic's own, says otherwise.
    A setting of 0 means these 100 too: only a topic may grow without limit.
    """

    def __init__(self, options: LogOptions | None = None) -> None:
        options = options or LogOptions()
        self._retention_interval_s = options.retention_interval_s
        self._clock = LogClock(options.clock)
        self._producers = MemoryProducers()
        self._state = LogState(options.settings, self._producers.find)
        # The records, by the topic's number.
        self._runs: dict[int, RecordRun] = {}
        self._retention = MemoryRetention(self._state, self._runs, self._clock, options)
        self._watches = WatchSet()
        self._timer: asyncio.TimerHandle | None = None
        self._is_open = False
        self._commits = self._records = self._duplicates = 0

    @property
    def url(self) -> str:
        return "memory://"

    async def open(self) -> None:
        self._is_open = True
        self._tick()

    async def close(self) -> None:
        self._is_open = False
        if self._timer is not None:
            self._timer.cancel()
        self._watches.end()

    def append(self, batch: Batch) -> asyncio.Future[Appended]:
        future: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        try:
            self._check_open()
            future.set_result(self._commit(lambda transaction: transaction.append(batch)))
        except HimaliaError as error:
            future.set_exception(error)
        return future

    async def read(self, topic: str, start: int, *, limit: int, bytes_max: int = 1 << 20) -> Chunk:
        state = self._require_topic(topic)
        records = self._runs[state.id].read_from(max(start, state.first), max(limit, 0))
        return Chunk(limit_bytes(records, bytes_max), state.first, state.end, state.epoch)

    async def read_columns(
        self, topic: str, start: int, stop: int, *, bytes_max: int = 1 << 20
    ) -> ColumnChunk:
        start = max(start, self._require_topic(topic).first)
        return to_columns(await self.read(topic, start, limit=stop - start, bytes_max=bytes_max), start)

    def recent(self, topic: str, start: int, epoch: str) -> Sequence[Record] | None:
        state = self._state.topics.get(topic)
        if state is None or state.epoch != epoch or start < state.first:
            return None
        return self._runs[state.id].read_from(start)

    async def info(self, topic: str) -> TopicInfo:
        return self._require_topic(topic).info()

    async def offset_at(self, topic: str, ts_us: int) -> int:
        state = self._require_topic(topic)
        run = self._runs[state.id]
        return state.first + bisect_left(range(len(run)), ts_us, key=lambda index: run.at(index).ts_us)

    async def topics(self) -> Sequence[TopicInfo]:
        self._check_open()
        return [self._state.topics[name].info() for name in sorted(self._state.topics)]

    async def create(
        self, topic: str, retention: Retention | None = None, owner: str | None = None
    ) -> TopicInfo:
        self._check_open()
        check_name(topic)
        return self._commit(lambda transaction: transaction.create(topic, retention, owner))

    async def delete(self, topic: str) -> TopicInfo:
        self._check_open()
        return self._commit(lambda transaction: transaction.delete(topic))

    def hold_retention(self, unread: Mapping[str, Position]) -> None:
        self._retention.hold.replace(unread)

    def watch(self) -> LocalWatch:
        return self._watches.add()

    async def health(self) -> Health:
        self._clock.now()
        warning = self._clock.warning
        return Health(
            ok=self._is_open,
            problem=None if self._is_open else "the log is closed",
            warnings=() if warning is None else (warning,),
        )

    async def confirm_clock(self) -> str | None:
        self._check_open()
        self._clock.now()
        warning = self._clock.warning
        self._retention.follow_wall_clock()
        return warning

    def stats(self) -> LogStats:
        return LogStats(
            commits=self._commits,
            records=self._records,
            duplicates=self._duplicates,
            failures=0,
            commit_seconds=(),
            disk_bytes=0,
            held_topics=self._retention.hold.held_topics,
        )

    def _require_topic(self, topic: str) -> TopicState:
        self._check_open()
        try:
            return self._state.topics[topic]
        except KeyError:
            raise TopicNotFound(topic) from None

    def _check_open(self) -> None:
        if not self._is_open:
            raise LogUnavailable("the log is closed")

    # Writing

    def _commit(self, stage: Callable[[Transaction], T]) -> T:
        """Run one operation as a transaction of its own."""
        transaction = Transaction(self._state, self._clock.now())
        result = stage(transaction)
        self._state.apply(transaction)
        for change in transaction.topic_changes:
            state = change.state
            if change.deleted:
                self._runs.pop(state.id, None)
                self._producers.remove_topic(state.id, self._state.producers)
                continue
            self._runs.setdefault(state.id, RecordRun()).extend(change.records)
            self._producers.apply(change)
            self._retention.trim(state)
        self._commits += 1
        self._records += transaction.records
        self._duplicates += transaction.duplicates
        self._watches.notify(transaction.changes)
        return result

    # Retention

    def _tick(self) -> None:
        self._enforce_limits()
        self._timer = asyncio.get_running_loop().call_later(self._retention_interval_s, self._tick)

    def _enforce_limits(self) -> None:
        self._retention.tick()
        counts = self._state.producers
        if counts.age_us and not self._clock.is_held:
            self._producers.expire(self._clock.last.age_us - counts.age_us, counts)
