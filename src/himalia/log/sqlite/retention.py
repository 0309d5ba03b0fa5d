"""What the writer does when nothing waits: retention, erasing deleted topics, giving back space.

It goes in steps of a few milliseconds, each a transaction of its own, one between two groups of appends at most; so
publishing never waits longer than for one step. Topics that exceed a limit slightly are cut at the next tick
(``interval_s``), which costs a busy topic one cut for many appends; those far beyond it are cut at once.
"""

from __future__ import annotations

import copy
import heapq
import time
from collections.abc import Callable, Sequence

from himalia.log.sparing import Spared
from himalia.log.sqlite.cutting import Cut, cut, erase_rest, first_times, forget_ids, oldest_id_us
from himalia.log.sqlite.failures import missing
from himalia.log.sqlite.store import Store
from himalia.log.staging import Group, TopicState, World
from himalia.record import Retention

STEP_ROWS = 500
STEP_PAGES = 256
FAR_BEYOND_BYTES = 4 << 20
ERASED_PER_STEP = 32

Planned = tuple[TopicState, Cut]


class Upkeep:
    """Knows what is due without looking at topics that are not. Belongs to the writer's thread."""

    def __init__(
        self,
        world: World,
        default: Retention,
        interval_s: float,
        clock: Callable[[], int],
        spared: Spared,
    ) -> None:
        self.spared = spared
        self._world = world
        self._default = default
        self._interval_s = max(interval_s, 0.001)
        self._clock = clock
        self._next_tick_s = 0.0
        # Topics beyond a limit, to be looked at with the next tick; and those being cut, in turn.
        self._beyond: set[str] = set()
        self._cutting: dict[str, None] = {}
        # When the oldest record of a topic reaches its age: time, topic's number, name. At most one entry for
        # each number, and the numbers that have one. An entry may come too early, never too late.
        self._by_age: list[tuple[int, int, str]] = []
        self._in_by_age: set[int] = set()
        self._erasing: dict[int, TopicState] = {}
        self._oldest_trimmed_us: int | None = None
        self._shrinking = False

    def load(self, store: Store, erasing: Sequence[TopicState]) -> None:
        """Begin anew with the state of the world and these deleted topics."""
        self._beyond.clear()
        self._cutting.clear()
        self._by_age.clear()
        self._in_by_age.clear()
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
        if self._has_cuts():
            return self._cut(store, rows)
        if self._ids_are_due():
            with store.transaction():
                self._oldest_trimmed_us = forget_ids(store.db, self._ids_count_since_us(), rows * 4)
        elif self._shrinking:
            self._shrinking = store.shrink(STEP_PAGES)
        return []

    def _has_work(self) -> bool:
        return self._has_cuts() or self._shrinking or self._ids_are_due()

    def _has_cuts(self) -> bool:
        return bool((self._cutting and not self.spared.is_paused) or self._erasing)

    def _tick(self) -> None:
        self._cutting.update(dict.fromkeys(self._beyond))
        self._beyond.clear()
        self._cutting.update(dict.fromkeys(self.spared.count()))
        now_us = self._clock()
        while self._by_age and self._by_age[0][0] < now_us:
            _, number, name = heapq.heappop(self._by_age)
            self._in_by_age.discard(number)
            self._cutting[name] = None

    def _look_at(self, state: TopicState) -> None:
        limits = state.retention.over(self._default)
        count = state.end - state.first
        records = count - limits.count if limits.count else 0
        size_bytes = state.bytes - limits.bytes if limits.bytes and count > 1 else 0
        if records >= STEP_ROWS or size_bytes >= FAR_BEYOND_BYTES:
            self._cutting[state.name] = None
        elif records > 0 or size_bytes > 0:
            self._beyond.add(state.name)
        self._look_at_age(state, limits)

    def _look_at_age(self, state: TopicState, limits: Retention) -> None:
        if limits.age_s and state.first < state.end and state.id not in self._in_by_age:
            due_us = state.first_ts_us + round(limits.age_s * 1_000_000)
            heapq.heappush(self._by_age, (due_us, state.id, state.name))
            self._in_by_age.add(state.id)

    # Cutting

    def _cut(self, store: Store, rows: int) -> list[TopicState]:
        now_us = self._clock()
        # Neither may hold up the other: a huge deleted topic, or topics that are written to all the time.
        plan = self._plan_retention(rows // 2 if self._erasing else rows, now_us)
        plan += self._plan_erasing(rows // 2 if plan else rows)
        emptied = [state.id for state in self._erasing.values() if state.first == state.end]
        emptied = emptied[:ERASED_PER_STEP]
        if not plan and not emptied:
            return []
        with store.transaction():
            moved = self._remove(store, plan)
            erased = [number for number in emptied if erase_rest(store.db, number, rows)]
            self._oldest_trimmed_us = forget_ids(store.db, self._ids_count_since_us(), rows * 4)
        for number in erased:
            del self._erasing[number]
        # Looked at when nothing else is left to do.
        self._shrinking = True
        return self._take_over(moved)

    def _plan_retention(self, rows: int, now_us: int) -> list[Planned]:
        plan: list[Planned] = []
        if self.spared.is_paused:
            return plan
        for name in list(self._cutting):
            if rows <= 0:
                break
            state = self._world.topics.get(name)
            excess = None if state is None else self._excess(state, rows, now_us)
            if state is None or excess is None:
                del self._cutting[name]
                if state is not None:
                    self._look_at_age(state, state.retention.over(self._default))
                continue
            plan.append((state, excess))
            rows -= excess.stop - excess.first
        return plan

    def _excess(self, state: TopicState, rows: int, now_us: int) -> Cut | None:
        """What of a topic is to go, looking at no more than so many records; None if nothing is."""
        limits = state.retention.over(self._default)
        floor = self.spared.floor(state)
        if floor is None or state.first < floor:
            return self._beyond_limits(state, limits, state.end if floor is None else floor, rows, now_us)
        # All that is left is unread.
        if self._beyond_limits(state, limits, state.end, rows, now_us) is None:
            return None
        excess = self._beyond_limits(state, self.spared.widened(limits), state.end, rows, now_us)
        if excess is None:
            self.spared.note(state.name)
        else:
            self.spared.complain(state.name)
        return excess

    def _beyond_limits(
        self, state: TopicState, limits: Retention, end: int, rows: int, now_us: int
    ) -> Cut | None:
        """What of a topic, before an offset, exceeds these limits."""
        count = state.end - state.first
        keep_from = state.end - limits.count if limits.count else 0
        keep_since_us = max(0, now_us - round(limits.age_s * 1_000_000)) if limits.age_s else 0
        excess_bytes = state.bytes - limits.bytes if limits.bytes and count > 1 else 0
        expected = keep_from - state.first
        if count and state.first_ts_us < keep_since_us:
            expected = count
        if excess_bytes > 0:
            expected = max(expected, excess_bytes * count * 5 // (state.bytes * 4) + 16)
        if expected <= 0:
            return None
        stop = min(end, state.first + min(expected, rows))
        return Cut(
            topic=state.id,
            first=state.first,
            stop=stop,
            keep_from=keep_from,
            keep_since_us=keep_since_us,
            excess_bytes=excess_bytes,
            last=state.end - 1,
            remember=True,
        )

    def _plan_erasing(self, rows: int) -> list[Planned]:
        plan: list[Planned] = []
        for state in self._erasing.values():
            if rows <= 0:
                break
            first, end = state.first, state.end
            if first < end:
                stop = min(end, first + rows)
                plan.append((state, Cut(state.id, first, stop, end, 0, 0, end - 1, remember=False)))
                rows -= stop - first
        return plan

    def _remove(self, store: Store, plan: Sequence[Planned]) -> list[TopicState]:
        """Carry the plan out; returns the states of its topics afterwards."""
        if not plan:
            return []
        since_us = self._ids_count_since_us()
        removed = cut(store.db, [planned for _, planned in plan], remember_since_us=since_us)
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
        return moved

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
        return self._world.ids.oldest_counting_us(self._clock())

    def _ids_are_due(self) -> bool:
        oldest_us = self._oldest_trimmed_us
        return oldest_us is not None and oldest_us < self._ids_count_since_us()
