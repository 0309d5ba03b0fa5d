"""What the memory log deletes: records beyond the limits of their topics, and producers that were unused for long."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import takewhile

from himalia.log.api import LogOptions
from himalia.log.cache import RecordRun
from himalia.log.clock import LogClock
from himalia.log.producers import Producers, ProducerState
from himalia.log.retention_hold import RetentionHold
from himalia.log.topic_state import TopicState
from himalia.log.transaction import LogState, TopicChange
from himalia.record import Retention

COUNT_DEFAULT = 100


class MemoryRetention:
    """Trims topics: each after a commit to it, and all at each tick. Used on the event loop.

    ``runs`` has the records by the topic's number; a trim drops from their front what it removes from the state.
    """

    def __init__(
        self, state: LogState, runs: dict[int, RecordRun], clock: LogClock, options: LogOptions
    ) -> None:
        default = options.settings.retention
        self._default = Retention(default.age_s, default.bytes, default.count or COUNT_DEFAULT)
        self.hold = RetentionHold(options)
        self._state = state
        self._runs = runs
        self._clock = clock

    def tick(self) -> None:
        """Enforce the limits of all topics."""
        self.hold.drain_held()
        now = self._clock.now()
        if self._clock.is_hold_over:
            self.follow_wall_clock()
        topics = self._state.topics
        for state in list(topics.values()):
            if state.is_pinned(now) and (limit_s := self._limits(state).age_s):
                topics[state.name] = state.mark_pinned(now, limit_s) or state
        for state in list(topics.values()):
            self.trim(state)

    def trim(self, state: TopicState) -> None:
        """Delete what exceeds the limits of this topic; unread records only beyond the hard limits."""
        if self.hold.is_paused:
            return
        limits = self._limits(state)
        first_unread = self.hold.first_unread(state)
        self._trim_to(state, limits, state.end if first_unread is None else first_unread)
        if first_unread is not None and state.first >= first_unread and self._exceeds(state, limits):
            if self._trim_to(state, self.hold.hard_limits(limits), state.end):
                self.hold.warn_unread_deleted(state.name)
            else:
                self.hold.mark_held(state.name)

    def follow_wall_clock(self) -> None:
        """End the hold of the clock, and the era of the records that were stored until now."""
        shift_us = self._clock.follow_wall_clock()
        if shift_us is not None:
            topics = self._state.topics
            for state in list(topics.values()):
                topics[state.name] = state.end_era(shift_us)

    def _limits(self, state: TopicState) -> Retention:
        return state.retention.with_defaults(self._default)

    def _trim_to(self, state: TopicState, limits: Retention, stop: int) -> bool:
        """Delete what exceeds these limits, before offset ``stop``; return whether there was anything."""
        run = self._runs[state.id]
        before = state.first
        while state.first < stop and self._exceeds(state, limits):
            state.bytes -= run.oldest.size_bytes
            state.first += 1
            run.drop(1)
        return state.first > before

    def _exceeds(self, state: TopicState, limits: Retention) -> bool:
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


class MemoryProducers:
    """The last batch of each producer. Used on the event loop.

    By the topic's number; within a topic, the producer that has been unused longest comes first.
    """

    def __init__(self) -> None:
        self._by_topic: dict[int, dict[str, ProducerState]] = {}

    def find(self, topic: int, producer: str) -> ProducerState | None:
        return self._by_topic.get(topic, {}).get(producer)

    def apply(self, change: TopicChange) -> None:
        """Add the producers of a committed change, and drop the unscoped names that it claimed."""
        producers = self._by_topic.setdefault(change.state.id, {})
        for producer, last in change.producers.items():
            producers.pop(producer, None)
            producers[producer] = last
        for producer in change.claimed:
            producers.pop(producer, None)

    def remove_topic(self, topic: int, counts: Producers) -> None:
        """Forget the producers of a deleted topic, and reduce the counts of their callers."""
        _reduce(counts, self._by_topic.pop(topic, {}))

    def expire(self, age_us: int, counts: Producers) -> None:
        """Forget the producers that were used last at this age or before, and reduce the counts of their callers."""
        for producers in self._by_topic.values():
            items = producers.items()
            expired = [name for name, last in takewhile(lambda item: item[1].age_us <= age_us, items)]
            for name in expired:
                del producers[name]
            _reduce(counts, expired)


def _reduce(counts: Producers, removed: Iterable[str]) -> None:
    counts.update(counts.counts_without(removed))
