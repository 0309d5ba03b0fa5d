"""Deciding what a group of operations does to a log, before any of it is stored.

Every implementation that assigns offsets itself decides here, so that they cannot differ. A ``Group`` sees the
committed ``World`` and keeps what it would change apart from it; the implementation stores the group and, only
if that succeeded, lets the world take it over.
"""

from __future__ import annotations

import copy
import secrets
from collections.abc import Callable, Sequence

import msgspec

from himalia.errors import BadRequest, EpochChanged, TooManyTopics, TopicExists, TopicNotFound
from himalia.log.api import Appended, Batch, Change, ChangeKind
from himalia.log.clock import Moment
from himalia.log.dedup import RecentIds, StoredId, scoped
from himalia.log.producers import ProducerMark, Producers
from himalia.record import Draft, Record, Retention, TopicInfo
from himalia.record import size_bytes as measure
from himalia.topics import AUDIT_TOPIC

INTEGER_MAX = (1 << 63) - 1


PINNED_US = 3600 * 1_000_000
"""A topic whose last record is dated later than this from now gets no right times until then."""
MARKS_PER_AGE = 64


class Era(msgspec.Struct, frozen=True):
    """Records that were stored before the clock was set: those before ``stop``, and after the previous era."""

    stop: int
    shift_us: int
    """By how much they are dated later than their ages say."""


class TopicState(msgspec.Struct):
    """A topic as its writer knows it. Groups work on copies."""

    id: int
    """The log's own number for this topic and epoch; never used again."""
    name: str
    epoch: str
    created_us: int
    retention: Retention
    first: int = 0
    end: int = 0
    bytes: int = 0
    last_ts_us: int = 0
    first_ts_us: int = 0
    """The time of the oldest record; means nothing while there is none."""
    owner: str | None = None
    eras: tuple[Era, ...] = ()
    """Mostly none; see ``himalia.log.clock``."""

    def oldest_era(self) -> Era | None:
        """The era of the oldest record; None if that is the present one."""
        return next((era for era in self.eras if era.stop > self.first), None)

    def age_us(self, offset: int, ts_us: int, shift_us: int) -> int:
        """The age of a record with this offset and time; ``shift_us`` is that of the present era."""
        era = next((era for era in self.eras if era.stop > offset), None)
        return ts_us - (shift_us if era is None else era.shift_us)

    def end_era(self, shift_us: int) -> TopicState:
        """This topic, with the records of the present era in one that has ended."""
        if self.first == self.end or (self.eras and self.eras[-1].stop == self.end):
            return self
        ended = copy.copy(self)
        ended.eras = (*self.eras, Era(self.end, shift_us))
        return ended

    def is_pinned(self, now: Moment) -> bool:
        """Whether its records cannot be dated rightly, because earlier ones are dated far in the future."""
        return self.last_ts_us > now.ts_us + PINNED_US

    def mark_pinned(self, now: Moment, age_limit_s: float) -> TopicState | None:
        """With the records whose times are wrong counted as stored now; None if it is too early to mark again.

        Their ages are then wrong by the time between two marks at most, and never too high.
        """
        if self.eras and self.eras[-1].stop >= self.end:
            return None
        marked_us = self.last_ts_us - self.eras[-1].shift_us if self.eras else 0
        # A mark that is later than now is from before ages were taken back.
        if 0 <= now.age_us - marked_us < max(PINNED_US, age_limit_s * 1_000_000 / MARKS_PER_AGE):
            return None
        return self.end_era(self.last_ts_us - now.age_us)

    def info(self) -> TopicInfo:
        return TopicInfo(
            name=self.name,
            epoch=self.epoch,
            first=self.first,
            end=self.end,
            bytes=self.bytes,
            created_us=self.created_us,
            last_ts_us=self.last_ts_us,
            retention=self.retention,
            owner=self.owner,
        )


class World:
    """The committed state of a log: its topics, recent ids and where to find producers."""

    def __init__(
        self,
        ids: RecentIds,
        *,
        topics_max: int,
        producers: Producers,
        find_producer: Callable[[int, str], ProducerMark | None],
    ) -> None:
        self.ids = ids
        self.topics: dict[str, TopicState] = {}
        self.topics_max = topics_max
        self.producers = producers
        self.find_producer = find_producer
        self.last_topic_id = 0

    def take_over(self, group: Group) -> None:
        """The group is stored: make what it changed the state of the world."""
        for staged in group.staged:
            state = staged.state
            if staged.deleted:
                self.ids.forget_topic(state.id)
                if (kept := self.topics.get(state.name)) is not None and kept.id == state.id:
                    del self.topics[state.name]
            else:
                self.topics[state.name] = state
                self.ids.remember_all(state.id, staged.ids, group.now.age_us)
        self.producers.update(group.producer_counts)
        self.last_topic_id = max(self.last_topic_id, group.last_topic_id)


