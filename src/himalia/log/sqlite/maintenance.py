"""What the writer does when nothing waits: retention, erasing deleted topics, forgetting producers, giving back space.

It goes in steps of a few milliseconds, each a transaction of its own, one between two groups of appends at most; so
publishing never waits longer than for one step. Topics that exceed a limit slightly are cut at the next tick
(``interval_s``), which costs a busy topic one cut for many appends; those far beyond it are cut at once.
"""

from __future__ import annotations

import copy
import heapq
import time
from collections.abc import Sequence

import msgspec

from himalia.log.clock import LogClock, Moment
from himalia.log.retention_hold import Spared
from himalia.log.sqlite.errors import missing
from himalia.log.sqlite.store import Store
from himalia.log.sqlite.trim import (
    Cut,
    ProducerSweep,
    cut,
    erase_producers,
    erase_rest,
    first_times,
    forget_ids,
    oldest_id_us,
    take_back_ids,
)
from himalia.log.transaction import PINNED_US, Group, TopicState, World
from himalia.record import Retention

STEP_ROWS = 500
STEP_PAGES = 256
STALE_MAX = 1_000
"""Entries of deleted topics that are kept before they are cleared away at once."""
FAR_BEYOND_BYTES = 4 << 20
ERASED_PER_STEP = 32
SWEEP_TURN = 4
"""Every fourth step is of the sweep of producers, however much there is to cut."""

Planned = tuple[TopicState, Cut]


