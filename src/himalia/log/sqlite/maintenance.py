"""Maintenance of the file: retention, erasing deleted topics, expiring producers and ids, returning free space.

It runs in steps of a few milliseconds, each a transaction of its own, at most one between two transactions of appends;
so publishing never waits for more than one step.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence

from himalia.log.api import LogOptions
from himalia.log.clock import LogClock
from himalia.log.retention_hold import RetentionHold
from himalia.log.sqlite.errors import records_missing
from himalia.log.sqlite.producer_table import ProducerSweep
from himalia.log.sqlite.retention import PlannedTrim, RetentionPlanner
from himalia.log.sqlite.store import Store
from himalia.log.sqlite.trim import (
    TrimRange,
    erase_topic_rows,
    expire_trimmed_ids,
    read_first_times,
    read_oldest_id_us,
    rewind_trimmed_ids,
    trim,
)
from himalia.log.topic_state import PINNED_US, TopicState
from himalia.log.transaction import LogState, Transaction

STEP_ROWS = 500
STEP_PAGES = 256
ERASED_PER_STEP = 32
SWEEP_TURN = 4
"""Every fourth step is one of the producer sweep, however much there is to trim."""


class Maintenance:
    """Decides which step is due, and runs it. Used by the writer thread."""

    def __init__(self, state: LogState, clock: LogClock, options: LogOptions) -> None:
        self._state = state
        self._clock = clock
        self._interval_s = max(options.retention_interval_s, 0.001)
        self._retention = RetentionPlanner(state, clock, options)
        self._sweep = ProducerSweep(state.producers, clock)
        self._steps = 0
        self._next_tick_s = 0.0
        self._next_marks_us = 0
        # Deleted topics by number, until their rows are gone.
        self._erasing: dict[int, TopicState] = {}
        # Whether the write-ahead log may still have records of erased topics; truncating it is tried once a tick.
        self._is_wal_dirty = False
        self._may_truncate_wal = False
        self._oldest_trimmed_us: int | None = None
        self._is_shrinking = False

    @property
    def hold(self) -> RetentionHold:
        return self._retention.hold

    @property
    def is_erasing(self) -> bool:
        return bool(self._erasing)

    def load(self, store: Store, deleted: Sequence[TopicState]) -> None:
        """Start over with the topics of the state, and with deleted ones that are to be erased."""
        self._next_marks_us = 0
        self._erasing = {state.id: state for state in deleted}
        self._oldest_trimmed_us = read_oldest_id_us(store.db)
        self._is_shrinking = True
        self._retention.load()

    def on_commit(self, transaction: Transaction) -> None:
        """Note which topics of a stored transaction exceed a limit now, or are to be erased."""
        for change in transaction.topic_changes:
            if change.deleted:
                self._erasing[change.state.id] = change.state
                self._retention.remove(change.state)
            elif change.records:
                self._retention.check_limits(change.state)

    def is_due(self) -> bool:
        """Whether there is a step to run now; at most once per interval, collect what has become due."""
        now_s = time.monotonic()
        if now_s >= self._next_tick_s:
            self._next_tick_s = now_s + self._interval_s
            self._may_truncate_wal = self._is_wal_dirty
            self._retention.tick()
            self._sweep.tick()
        return self._has_work()

    def wait_s(self) -> float:
        """Return how long no step will be due."""
        return 0.0 if self._has_work() else max(0.0, self._next_tick_s - time.monotonic())

    def step(self, store: Store, rows: int) -> list[TopicState]:
        """Run one step that looks at about ``rows`` records; return the topics that changed."""
        rows = max(rows, STEP_ROWS)
        self._steps += 1
        if self._sweep.is_due and (self._steps % SWEEP_TURN == 0 or not self._has_rows_to_delete()):
            self._sweep.step(store.producers, store.transaction())
        elif self._has_rows_to_delete():
            return self._trim_and_erase(store, rows)
        if self._are_ids_due():
            with store.transaction():
                self._oldest_trimmed_us = expire_trimmed_ids(store.db, self._expiry_cutoff_us(), rows * 4)
        elif self._retention.pinned and self._are_marks_due():
            self._mark_pinned(store)
        elif self._may_truncate_wal:
            self._may_truncate_wal = False
            self._is_wal_dirty = not store.truncate_wal()
        elif self._is_shrinking:
            self._is_shrinking = store.shrink(STEP_PAGES)
        return []

    def _has_work(self) -> bool:
        if self._has_rows_to_delete() or self._is_shrinking or self._may_truncate_wal or self._are_ids_due():
            return True
        if self._sweep.is_due:
            return True
        return bool(self._retention.pinned) and self._are_marks_due()

    def _has_rows_to_delete(self) -> bool:
        return self._retention.has_work or bool(self._erasing)

    # Eras

    def _are_marks_due(self) -> bool:
        return self._clock.last.age_us >= self._next_marks_us

    def _mark_pinned(self, store: Store) -> None:
        """Count records with wrong dates as stored now, so that they reach their age limit too."""
        now = self._clock.now()
        retention = self._retention
        pinned = [state for name in retention.pinned if (state := self._state.topics.get(name)) is not None]
        marked = [state.mark_pinned(now, retention.limits(state).age_s or 0) for state in pinned]
        self.end_eras(store, [state for state in marked if state is not None])
        self._next_marks_us = now.age_us + PINNED_US
        retention.pinned = {state.name for state in pinned if state.is_pinned(now)}

    def end_eras(self, store: Store, ended: Sequence[TopicState], rewound_us: int = 0) -> None:
        """Store these topics with their eras ended, then apply them. ``rewound_us``: how much ages were reduced."""
        clock = self._clock.snapshot()
        with store.transaction():
            store.save_eras(ended)
            store.save_clock(clock)
            if rewound_us:
                rewind_trimmed_ids(store.db, rewound_us, clock.age_us)
        self._clock.mark_saved(clock)
        if rewound_us:
            self._state.dedup.rewind(rewound_us, clock.age_us)
            self._next_marks_us = 0
        for state in ended:
            self._state.topics[state.name] = state
            self._retention.check_age_limit(state, self._retention.limits(state))

    # Trimming and erasing

    def _trim_and_erase(self, store: Store, rows: int) -> list[TopicState]:
        now = self._clock.now()
        # Neither may delay the other: a huge deleted topic, or topics that are written to all the time.
        plan = self._retention.plan(rows // 2 if self._erasing else rows, now)
        plan += self._plan_erasing(rows // 2 if plan else rows)
        empty = [state.id for state in self._erasing.values() if state.first == state.end]
        empty = empty[:ERASED_PER_STEP]
        if not plan and not empty:
            return []
        with store.transaction():
            trimmed = self._trim(store, plan)
            erased, producer_counts = self._erase(store, empty, rows)
            self._oldest_trimmed_us = expire_trimmed_ids(store.db, self._expiry_cutoff_us(), rows * 4)
        self._state.producers.update(producer_counts)
        for number in erased:
            del self._erasing[number]
        if erased and not self._erasing:
            self._is_wal_dirty = self._may_truncate_wal = True
        # Done when nothing else is due.
        self._is_shrinking = True
        return self._apply(trimmed)

    def _plan_erasing(self, rows: int) -> list[PlannedTrim]:
        """Return what to delete of deleted topics: all records, in steps."""
        plan: list[PlannedTrim] = []
        for state in self._erasing.values():
            if rows <= 0:
                break
            first, end = state.first, state.end
            if first < end:
                stop = min(end, first + rows)
                plan.append((state, TrimRange(state.id, first, stop, end, 0, 0, end - 1)))
                rows -= stop - first
        return plan

    def _trim(self, store: Store, plan: Sequence[PlannedTrim]) -> list[TopicState]:
        """Delete the planned records; return the states of their topics afterwards."""
        if not plan:
            return []
        results = trim(store.db, [planned for _, planned in plan])
        times = read_first_times(store.db, results.values())
        trimmed = []
        for state, planned in plan:
            result = results.get(state.id)
            if result is None:
                raise records_missing(store.path, state.name, planned.first)
            state = copy.copy(state)
            state.first = result.first
            state.bytes -= result.bytes
            state.first_ts_us = times.get(state.id, state.first_ts_us)
            trimmed.append(state)
        store.save_states(trimmed)
        self._drop_eras(store, trimmed)
        return trimmed

    def _drop_eras(self, store: Store, trimmed: Sequence[TopicState]) -> None:
        """Delete eras that have no record left."""
        changed = [state for state in trimmed if state.eras and state.eras[0].stop <= state.first]
        for state in changed:
            state.eras = tuple(era for era in state.eras if era.stop > state.first)
        if changed:
            store.save_eras(changed)

    def _erase(self, store: Store, empty: Sequence[int], rows: int) -> tuple[list[int], dict[str, int]]:
        """Erase the remaining rows of deleted topics; return those that are gone, and the new producer counts."""
        erased: list[int] = []
        removed: list[str] = []
        for number in empty:
            names = store.producers.erase_topic(number, rows)
            removed += names
            if len(names) < rows:
                erase_topic_rows(store.db, number)
                erased.append(number)
        counts = self._state.producers.counts_without(removed)
        store.producers.save_counts(counts)
        return erased, counts

    def _apply(self, trimmed: Sequence[TopicState]) -> list[TopicState]:
        """Apply a step that was committed; return its topics that are not deleted."""
        kept = []
        for state in trimmed:
            if state.id in self._erasing:
                self._erasing[state.id] = state
            else:
                self._state.topics[state.name] = state
                kept.append(state)
        return kept

    # Ids of deleted records

    def _expiry_cutoff_us(self) -> int:
        # By the latest reading of the clock, which is at most one iteration old: this is called very often.
        return self._state.dedup.expiry_cutoff_us(self._clock.last.age_us)

    def _are_ids_due(self) -> bool:
        oldest_us = self._oldest_trimmed_us
        return oldest_us is not None and oldest_us < self._expiry_cutoff_us()
