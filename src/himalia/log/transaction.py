"""A transaction: decides what a group of operations changes in a log, before any of it is stored.

Every implementation that assigns offsets itself decides here, so that they cannot differ. A ``Transaction`` reads the
committed ``LogState`` and keeps its changes apart from it; the implementation stores the transaction and, only if that
succeeded, applies it to the state.
"""

from __future__ import annotations

import copy
import secrets
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from himalia.errors import BadRequest, EpochChanged, TooManyTopics, TopicExists, TopicNotFound
from himalia.log.api import Appended, Batch, Change, ChangeKind
from himalia.log.clock import Moment
from himalia.log.dedup import DedupEntry, DedupIndex, scope_key
from himalia.log.producers import Producers, ProducerState
from himalia.log.topic_state import TopicState
from himalia.record import Draft, Record, Retention, TopicInfo, size_bytes
from himalia.topics import AUDIT_TOPIC

if TYPE_CHECKING:
    from himalia.settings import LogSettings

INTEGER_MAX = (1 << 63) - 1


class LogState:
    """The committed state of a log. Only the thread that assigns offsets uses it."""

    def __init__(
        self, settings: LogSettings, find_producer: Callable[[int, str], ProducerState | None]
    ) -> None:
        self.topics: dict[str, TopicState] = {}
        self.topics_max = settings.topics_max
        self.last_topic_id = 0
        self.dedup = DedupIndex(settings)
        self.producers = Producers(settings)
        self.find_producer = find_producer
        """Look up a producer, by the topic's number and the producer's scoped name, in the implementation's storage."""

    def apply(self, transaction: Transaction) -> None:
        """Apply the changes of a transaction that was stored."""
        for change in transaction.topic_changes:
            state = change.state
            if change.deleted:
                self.dedup.remove_topic(state.id)
                if (kept := self.topics.get(state.name)) is not None and kept.id == state.id:
                    del self.topics[state.name]
            else:
                self.topics[state.name] = state
                self.dedup.add_topic(state.id, change.ids, transaction.now.age_us)
        self.producers.update(transaction.producer_counts)
        self.last_topic_id = max(self.last_topic_id, transaction.last_topic_id)


class TopicChange:
    """What a transaction changes in one topic; ``state`` is the topic afterwards."""

    __slots__ = (
        "claimed",
        "created",
        "deleted",
        "ids",
        "producers",
        "records",
        "size_bytes",
        "sizes",
        "state",
    )

    def __init__(self, state: TopicState, *, created: bool = False) -> None:
        self.state = state
        self.created = created
        self.deleted = False
        self.records: list[Record] = []
        self.sizes: list[int] = []
        """Size of each record; ``size_bytes`` is the sum."""
        self.size_bytes = 0
        self.ids: dict[str, DedupEntry] = {}
        self.producers: dict[str, ProducerState] = {}
        self.claimed: set[str] = set()
        """Producers of an earlier version, without a caller, that belong to a caller now."""