class Upkeep:
    """Knows what is due without looking at topics that are not. Belongs to the writer's thread."""

    def __init__(
        self,
        world: World,
        default: Retention,
        interval_s: float,
        clock: LogClock,
        spared: Spared,
    ) -> None:
        self.spared = spared
        self._world = world
        self._default = default
        self._interval_s = max(interval_s, 0.001)
        self._clock = clock
        self._sweep = ProducerSweep(world.producers, clock)
        self._steps = 0
        self._next_tick_s = 0.0
        # Topics beyond a limit, to be looked at with the next tick; and those being cut, in turn.
        self._beyond: set[str] = set()
        self._cutting: dict[str, None] = {}
        # When the oldest record of a topic reaches its age limit: age, topic's number, name. At most one entry for
        # each number, and the numbers that have one. An entry may come too early, never too late.
        self._by_age: list[tuple[int, int, str]] = []
        self._in_by_age: set[int] = set()
        # Topics whose records are dated far in the future.
        self._pinned: set[str] = set()
        self._next_marks_us = 0
        self._erasing: dict[int, TopicState] = {}
        # Whether the write-ahead log may still have records of topics that were erased; tried once a tick.
        self._is_wal_dirty = False
        self._may_empty_wal = False
        self._oldest_trimmed_us: int | None = None
        self._shrinking = False

    def load(self, store: Store, erasing: Sequence[TopicState]) -> None:
        """Begin anew with the state of the world and these deleted topics."""
        self._beyond.clear()
        self._cutting.clear()
        self._by_age.clear()
        self._in_by_age.clear()
        self._pinned.clear()
        self._next_marks_us = 0
        self._erasing = {state.id: state for state in erasing}
        self._oldest_trimmed_us = oldest_id_us(store.db)
        self._shrinking = True
        for state in self._world.topics.values():
            self._look_at(state)

    def notice(self, group: Group) -> None:
        """This group was stored: its topics may have come to exceed a limit, or wait to be erased."""
        for staged in group.staged:
            if staged.deleted:
                self._erasing[staged.state.id] = staged.state
                self._forget_age(staged.state)
            elif staged.records:
                self._look_at(staged.state)

    def hurry(self) -> None:
        """Have the next tick now."""
        self._next_tick_s = 0.0

    def is_due(self) -> bool:
        now_s = time.monotonic()
        if now_s >= self._next_tick_s:
            self._next_tick_s = now_s + self._interval_s
            self._tick()
        return self._has_work()

    def wait_s(self) -> float:
        """How long nothing will be due."""
        return 0.0 if self._has_work() else max(0.0, self._next_tick_s - time.monotonic())

    def step(self, store: Store, rows: int) -> list[TopicState]:
        """Do a little of what is due; returns the topics that changed."""
        rows = max(rows, STEP_ROWS)
        self._steps += 1
        if self._sweep.is_due and (self._steps % SWEEP_TURN == 0 or not self._has_cuts()):
            self._sweep.step(store)
        elif self._has_cuts():
            return self._cut(store, rows)
        if self._ids_are_due():
            with store.transaction():
                self._oldest_trimmed_us = forget_ids(store.db, self._ids_count_since_us(), rows * 4)
        elif self._pinned and self._marks_are_due():
            self._mark(store)
        elif self._may_empty_wal:
            self._may_empty_wal = False
            self._is_wal_dirty = not store.empty_wal()
        elif self._shrinking:
            self._shrinking = store.shrink(STEP_PAGES)
        return []

    def _has_work(self) -> bool:
        if self._has_cuts() or self._shrinking or self._may_empty_wal or self._ids_are_due():
            return True
        if self._sweep.is_due:
            return True
        return bool(self._pinned) and self._marks_are_due()

    def _has_cuts(self) -> bool:
        return bool((self._cutting and not self.spared.is_paused) or self._erasing)

    @property
    def is_erasing(self) -> bool:
        return bool(self._erasing)

    def _tick(self) -> None:
        self._may_empty_wal = self._is_wal_dirty
        self._cutting.update(dict.fromkeys(self._beyond))
        self._beyond.clear()
        self._cutting.update(dict.fromkeys(self.spared.count()))
        age_us = self._clock.now().age_us
        while self._by_age and self._by_age[0][0] < age_us and not self._clock.is_held:
            _, number, name = heapq.heappop(self._by_age)
            if number in self._in_by_age:
                self._in_by_age.discard(number)
                self._cutting[name] = None
        self._sweep.tick()

    def _look_at(self, state: TopicState) -> None:
        limits = self._limits(state)
        count = state.end - state.first
        records = count - limits.count if limits.count else 0
        size_bytes = state.bytes - limits.bytes if limits.bytes and count > 1 else 0
        if records >= STEP_ROWS or size_bytes >= FAR_BEYOND_BYTES:
            self._cutting[state.name] = None
        elif records > 0 or size_bytes > 0:
            self._beyond.add(state.name)
        self._look_at_age(state, limits)

    def _look_at_age(self, state: TopicState, limits: Retention) -> None:
        if not limits.age_s or state.first == state.end:
            return
        if state.is_pinned(self._clock.last):
            self._pinned.add(state.name)
            if state.oldest_era() is None:
                return  # When its oldest record reaches its limit is known after it was marked.
        if state.id not in self._in_by_age:
            stored_us = state.age_us(state.first, state.first_ts_us, self._clock.shift_us)
            due_us = stored_us + round(limits.age_s * 1_000_000)
            heapq.heappush(self._by_age, (due_us, state.id, state.name))
            self._in_by_age.add(state.id)

    def _forget_age(self, state: TopicState) -> None:
        """A deleted topic has no age limit. Its entry would stay in the heap for as long as the limit is."""
        self._in_by_age.discard(state.id)
        if len(self._by_age) > 2 * len(self._in_by_age) + STALE_MAX:
            self._by_age = [entry for entry in self._by_age if entry[1] in self._in_by_age]
            heapq.heapify(self._by_age)

    def _limits(self, state: TopicState) -> Retention:
        return state.retention.with_defaults(self._default)

    # Clocks

    def _marks_are_due(self) -> bool:
        return self._clock.last.age_us >= self._next_marks_us

    def _mark(self, store: Store) -> None:
        """Have records with wrong times count as stored now, so that they too grow old."""
        now = self._clock.now()
        pinned = [state for name in self._pinned if (state := self._world.topics.get(name)) is not None]
        marked = [state.mark_pinned(now, self._limits(state).age_s or 0) for state in pinned]
        self.end_eras(store, [state for state in marked if state is not None])
        self._next_marks_us = now.age_us + PINNED_US
        self._pinned = {state.name for state in pinned if state.is_pinned(now)}

    def end_eras(self, store: Store, ended: Sequence[TopicState], taken_us: int = 0) -> None:
        """Store that eras of these topics have ended, and take it over. Of the age, so much was taken back."""
        clock = self._clock.save()
        with store.transaction():
            store.save_eras(ended)
            store.save_clock(clock)
            if taken_us:
                take_back_ids(store.db, taken_us, clock.age_us)
        self._clock.saved(clock)
        if taken_us:
            self._world.ids.take_back(taken_us, clock.age_us)
            self._next_marks_us = 0
        for state in ended:
            self._world.topics[state.name] = state
            self._look_at_age(state, self._limits(state))

    # Cutting

    def _cut(self, store: Store, rows: int) -> list[TopicState]:
        now = self._clock.now()
        # Neither may hold up the other: a huge deleted topic, or topics that are written to all the time.
        plan = self._plan_retention(rows // 2 if self._erasing else rows, now)
        plan += self._plan_erasing(rows // 2 if plan else rows)
        emptied = [state.id for state in self._erasing.values() if state.first == state.end]
        emptied = emptied[:ERASED_PER_STEP]
        if not plan and not emptied:
            return []
        with store.transaction():
            moved = self._remove(store, plan)
            erased, producer_counts = self._erase(store, emptied, rows)
            self._oldest_trimmed_us = forget_ids(store.db, self._ids_count_since_us(), rows * 4)
        self._world.producers.update(producer_counts)
        for number in erased:
            del self._erasing[number]
        if erased and not self._erasing:
            self._is_wal_dirty = self._may_empty_wal = True
        # Looked at when nothing else is left to do.
        self._shrinking = True
        return self._take_over(moved)

    def _erase(self, store: Store, emptied: Sequence[int], rows: int) -> tuple[list[int], dict[str, int]]:
        """Erase what is left of deleted topics; returns those that are gone, and the counts of their callers."""
        erased: list[int] = []
        forgotten: list[str] = []
        for number in emptied:
            names = erase_producers(store.db, number, rows)
            forgotten += names
            if len(names) < rows:
                erase_rest(store.db, number)
                erased.append(number)
        counts = self._world.producers.counts_without(forgotten)
        store.save_producer_counts(counts)
        return erased, counts

    def _plan_retention(self, rows: int, now: Moment) -> list[Planned]:
        plan: list[Planned] = []
        if self.spared.is_paused:
            return plan
        for name in list(self._cutting):
            if rows <= 0:
                break
            state = self._world.topics.get(name)
            excess = None if state is None else self._excess(state, rows, now)
            if state is None or excess is None:
                del self._cutting[name]
                if state is not None:
                    self._look_at_age(state, self._limits(state))
                continue
            plan.append((state, excess))
            rows -= excess.stop - excess.first
        return plan

    def _excess(self, state: TopicState, rows: int, now: Moment) -> Cut | None:
        """What of a topic is to go, looking at no more than so many records; None if nothing is."""
        limits = self._limits(state)
        if self._clock.is_held:
            limits = msgspec.structs.replace(limits, age_s=0)
        floor = self.spared.floor(state)
        if floor is None or state.first < floor:
            return self._beyond_limits(state, limits, state.end if floor is None else floor, rows, now)
        # All that is left is unread.
        if self._beyond_limits(state, limits, state.end, rows, now) is None:
            return None
        excess = self._beyond_limits(state, self.spared.widened(limits), state.end, rows, now)
        if excess is None:
            self.spared.note(state.name)
        else:
            self.spared.complain(state.name)
        return excess

    def _beyond_limits(
        self, state: TopicState, limits: Retention, end: int, rows: int, now: Moment
    ) -> Cut | None:
        """What of a topic, before an offset, exceeds these limits."""
        count = state.end - state.first
        keep_from = state.end - limits.count if limits.count else 0
        # One era at a time: only the ages of records of one era can be told from each other by their times.
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
        stop = min(end, era_stop, state.first + min(expected, rows))
        return Cut(
            topic=state.id,
            first=state.first,
            stop=stop,
            keep_from=keep_from,
            keep_since_us=keep_since_us,
            excess_bytes=excess_bytes,
            last=state.end - 1,
            remember_since_us=self._ids_count_since_us() + shift_us,
            shift_us=shift_us,
        )

    def _plan_erasing(self, rows: int) -> list[Planned]:
        plan: list[Planned] = []
        for state in self._erasing.values():
            if rows <= 0:
                break
            first, end = state.first, state.end
            if first < end:
                stop = min(end, first + rows)
                plan.append((state, Cut(state.id, first, stop, end, 0, 0, end - 1)))
                rows -= stop - first
        return plan

    def _remove(self, store: Store, plan: Sequence[Planned]) -> list[TopicState]:
        """Carry the plan out; returns the states of its topics afterwards."""
        if not plan:
            return []
        removed = cut(store.db, [planned for _, planned in plan])
        times = first_times(store.db, removed.values())
        moved = []
        for state, planned in plan:
            gone = removed.get(state.id)
            if gone is None:
                raise missing(store.path, state.name, planned.first)
            state = copy.copy(state)
            state.first = gone.first
            state.bytes -= gone.bytes
            state.first_ts_us = times.get(state.id, state.first_ts_us)
            moved.append(state)
        store.save_states(moved)
        self._drop_eras(store, moved)
        return moved

    def _drop_eras(self, store: Store, moved: Sequence[TopicState]) -> None:
        """Forget eras of which no record is left."""
        changed = [state for state in moved if state.eras and state.eras[0].stop <= state.first]
        for state in changed:
            state.eras = tuple(era for era in state.eras if era.stop > state.first)
        if changed:
            store.save_eras(changed)

    def _take_over(self, moved: Sequence[TopicState]) -> list[TopicState]:
        """The step is stored. Returns those topics that are not deleted."""
        kept = []
        for state in moved:
            if state.id in self._erasing:
                self._erasing[state.id] = state
            else:
                self._world.topics[state.name] = state
                kept.append(state)
        return kept

    # Ids of removed records

    def _ids_count_since_us(self) -> int:
        # Of the last look, which is of this turn: this is asked very often.
        return self._world.ids.oldest_counting_us(self._clock.last.age_us)

    def _ids_are_due(self) -> bool:
        oldest_us = self._oldest_trimmed_us
        return oldest_us is not None and oldest_us < self._ids_count_since_us()
