"""A log in this process's memory: the seed's behaviour, and the reference for every other implementation."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import takewhile
from typing import TypeVar

from himalia.errors import HimaliaError, LogUnavailable, TopicNotFound
from himalia.log.api import Appended, Batch, Chunk, Health, LogStats
from himalia.log.cache import Run, within
from himalia.log.clock import LogClock, SystemTime, TimeSource
from himalia.log.columnar import ColumnChunk, to_columns
from himalia.log.dedup import RecentIds
from himalia.log.producers import ProducerMark, Producers
from himalia.log.retention_hold import Spared
from himalia.log.transaction import Group, TopicState, World
from himalia.log.watch import LocalWatch, Watchers
from himalia.record import Position, Record, Retention, TopicInfo
from himalia.topics import check_name

COUNT_DEFAULT = 100
T = TypeVar("T")


class MemoryLog:
    """A log that ends with the process; see ``himalia.log.api.Log``.

    A topic keeps its last 100 records unless ``retention``, or the topic's own, says otherwise. A server-wide
    count of 0 means these 100 too: only a topic may ask to grow without limit.
    """

    def __init__(
        self,
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
    ) -> None:
        asked = retention or Retention()
        self._retention = Retention(age_s=asked.age_s, bytes=asked.bytes, count=asked.count or COUNT_DEFAULT)
        self._retention_interval_s = retention_interval_s
        self._spared = Spared(retention_wait, is_paused=retention_paused)
        self._clock = LogClock(clock or SystemTime())
        # Of each topic, the one that was used longest ago first.
        self._producers: dict[int, dict[str, ProducerMark]] = {}
        self._world = World(
            RecentIds(window_s=dedup_window_s, ids_max=dedup_ids_max),
            topics_max=topics_max,
            producers=Producers(count_max=producers_max, age_s=producer_age_s, dedup_window_s=dedup_window_s),
            find_producer=lambda topic, producer: self._producers.get(topic, {}).get(producer),
        )
        self._runs: dict[int, Run] = {}
        self._watchers = Watchers()
        self._timer: asyncio.TimerHandle | None = None
        self._is_open = False
        self._commits = self._records = self._duplicates = 0

    @property
    def url(self) -> str:
        return "memory://"

    async def open(self) -> None:
        self._is_open = True
        self._keep_retention()

    async def close(self) -> None:
        self._is_open = False
        if self._timer is not None:
            self._timer.cancel()
        self._watchers.end()

    def append(self, batch: Batch) -> asyncio.Future[Appended]:
        future: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        try:
            self._check_open()
            future.set_result(self._commit(lambda group: group.append(batch)))
        except HimaliaError as error:
            future.set_exception(error)
        return future

    async def read(self, topic: str, start: int, *, limit: int, bytes_max: int = 1 << 20) -> Chunk:
        state = self._state(topic)
        records = self._runs[state.id].since(max(start, state.first), max(limit, 0))
        return Chunk(within(records, bytes_max), state.first, state.end, state.epoch)

    async def read_columns(
        self, topic: str, start: int, stop: int, *, bytes_max: int = 1 << 20
    ) -> ColumnChunk:
        start = max(start, self._state(topic).first)
        return to_columns(await self.read(topic, start, limit=stop - start, bytes_max=bytes_max), start)

    def recent(self, topic: str, start: int, epoch: str) -> Sequence[Record] | None:
        state = self._world.topics.get(topic)
        if state is None or state.epoch != epoch or start < state.first:
            return None
        return self._runs[state.id].since(start)

    async def info(self, topic: str) -> TopicInfo:
        return self._state(topic).info()

    async def offset_at(self, topic: str, ts_us: int) -> int:
        state = self._state(topic)
        run = self._runs[state.id]
        return state.first + bisect_left(range(len(run)), ts_us, key=lambda index: run.at(index).ts_us)

    async def topics(self) -> Sequence[TopicInfo]:
        self._check_open()
        return [self._world.topics[name].info() for name in sorted(self._world.topics)]

    async def create(
        self, topic: str, retention: Retention | None = None, owner: str | None = None
    ) -> TopicInfo:
        self._check_open()
        check_name(topic)
        return self._commit(lambda group: group.create(topic, retention, owner))

    async def delete(self, topic: str) -> TopicInfo:
        self._check_open()
        return self._commit(lambda group: group.delete(topic))

    def hold_retention(self, unread: Mapping[str, Position]) -> None:
        self._spared.replace(unread)

    def watch(self) -> LocalWatch:
        return self._watchers.add()

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
        self._follow_clock()
        return warning

    def stats(self) -> LogStats:
        return LogStats(
            commits=self._commits,
            records=self._records,
            duplicates=self._duplicates,
            failures=0,
            commit_seconds=(),
            disk_bytes=0,
            waiting_topics=self._spared.waiting_topics,
        )

    async def enforce_retention(self) -> None:
        """Remove now what retention does not keep, rather than within ``retention_interval_s``."""
        self._keep_limits()

    def _keep_limits(self) -> None:
        self._spared.count()
        now = self._clock.now()
        if self._clock.is_over:
            self._follow_clock()
        for state in list(self._world.topics.values()):
            if state.is_pinned(now) and (limit_s := state.retention.with_defaults(self._retention).age_s):
                self._world.topics[state.name] = state.mark_pinned(now, limit_s) or state
        for state in list(self._world.topics.values()):
            self._trim(state)
        self._forget_producers(now.age_us)

    def _follow_clock(self) -> None:
        shift_us = self._clock.follow()
        if shift_us is not None:
            for state in list(self._world.topics.values()):
                self._world.topics[state.name] = state.end_era(shift_us)

    def _commit(self, stage: Callable[[Group], T]) -> T:
        """Decide one operation and make it so."""
        group = Group(self._world, self._clock.now())
        result = stage(group)
        self._world.take_over(group)
        for staged in group.staged:
            state = staged.state
            if staged.deleted:
                self._runs.pop(state.id, None)
                self._uncount(self._producers.pop(state.id, {}))
                continue
            self._runs.setdefault(state.id, Run()).extend(staged.records)
            producers = self._producers.setdefault(state.id, {})
            for producer, mark in staged.marks.items():
                producers.pop(producer, None)
                producers[producer] = mark
            for producer in staged.claimed:
                producers.pop(producer, None)
            self._trim(state)
        self._commits += 1
        self._records += group.records
        self._duplicates += group.duplicates
        self._watchers.notify(group.changes)
        return result

    def _forget_producers(self, age_us: int) -> None:
        limit_us = self._world.producers.age_us
        if not limit_us or self._clock.is_held:
            return
        for producers in self._producers.values():
            marks = producers.items()
            old = [name for name, mark in takewhile(lambda item: item[1].age_us <= age_us - limit_us, marks)]
            for name in old:
                del producers[name]
            self._uncount(old)

    def _uncount(self, forgotten: Iterable[str]) -> None:
        producers = self._world.producers
        producers.update(producers.counts_without(forgotten))

    def _trim(self, state: TopicState) -> None:
        if self._spared.is_paused:
            return
        limits = state.retention.with_defaults(self._retention)
        floor = self._spared.floor(state)
        self._cut(state, limits, state.end if floor is None else floor)
        if floor is not None and state.first >= floor and self._is_beyond(state, limits):
            if self._cut(state, self._spared.widened(limits), state.end):
                self._spared.complain(state.name)
            else:
                self._spared.note(state.name)

    def _cut(self, state: TopicState, limits: Retention, stop: int) -> bool:
        """Remove what is beyond these limits, before an offset; says whether anything was."""
        run = self._runs[state.id]
        before = state.first
        while state.first < stop and self._is_beyond(state, limits):
            state.bytes -= run.oldest.size_bytes
            state.first += 1
            run.drop(1)
        return state.first > before

    def _is_beyond(self, state: TopicState, limits: Retention) -> bool:
        run = self._runs[state.id]
        age_us = self._clock.last.age_us
        cutoff_us = 0
        if limits.age_s and not self._clock.is_held:
            cutoff_us = age_us - round(limits.age_s * 1_000_000)
        return len(run) > 0 and bool(
            (limits.count and len(run) > limits.count)
            or (limits.bytes and state.bytes > limits.bytes and len(run) > 1)
            or state.age_us(state.first, run.oldest.ts_us, self._clock.shift_us) < cutoff_us
        )

    def _keep_retention(self) -> None:
        self._keep_limits()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._retention_interval_s, self._keep_retention)

    def _state(self, topic: str) -> TopicState:
        self._check_open()
        try:
            return self._world.topics[topic]
        except KeyError:
            raise TopicNotFound(topic) from None

    def _check_open(self) -> None:
        if not self._is_open:
            raise LogUnavailable("the log is closed")
