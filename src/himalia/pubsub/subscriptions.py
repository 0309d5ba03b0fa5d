"""The subscriptions of a server: their cursors, and the limits on cursors and filters."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from functools import partial

from himalia.errors import TooManySubscriptions
from himalia.log.api import Change
from himalia.pubsub.delivery import Delivery
from himalia.pubsub.filters import Filter
from himalia.pubsub.outlet import Outlet
from himalia.pubsub.subscription import Cursor, Subscriber
from himalia.pubsub.time_slices import TimeSlices
from himalia.pubsub.topic import Topic
from himalia.settings import DeliverySettings

RESERVED_SHARE = 8
"""One in this many distinct filters is reserved for callers that have none; one in this many cursors for callers
other than the one that has most."""
DELETED_KEPT = 1024


class PendingPattern:
    """What happened to topics while a subscription to a pattern is being set up, which takes several time_slices."""

    __slots__ = ("created", "deleted_epochs")

    def __init__(self) -> None:
        self.created: list[Change] = []
        self.deleted_epochs: set[str] = set()


class Subscriptions:
    """Registers subscribers, and adds and removes their cursors. Used on the event loop."""

    def __init__(self, settings: DeliverySettings, delivery: Delivery, time_slices: TimeSlices) -> None:
        self.settings = settings
        self._delivery = delivery
        self._time_slices = time_slices
        self._topics = delivery.topics
        self._subscribers: dict[tuple[str, str, str], Subscriber] = {}
        self._patterns: dict[Subscriber, None] = {}
        self.pending_patterns: dict[Subscriber, PendingPattern] = {}
        self.cursor_count = 0
        self._cursors_by_owner: Counter[str] = Counter()
        self._filters: Counter[Filter] = Counter()
        # Epochs of recently deleted topics, for subscribers that looked them up before that.
        self.deleted_epochs: deque[str] = deque(maxlen=DELETED_KEPT)

    def __len__(self) -> int:
        return len(self._subscribers)

    @property
    def subscribers(self) -> Iterable[Subscriber]:
        return self._subscribers.values()

    @property
    def patterns(self) -> Iterable[Subscriber]:
        """The subscribers that follow a pattern."""
        return self._patterns

    def find(self, pattern: str, owner: str, client_id: str) -> Subscriber | None:
        return self._subscribers.get((pattern, owner, client_id))

    # Limits

    def check_limits(self, subscriber: Subscriber) -> None:
        """Raise ``TooManySubscriptions`` if there is no room for the subscription's cursor or filter."""
        self.check_cursors(subscriber.owner)
        if subscriber.filter is None or subscriber.filter in self._filters:
            return
        used, limit = len(self._filters), self.settings.filters_max
        if used >= limit:
            raise TooManySubscriptions(f"{limit} distinct filters are in use; share one or raise filters_max")
        if used >= limit - limit // RESERVED_SHARE and self._has_filter(subscriber.owner):
            raise TooManySubscriptions(
                f"{used} distinct filters are in use, and the last of {limit} are kept for callers that have none; "
                "share one or raise filters_max"
            )

    def check_cursors(self, owner: str) -> None:
        """Raise ``TooManySubscriptions`` if this caller may have no more cursors."""
        limit, mine = self.settings.cursors_max, self._cursors_by_owner[owner]
        if self.cursor_count >= limit:
            raise TooManySubscriptions(f"{limit} cursors are in use; unsubscribe or raise cursors_max")
        if mine >= limit - limit // RESERVED_SHARE:
            raise TooManySubscriptions(
                f"{owner!r} has {mine} cursors, and the last of {limit} are kept for others; unsubscribe or raise "
                "cursors_max"
            )

    def _has_filter(self, owner: str) -> bool:
        return any(one.owner == owner and one.filter is not None for one in self._subscribers.values())

    # Subscribers

    def add(self, subscriber: Subscriber) -> None:
        """Register a subscriber; replace an older one with the same identity."""
        self._replace(subscriber)
        self._subscribers[subscriber.identity] = subscriber
        if subscriber.filter is not None:
            self._filters[subscriber.filter] += 1
        subscriber.outlet.attach(subscriber, self._delivery)
        if subscriber.follows_pattern:
            self._patterns[subscriber] = None

    def _replace(self, subscriber: Subscriber) -> None:
        older = self._subscribers.get(subscriber.identity)
        if older is None:
            return
        self.remove(older)
        if older.outlet is not subscriber.outlet:
            older.outlet.buffer(older.outlet.codec.encode_replaced(older.pattern, older.client_id))
            older.outlet.flush()

    def remove(self, subscriber: Subscriber) -> None:
        """Unregister a subscriber, if it is registered, and close its cursors."""
        if self._subscribers.get(subscriber.identity) is not subscriber:
            return
        del self._subscribers[subscriber.identity]
        if subscriber.filter is not None:
            self._filters[subscriber.filter] -= 1
            if not self._filters[subscriber.filter]:
                del self._filters[subscriber.filter]
        self._patterns.pop(subscriber, None)
        subscriber.outlet.subscribers.pop(subscriber, None)
        self.close_cursors(subscriber)

    # Cursors

    def follow(self, subscriber: Subscriber, name: str, epoch: str, end: int, start: int) -> None:
        """Add a cursor, held until ``release`` or ``Delivery.start_cursor``."""
        topic = self._topics.get(name)
        if topic is not None and topic.epoch != epoch:
            # The watch has not reported yet that it was deleted and created again.
            self.close_topic(topic)
            topic = None
        if topic is None:
            topic = self._topics[name] = Topic(name, epoch, end, self.settings.tail_records)
            self._delivery.mark_topic(topic)  # finds what was committed since it was looked up
        replay_until = 0 if subscriber.start.is_live else end
        topic.follow(subscriber, start, replay_until).held = True
        self.cursor_count += 1
        self._cursors_by_owner[subscriber.owner] += 1

    def release(self, cursors: list[Cursor]) -> None:
        """Let delivery begin in a later tick, from the last of these cursors to the first, in turns."""
        while cursors:
            cursor = cursors.pop()
            if not cursor.closed:
                self._delivery.start_cursor(cursor)
            if self._time_slices.is_over():
                self._time_slices.defer(partial(self.release, cursors))
                return

    def close_cursors(self, subscriber: Subscriber) -> None:
        """Close a subscriber's cursors now, and remove them from their topics in turns."""
        cursors = list(subscriber.cursors.values())
        for cursor in cursors:
            cursor.closed = True
        self._unfollow_all(cursors)

    def _unfollow_all(self, cursors: list[Cursor]) -> None:
        while cursors:
            self._unfollow(cursors.pop())
            if self._time_slices.is_over():
                self._time_slices.defer(partial(self._unfollow_all, cursors))
                return

    def _unfollow(self, cursor: Cursor) -> None:
        topic = cursor.topic
        if not topic.unfollow(cursor):
            return
        self.cursor_count -= 1
        owner = cursor.subscriber.owner
        self._cursors_by_owner[owner] -= 1
        if not self._cursors_by_owner[owner]:
            del self._cursors_by_owner[owner]
        if not len(topic) and self._topics.get(topic.name) is topic:
            del self._topics[topic.name]

    def close_topic(self, topic: Topic) -> None:
        """Remove all cursors of a deleted topic, and notify its subscribers."""
        self.deleted_epochs.append(topic.epoch)
        notified: list[Outlet] = []
        for cursor in topic.cursors:
            subscriber, outlet = cursor.subscriber, cursor.subscriber.outlet
            self._unfollow(cursor)
            if self._subscribers.get(subscriber.identity) is not subscriber:
                continue  # not acknowledged yet, or unsubscribed already
            if not subscriber.follows_pattern:
                self.remove(subscriber)
            outlet.buffer(outlet.codec.encode_topic_deleted(topic.name, subscriber.client_id))
            notified.append(outlet)
        self._flush_all(notified)

    def _flush_all(self, outlets: list[Outlet]) -> None:
        """Flush these outlets in turns: each write is a system call."""
        while outlets:
            outlets.pop().flush()
            if self._time_slices.is_over():
                self._time_slices.defer(partial(self._flush_all, outlets))
                return
