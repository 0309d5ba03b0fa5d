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
from himalia.log.contract import Appended, Batch, Change, ChangeKind
from himalia.log.ids import RecentIds, StoredId
from himalia.record import Draft, Record, Retention, TopicInfo

INTEGER_MAX = (1 << 63) - 1


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
        )


class ProducerMark(msgspec.Struct, frozen=True):
    """The last batch of a producer in a topic."""

    sequence: int
    first_offset: int
    count: int
    ts_us: int


class World:
    """The committed state of a log: its topics, recent ids and where to find producers."""

    def __init__(
        self,
        ids: RecentIds,
        *,
        topics_max: int,
        find_producer: Callable[[int, str], ProducerMark | None],
    ) -> None:
        self.ids = ids
        self.topics: dict[str, TopicState] = {}
        self.topics_max = topics_max
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
                self.ids.remember_all(state.id, staged.ids, group.now_us)
        self.last_topic_id = max(self.last_topic_id, group.last_topic_id)


class Staged:
    """One topic as a group would leave it."""

    __slots__ = ("created", "deleted", "ids", "marks", "records", "size_bytes", "state")

    def __init__(self, state: TopicState, *, created: bool = False) -> None:
        self.state = state
        self.created = created
        self.deleted = False
        self.records: list[Record] = []
        self.size_bytes = 0
        self.ids: dict[str, StoredId] = {}
        self.marks: dict[str, ProducerMark] = {}


class Group:
    """Operations that are stored together. Each succeeds, or raises and leaves the group as it was."""

    def __init__(self, world: World, now_us: int) -> None:
        self._world = world
        self._by_name: dict[str, Staged] = {}
        # Topics that this group deletes: the world still has them until it takes the group over.
        self._deleted: set[int] = set()
        self._topics_added = 0
        self.now_us = now_us
        self.staged: list[Staged] = []
        self.changes: list[Change] = []
        self.last_topic_id = world.last_topic_id
        self.records = 0
        self.size_bytes = 0
        self.duplicates = 0

    @property
    def changes_nothing(self) -> bool:
        return not self.changes and not any(staged.marks for staged in self.staged)

    def create(self, name: str, retention: Retention | None) -> TopicInfo:
        if self._find(name) is not None:
            raise TopicExists(name)
        _check_retention(retention or Retention())
        count = len(self._world.topics) + self._topics_added
        if count >= self._world.topics_max:
            raise TooManyTopics(
                f"the log holds {count} topics, its limit; delete some or raise the limit", limit=count
            )
        self.last_topic_id += 1
        state = TopicState(
            id=self.last_topic_id,
            name=name,
            epoch=secrets.token_hex(8),
            created_us=self.now_us,
            retention=retention or Retention(),
        )
        self._stage(Staged(state, created=True))
        self._topics_added += 1
        self.changes.append(Change(name, ChangeKind.CREATED, state.epoch))
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
            return self._append_by_id(self._open(batch.topic), batch.drafts)
        mark = self._mark(found.id, batch)
        if mark is not None and batch.sequence is not None and batch.sequence <= mark.sequence:
            return self._repeat(found.epoch, batch, mark)
        return self._append_by_sequence(self._open(batch.topic), batch)

    def _append_by_id(self, staged: Staged, drafts: Sequence[Draft]) -> Appended:
        """Store the drafts whose ids are new, and tell where the others are."""
        state, ids = staged.state, self._world.ids
        known = ids.of_topic(state.id)
        cutoff_us = self.now_us - ids.window_us
        ts_us = max(self.now_us, state.last_ts_us)
        fresh: list[Draft] = []
        fresh_ids: dict[str, StoredId] = {}
        offsets: list[int] = []
        repeated_us = 0
        for draft in drafts:
            id = draft.id
            stored = fresh_ids.get(id) or staged.ids.get(id) or known.get(id)
            if stored is not None and stored.ts_us > cutoff_us:
                offsets.append(stored.offset)
                repeated_us = max(repeated_us, stored.ts_us)
                continue
            offset = state.end + len(fresh)
            if ids.enabled:
                fresh_ids[id] = StoredId(state.id, id, offset, ts_us)
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
        first, ts_us = state.end, max(self.now_us, state.last_ts_us)
        self._add(staged, drafts, ts_us)
        if self._world.ids.enabled:
            for i, draft in enumerate(drafts):
                staged.ids[draft.id] = StoredId(state.id, draft.id, first + i, ts_us)
        staged.marks[batch.producer] = ProducerMark(batch.sequence, first, len(drafts), ts_us)
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
        size_bytes = sum([len(r.id) + len(r.headers) + len(r.payload) for r in records])
        if not staged.records:
            self.changes.append(Change(name, ChangeKind.APPENDED, state.epoch))
            if state.first == end:
                state.first_ts_us = ts_us
        staged.records += records
        staged.size_bytes += size_bytes
        state.end = end + len(records)
        state.bytes += size_bytes
        state.last_ts_us = ts_us
        self.records += len(records)
        self.size_bytes += size_bytes

    def _mark(self, topic_id: int, batch: Batch) -> ProducerMark | None:
        assert batch.producer is not None
        staged = self._by_name.get(batch.topic)
        if staged is not None and (mark := staged.marks.get(batch.producer)) is not None:
            return mark
        return self._world.find_producer(topic_id, batch.producer)

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
