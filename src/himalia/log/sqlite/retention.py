"""Which topics exceed their limits, and which of their records to delete next."""

from __future__ import annotations

import heapq

import msgspec

from himalia.log.api import LogOptions
from himalia.log.clock import LogClock, Moment
from himalia.log.retention_hold import RetentionHold
from himalia.log.sqlite.trim import TrimRange
from himalia.log.topic_state import TopicState
from himalia.log.transaction import LogState
from himalia.record import Retention

STALE_MAX = 1_000
"""Entries of deleted topics that may stay in the queue by age before it is rebuilt."""
FAR_BEYOND_ROWS = 500
FAR_BEYOND_BYTES = 4 << 20

PlannedTrim = tuple[TopicState, TrimRange]


class RetentionPlanner:
    """Knows which topics are due without looking at the others. Used by the writer thread.

    Topics that exceed a limit slightly are trimmed after the next tick, which costs a busy topic one trim for many
    appends; those far beyond it are trimmed at once.
    """

    def __init__(self, state: LogState, clock: LogClock, options: LogOptions) -> None:
        self.hold = RetentionHold(options)
        self._state = state
        self._clock = clock
        self._default = options.settings.retention
        # Topics slightly beyond a limit, which the next tick moves to those that are being trimmed, in turn.
        self._over_limits: set[str] = set()
        self._to_trim: dict[str, None] = {}
        # When the oldest record of a topic reaches its age limit: age, topic's number, name. At most one entry for
        # each number, and the numbers that have one. An entry may be too early, never too late.
        self._by_age: list[tuple[int, int, str]] = []
        self._in_by_age: set[int] = set()
        self.pinned: set[str] = set()
        """Topics whose records are dated far in the future."""

    def limits(self, state: TopicState) -> Retention:
        return state.retention.with_defaults(self._default)

    @property
    def has_work(self) -> bool:
        return bool(self._to_trim) and not self.hold.is_paused

    def load(self) -> None:
        """Start over with the topics of the state."""
        self._over_limits.clear()
        self._to_trim.clear()
        self._by_age.clear()
        self._in_by_age.clear()
        self.pinned.clear()
        for state in self._state.topics.values():
            self.check_limits(state)

    def tick(self) -> None:
        """Collect the topics that have come to exceed a limit since the last tick."""
        self._to_trim.update(dict.fromkeys(self._over_limits))
        self._over_limits.clear()
        self._to_trim.update(dict.fromkeys(self.hold.drain_held()))
        age_us = self._clock.now().age_us
        while self._by_age and self._by_age[0][0] < age_us and not self._clock.is_held:
            _, number, name = heapq.heappop(self._by_age)
            if number in self._in_by_age:
                self._in_by_age.discard(number)
                self._to_trim[name] = None

    def check_limits(self, state: TopicState) -> None:
        """Note whether a topic, after a commit, exceeds a limit now, and when its oldest record will be too old."""
        limits = self.limits(state)
        count = state.end - state.first
        records = count - limits.count if limits.count else 0
        size_bytes = state.bytes - limits.bytes if limits.bytes and count > 1 else 0
        if records >= FAR_BEYOND_ROWS or size_bytes >= FAR_BEYOND_BYTES:
            self._to_trim[state.name] = None
        elif records > 0 or size_bytes > 0:
            self._over_limits.add(state.name)
        self.check_age_limit(state, limits)

    def check_age_limit(self, state: TopicState, limits: Retention) -> None:
        """Note when the oldest record of a topic will be too old."""
        if not limits.age_s or state.first == state.end:
            return
        if state.is_pinned(self._clock.last):
            self.pinned.add(state.name)
            if state.oldest_era() is None:
                return  # The age of its oldest record is unknown until the topic is marked.
        if state.id not in self._in_by_age:
            stored_us = state.age_us(state.first, state.first_ts_us, self._clock.shift_us)
            due_us = stored_us + round(limits.age_s * 1_000_000)
            heapq.heappush(self._by_age, (due_us, state.id, state.name))
            self._in_by_age.add(state.id)

    def remove(self, state: TopicState) -> None:
        """Forget the age limit of a deleted topic. Its entry could otherwise stay in the heap for months."""
        self._in_by_age.discard(state.id)
        if len(self._by_age) > 2 * len(self._in_by_age) + STALE_MAX:
            self._by_age = [entry for entry in self._by_age if entry[1] in self._in_by_age]
            heapq.heapify(self._by_age)

    def plan(self, rows: int, now: Moment) -> list[PlannedTrim]:
        """Return what to trim in one step that looks at no more than ``rows`` records."""
        plan: list[PlannedTrim] = []
        if self.hold.is_paused:
            return plan
        for name in list(self._to_trim):
            if rows <= 0:
                break
            state = self._state.topics.get(name)
            trim_range = None if state is None else self._range_to_trim(state, rows, now)
            if state is None or trim_range is None:
                del self._to_trim[name]
                if state is not None:
                    self.check_age_limit(state, self.limits(state))
                continue
            plan.append((state, trim_range))
            rows -= trim_range.stop - trim_range.first
        return plan

    def _range_to_trim(self, state: TopicState, rows: int, now: Moment) -> TrimRange | None:
        """Return what to delete of a topic, given what is unread; None if nothing."""
        limits = self.limits(state)
        if self._clock.is_held:
            limits = msgspec.structs.replace(limits, age_s=0)
        first_unread = self.hold.first_unread(state)
        if first_unread is None or state.first < first_unread:
            stop = state.end if first_unread is None else first_unread
            return self._range_beyond(state, limits, stop, rows, now)
        # All records are unread.
        if self._range_beyond(state, limits, state.end, rows, now) is None:
            return None
        trim_range = self._range_beyond(state, self.hold.hard_limits(limits), state.end, rows, now)
        if trim_range is None:
            self.hold.mark_held(state.name)
        else:
            self.hold.warn_unread_deleted(state.name)
        return trim_range

    def _range_beyond(
        self, state: TopicState, limits: Retention, end: int, rows: int, now: Moment
    ) -> TrimRange | None:
        """Return the records of a topic before ``end`` that may exceed these limits; None if none does."""
        count = state.end - state.first
        keep_from = state.end - limits.count if limits.count else 0
        # One era at a time: dates of different eras cannot be compared.
        era = state.oldest_era()
        shift_us, era_stop = (self._clock.shift_us, state.end) if era is None else (era.shift_us, era.stop)
        keep_since_us = max(0, now.age_us + shift_us - round(limits.age_s * 1_000_000)) if limits.age_s else 0
        excess_bytes = state.bytes - limits.bytes if limits.bytes and count > 1 else 0
        expected = keep_from - state.first
        if count and state.first_ts_us < keep_since_us:
            expected = count
        if excess_bytes > 0:
            expected = max(expected, excess_bytes * count * 5 // (state.bytes * 4) + 16)
        if expected <= 0:
            return None
        return TrimRange(
            topic=state.id,
            first=state.first,
            stop=min(end, era_stop, state.first + min(expected, rows)),
            keep_from=keep_from,
            keep_since_us=keep_since_us,
            excess_bytes=excess_bytes,
            last=state.end - 1,
            keep_ids_since_us=self._state.dedup.expiry_cutoff_us(self._clock.last.age_us) + shift_us,
            shift_us=shift_us,
        )