class Transaction:
    """Operations that are stored together. Each succeeds, or raises and leaves the transaction unchanged."""

    def __init__(self, log_state: LogState, now: Moment) -> None:
        self._log_state = log_state
        self._by_name: dict[str, TopicChange] = {}
        # Numbers of deleted topics: the log state has them until it applies the transaction.
        self._deleted: set[int] = set()
        self._topics_added = 0
        self.now = now
        self.topic_changes: list[TopicChange] = []
        self.changes: list[Change] = []
        """What watchers are notified of."""
        self.last_topic_id = log_state.last_topic_id
        self.records = 0
        self.size_bytes = 0
        self.duplicates = 0
        self.producer_counts: dict[str, int] = {}
        """The new counts of the callers whose number of producers changes."""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to store."""
        return not self.changes and not any(change.producers for change in self.topic_changes)

    def create(self, name: str, retention: Retention | None, owner: str | None = None) -> TopicInfo:
        if self._find(name) is not None:
            raise TopicExists(name)
        _check_retention(retention or Retention())
        # The server's own topic does not count towards the limit of its clients.
        topics = self._log_state.topics
        count = len(topics) + self._topics_added - (AUDIT_TOPIC in topics)
        if count >= self._log_state.topics_max and name != AUDIT_TOPIC:
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
        self._add_change(TopicChange(state, created=True))
        self._topics_added += 1
        self.changes.append(Change(name, ChangeKind.CREATED, state.epoch, owner))
        return state.info()

    def delete(self, name: str) -> TopicInfo:
        change = self._get_change(name)
        change.deleted = True
        self._deleted.add(change.state.id)
        self._topics_added -= 1
        del self._by_name[name]
        self.changes.append(Change(name, ChangeKind.DELETED, change.state.epoch))
        return change.state.info()

    def append(self, batch: Batch) -> Appended:
        _check_batch(batch)
        found = self._find(batch.topic)
        if found is None:
            raise TopicNotFound(batch.topic)
        if batch.epoch is not None and batch.epoch != found.epoch:
            raise EpochChanged(batch.topic, batch.epoch, found.epoch)
        if batch.producer is None:
            return self._append_by_id(self._get_change(batch.topic), batch)
        own = self._find_producer(found.id, batch, scope_key(batch.scope, batch.producer))
        last = own or self._find_unclaimed_producer(found.id, batch)
        if last is not None and batch.sequence is not None and batch.sequence <= last.sequence:
            return self._duplicate_result(found.epoch, batch, last)
        if own is None and batch.scope is not None:
            self._count_producer(batch.scope, is_claim=last is not None)
        return self._append_by_sequence(self._get_change(batch.topic), batch)

    def _append_by_id(self, change: TopicChange, batch: Batch) -> Appended:
        """Store the drafts whose ids are new, and return the offsets of all."""
        drafts, scope = batch.drafts, batch.scope
        state, dedup = change.state, self._log_state.dedup
        known = dedup.get_topic(state.id)
        age_us = self.now.age_us
        cutoff_us = age_us - dedup.window_us
        ts_us = max(self.now.ts_us, state.last_ts_us)
        fresh: list[Draft] = []
        fresh_ids: dict[str, DedupEntry] = {}
        offsets: list[int] = []
        repeated_us = 0
        for draft in drafts:
            id = draft.id if scope is None else f"{scope}\0{draft.id}"
            stored = fresh_ids.get(id) or change.ids.get(id) or known.get(id)
            if stored is None and scope is not None:
                stored = dedup.claim(state.id, draft.id, scope)
            if stored is not None and stored.age_us > cutoff_us:
                offsets.append(stored.offset)
                repeated_us = max(repeated_us, stored.ts_us)
                continue
            offset = state.end + len(fresh)
            if dedup.is_enabled:
                fresh_ids[id] = DedupEntry(state.id, id, offset, ts_us, age_us)
            offsets.append(offset)
            fresh.append(draft)
        duplicates = len(drafts) - len(fresh)
        self._add(change, fresh, ts_us)
        change.ids.update(fresh_ids)
        self.duplicates += duplicates
        return Appended(state.epoch, offsets, ts_us if fresh else repeated_us or ts_us, duplicates)

    def _append_by_sequence(self, change: TopicChange, batch: Batch) -> Appended:
        """Store all drafts, and this batch as the producer's last."""
        assert batch.producer is not None
        assert batch.sequence is not None
        state, drafts = change.state, batch.drafts
        first, ts_us = state.end, max(self.now.ts_us, state.last_ts_us)
        self._add(change, drafts, ts_us)
        if self._log_state.dedup.is_enabled:
            for i, draft in enumerate(drafts):
                id = scope_key(batch.scope, draft.id)
                change.ids[id] = DedupEntry(state.id, id, first + i, ts_us, self.now.age_us)
        producer = scope_key(batch.scope, batch.producer)
        change.producers[producer] = ProducerState(batch.sequence, first, len(drafts), ts_us, self.now.age_us)
        if batch.scope is not None:
            # From now on the name is this caller's, if an earlier version stored it, which let any caller use it.
            change.claimed.add(batch.producer)
        return Appended(state.epoch, range(first, first + len(drafts)), ts_us)

    def _duplicate_result(self, epoch: str, batch: Batch, last: ProducerState) -> Appended:
        """Return the result of a batch that repeats the producer's last one, or an older one."""
        count = len(batch.drafts)
        is_last = batch.sequence == last.sequence and count == last.count
        first = last.first_offset
        offsets: Sequence[int] = range(first, first + count) if is_last else [-1] * count
        self.duplicates += count
        return Appended(epoch, offsets, last.ts_us, count)

    def _add(self, change: TopicChange, drafts: Sequence[Draft], ts_us: int) -> None:
        """Give the drafts the next offsets of the topic."""
        if not drafts:
            return
        state = change.state
        name, end = state.name, state.end
        records = [
            Record(name, offset, ts_us, draft.id, draft.headers, draft.payload)
            for offset, draft in enumerate(drafts, end)
        ]
        sizes = [size_bytes(draft.id, draft.headers, draft.payload) for draft in drafts]
        total = sum(sizes)
        if not change.records:
            self.changes.append(Change(name, ChangeKind.APPENDED, state.epoch))
            if state.first == end:
                state.first_ts_us = ts_us
        change.records += records
        change.sizes += sizes
        change.size_bytes += total
        state.end = end + len(records)
        state.bytes += total
        state.last_ts_us = ts_us
        self.records += len(records)
        self.size_bytes += total

    def _find_producer(self, topic_id: int, batch: Batch, producer: str) -> ProducerState | None:
        change = self._by_name.get(batch.topic)
        if change is not None and (last := change.producers.get(producer)) is not None:
            return last
        return self._log_state.find_producer(topic_id, producer)

    def _find_unclaimed_producer(self, topic_id: int, batch: Batch) -> ProducerState | None:
        """Return the last batch under this name, if an earlier version stored it and no caller has claimed the name."""
        change = self._by_name.get(batch.topic)
        if batch.producer is None or batch.scope is None:
            return None
        if change is not None and batch.producer in change.claimed:
            return None
        return self._log_state.find_producer(topic_id, batch.producer)

    def _count_producer(self, caller: str, *, is_claim: bool) -> None:
        """Count a name that is new for this caller, or refuse it. A claimed name adds no row to the log."""
        producers = self._log_state.producers
        count = self.producer_counts.get(caller, producers.counts.get(caller, 0))
        if not is_claim:
            producers.check_room(caller, count)
        self.producer_counts[caller] = count + 1

    def _find(self, name: str) -> TopicState | None:
        change = self._by_name.get(name)
        if change is not None:
            return change.state
        state = self._log_state.topics.get(name)
        return None if state is None or state.id in self._deleted else state

    def _get_change(self, name: str) -> TopicChange:
        """Return the change of an existing topic; the first time a copy of its state."""
        change = self._by_name.get(name)
        if change is None:
            state = self._find(name)
            if state is None:
                raise TopicNotFound(name)
            change = TopicChange(copy.copy(state))
            self._add_change(change)
        return change

    def _add_change(self, change: TopicChange) -> None:
        self._by_name[change.state.name] = change
        self.topic_changes.append(change)


def _check_retention(retention: Retention) -> None:
    for name, limit in (("age_s", retention.age_s), ("bytes", retention.bytes), ("count", retention.count)):
        if limit is not None and not 0 <= limit <= INTEGER_MAX:
            raise BadRequest(f"retention {name} is {limit}, but must be 0 (no limit) or more")


def _check_batch(batch: Batch) -> None:
    if (batch.producer is None) != (batch.sequence is None):
        raise BadRequest("a batch names both a producer and a sequence, or neither")
    if batch.producer is not None and "\0" in batch.producer:
        # It would equal the key that ``scope_key`` makes of another caller's producer.
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
        raise BadRequest(f"{text!r} contains half of a surrogate pair, which UTF-8 cannot encode") from None