class Staged:
    """One topic as a group would leave it."""

    __slots__ = ("claimed", "created", "deleted", "ids", "marks", "records", "size_bytes", "sizes", "state")

    def __init__(self, state: TopicState, *, created: bool = False) -> None:
        self.state = state
        self.created = created
        self.deleted = False
        self.records: list[Record] = []
        self.sizes: list[int] = []
        """Of the records, one by one and together."""
        self.size_bytes = 0
        self.ids: dict[str, StoredId] = {}
        self.marks: dict[str, ProducerMark] = {}
        self.claimed: set[str] = set()
        """Producers without a caller that have one now."""


class Group:
    """Operations that are stored together. Each succeeds, or raises and leaves the group as it was."""

    def __init__(self, world: World, now: Moment) -> None:
        self._world = world
        self._by_name: dict[str, Staged] = {}
        # Topics that this group deletes: the world still has them until it takes the group over.
        self._deleted: set[int] = set()
        self._topics_added = 0
        self.now = now
        self.staged: list[Staged] = []
        self.changes: list[Change] = []
        self.last_topic_id = world.last_topic_id
        self.records = 0
        self.size_bytes = 0
        self.duplicates = 0
        self.producer_counts: dict[str, int] = {}
        """How many producers those callers have then whose number this group changes."""

    @property
    def changes_nothing(self) -> bool:
        return not self.changes and not any(staged.marks for staged in self.staged)

    def create(self, name: str, retention: Retention | None, owner: str | None = None) -> TopicInfo:
        if self._find(name) is not None:
            raise TopicExists(name)
        _check_retention(retention or Retention())
        # The server's own topic takes no room from those of its clients.
        count = len(self._world.topics) + self._topics_added - (AUDIT_TOPIC in self._world.topics)
        if count >= self._world.topics_max and name != AUDIT_TOPIC:
            raise TooManyTopics(
                f"the log holds {count} topics, its limit; delete some or raise the limit", limit=count
            )
        self.last_topic_id += 1
        state = TopicState(
            id=self.last_topic_id,
            name=name,
            epoch=secrets.token_hex(8),
            created_us=self.now.ts_us,
            retention=retention or Retention(),
            owner=owner,
        )
        self._stage(Staged(state, created=True))
        self._topics_added += 1
        self.changes.append(Change(name, ChangeKind.CREATED, state.epoch, owner))
        return state.info()

    def delete(self, name: str) -> TopicInfo:
        staged = self._open(name)
        staged.deleted = True
        self._deleted.add(staged.state.id)
        self._topics_added -= 1
        del self._by_name[name]
        self.changes.append(Change(name, ChangeKind.DELETED, staged.state.epoch))
        return staged.state.info()

    def append(self, batch: Batch) -> Appended:
        _check(batch)
        found = self._find(batch.topic)
        if found is None:
            raise TopicNotFound(batch.topic)
        if batch.epoch is not None and batch.epoch != found.epoch:
            raise EpochChanged(batch.topic, batch.epoch, found.epoch)
        if batch.producer is None:
            return self._append_by_id(self._open(batch.topic), batch)
        own = self._mark(found.id, batch, scoped(batch.scope, batch.producer))
        mark = own or self._unclaimed_mark(found.id, batch)
        if mark is not None and batch.sequence is not None and batch.sequence <= mark.sequence:
            return self._repeat(found.epoch, batch, mark)
        if own is None and batch.scope is not None:
            self._count_producer(batch.scope, is_claim=mark is not None)
        return self._append_by_sequence(self._open(batch.topic), batch)

    def _append_by_id(self, staged: Staged, batch: Batch) -> Appended:
        """Store the drafts whose ids are new, and tell where the others are."""
        drafts, scope = batch.drafts, batch.scope
        state, ids = staged.state, self._world.ids
        known = ids.of_topic(state.id)
        age_us = self.now.age_us
        cutoff_us = age_us - ids.window_us
        ts_us = max(self.now.ts_us, state.last_ts_us)
        fresh: list[Draft] = []
        fresh_ids: dict[str, StoredId] = {}
        offsets: list[int] = []
        repeated_us = 0
        for draft in drafts:
            id = draft.id if scope is None else f"{scope}\0{draft.id}"
            stored = fresh_ids.get(id) or staged.ids.get(id) or known.get(id)
            if stored is None and scope is not None:
                stored = ids.claim(state.id, draft.id, scope)
            if stored is not None and stored.age_us > cutoff_us:
                offsets.append(stored.offset)
                repeated_us = max(repeated_us, stored.ts_us)
                continue
            offset = state.end + len(fresh)
            if ids.enabled:
                fresh_ids[id] = StoredId(state.id, id, offset, ts_us, age_us)
            offsets.append(offset)
            fresh.append(draft)
        duplicates = len(drafts) - len(fresh)
        self._add(staged, fresh, ts_us)
        staged.ids.update(fresh_ids)
        self.duplicates += duplicates
        return Appended(state.epoch, offsets, ts_us if fresh else repeated_us or ts_us, duplicates)

    def _append_by_sequence(self, staged: Staged, batch: Batch) -> Appended:
        """Store all drafts, and that this was the producer's latest batch."""
        assert batch.producer is not None
        assert batch.sequence is not None
        state, drafts = staged.state, batch.drafts
        first, ts_us = state.end, max(self.now.ts_us, state.last_ts_us)
        self._add(staged, drafts, ts_us)
        if self._world.ids.enabled:
            for i, draft in enumerate(drafts):
                id = scoped(batch.scope, draft.id)
                staged.ids[id] = StoredId(state.id, id, first + i, ts_us, self.now.age_us)
        producer = scoped(batch.scope, batch.producer)
        staged.marks[producer] = ProducerMark(batch.sequence, first, len(drafts), ts_us, self.now.age_us)
        if batch.scope is not None:
            # From now on the name is this caller's, if it was one of an earlier version, which anybody could use.
            staged.claimed.add(batch.producer)
        return Appended(state.epoch, range(first, first + len(drafts)), ts_us)

    def _repeat(self, epoch: str, batch: Batch, mark: ProducerMark) -> Appended:
        count = len(batch.drafts)
        latest = batch.sequence == mark.sequence and count == mark.count
        first = mark.first_offset
        offsets: Sequence[int] = range(first, first + count) if latest else [-1] * count
        self.duplicates += count
        return Appended(epoch, offsets, mark.ts_us, count)

    def _add(self, staged: Staged, drafts: Sequence[Draft], ts_us: int) -> None:
        """Give the drafts the next offsets of the topic."""
        if not drafts:
            return
        state = staged.state
        name, end = state.name, state.end
        records = [
            Record(name, offset, ts_us, draft.id, draft.headers, draft.payload)
            for offset, draft in enumerate(drafts, end)
        ]
        sizes = [measure(draft.id, draft.headers, draft.payload) for draft in drafts]
        size_bytes = sum(sizes)
        if not staged.records:
            self.changes.append(Change(name, ChangeKind.APPENDED, state.epoch))
            if state.first == end:
                state.first_ts_us = ts_us
        staged.records += records
        staged.sizes += sizes
        staged.size_bytes += size_bytes
        state.end = end + len(records)
        state.bytes += size_bytes
        state.last_ts_us = ts_us
        self.records += len(records)
        self.size_bytes += size_bytes

    def _mark(self, topic_id: int, batch: Batch, producer: str) -> ProducerMark | None:
        staged = self._by_name.get(batch.topic)
        if staged is not None and (mark := staged.marks.get(producer)) is not None:
            return mark
        return self._world.find_producer(topic_id, producer)

    def _unclaimed_mark(self, topic_id: int, batch: Batch) -> ProducerMark | None:
        """The last batch under this name, if an earlier version stored it and no caller has used the name since."""
        staged = self._by_name.get(batch.topic)
        if batch.producer is None or batch.scope is None:
            return None
        if staged is not None and batch.producer in staged.claimed:
            return None
        return self._world.find_producer(topic_id, batch.producer)

    def _count_producer(self, caller: str, *, is_claim: bool) -> None:
        """Count a name that is new for this caller, or refuse it. One that it claims is no row more in the log."""
        count = self.producer_counts.get(caller, self._world.producers.counts.get(caller, 0))
        if not is_claim:
            self._world.producers.check_room(caller, count)
        self.producer_counts[caller] = count + 1

    def _find(self, name: str) -> TopicState | None:
        staged = self._by_name.get(name)
        if staged is not None:
            return staged.state
        state = self._world.topics.get(name)
        return None if state is None or state.id in self._deleted else state

    def _open(self, name: str) -> Staged:
        """The topic in this group, to be changed."""
        staged = self._by_name.get(name)
        if staged is None:
            state = self._find(name)
            if state is None:
                raise TopicNotFound(name)
            staged = Staged(copy.copy(state))
            self._stage(staged)
        return staged

    def _stage(self, staged: Staged) -> None:
        self._by_name[staged.state.name] = staged
        self.staged.append(staged)


def _check_retention(retention: Retention) -> None:
    for name, limit in (("age_s", retention.age_s), ("bytes", retention.bytes), ("count", retention.count)):
        if limit is not None and not 0 <= limit <= INTEGER_MAX:
            raise BadRequest(f"retention {name} is {limit}, but has to be 0 (no limit) or more")


def _check(batch: Batch) -> None:
    if (batch.producer is None) != (batch.sequence is None):
        raise BadRequest("a batch names both a producer and a sequence, or neither")
    if batch.producer is not None and "\0" in batch.producer:
        # It would be taken for the key that ``scoped`` makes of another caller's producer.
        raise BadRequest("the name of a producer cannot contain a NUL character")
    if batch.sequence is not None and not -INTEGER_MAX <= batch.sequence <= INTEGER_MAX:
        raise BadRequest(f"sequence {batch.sequence} does not fit into 64 bits")
    for text in (batch.producer or "", *[draft.id for draft in batch.drafts]):
        if not text.isascii():
            _check_encodable(text)


def _check_encodable(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise BadRequest(f"{text!r} has half of a surrogate pair, which UTF-8 cannot carry") from None
