"""The broker: topics, publishers and subscribers on one log."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import msgspec

from himalia.errors import Forbidden, TooManySubscriptions, TopicNotFound
from himalia.log.api import Appended, Batch, Change, ChangeKind, Log
from himalia.protocol.models import PubSubStats, TopicStats
from himalia.pubsub.delivery import Delivery, FilterResult
from himalia.pubsub.filters import Filter
from himalia.pubsub.outlet import Outlet
from himalia.pubsub.stats import SECONDS, Activity, Counters, Tracing, subscriber_stats
from himalia.pubsub.subscription import Cursor, Start, Subscriber
from himalia.pubsub.topic import Topic
from himalia.pubsub.turns import TURN_S, Turns
from himalia.record import Position, Record, Retention, TopicInfo
from himalia.topics import AUDIT_TOPIC, matches

logger = logging.getLogger("himalia.pubsub")


class Limits(msgspec.Struct, frozen=True):
    """What bounds a broker as a whole. The defaults are those of ``himalia.settings``."""

    cursors_max: int = 1_000_000
    filters_max: int = 256
    chunk_bytes: int = 256 * 1024
    tail_records: int = 1024
    tail_bytes: int = 64 * 1024 * 1024


class Gap(msgspec.Struct, frozen=True):
    """A start that could not be honoured as asked: delivery begins at ``first`` instead of ``requested``."""

    topic: str
    requested: int
    first: int
    end: int


class SubscribeResult(msgspec.Struct, frozen=True):
    """Where delivery begins, for each topic, and where that is not what was asked for."""

    positions: dict[str, Position]
    gaps: list[Gap]


class Joining:
    """A pattern whose first topics are being followed, in turns: what happened to topics meanwhile."""

    __slots__ = ("created", "gone")

    def __init__(self) -> None:
        self.created: list[Change] = []
        self.gone: set[str] = set()


KEPT_FOR_OTHERS = 8
"""One in so many distinct filters is for callers that have none yet; one in so many cursors for other callers."""


class PubSubManager:
    """Publishes to a log and delivers from it. Lives on one event loop; ``start`` before use, ``stop`` after."""

    def __init__(self, log: Log, limits: Limits = Limits(), tracing: Tracing | None = None) -> None:
        self.log = log
        self._tracing = tracing
        self.limits = limits
        self.counters = Counters()
        self.activity = Activity()
        self.turns = Turns()
        self.in_flight = 0
        self.in_flight_bytes = 0
        # Called whenever publishes are no longer in flight.
        self.on_published: Callable[[], None] | None = None
        self._subscribers: dict[tuple[str, str, str], Subscriber] = {}
        self._patterns: dict[Subscriber, None] = {}
        self._joining: dict[Subscriber, Joining] = {}
        self._cursors = 0
        self._cursors_of: Counter[str] = Counter()
        self._topic_count = 0
        self._filters: Counter[Filter] = Counter()
        # Epochs of topics that went away a moment ago, for subscribers that looked them up before that.
        self._gone: deque[str] = deque(maxlen=1024)
        self._background: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Follow the log. The log must be open."""
        limits = self.limits
        self._delivery = Delivery(
            self.log,
            self.counters,
            self.turns,
            chunk_bytes=limits.chunk_bytes,
            tail_bytes=limits.tail_bytes,
            tail_records=limits.tail_records,
            tracing=self._tracing,
        )
        self.topics = self._delivery.topics
        self._watch = self.log.watch()
        self._topic_count = sum(info.name != AUDIT_TOPIC for info in await self.log.topics())
        self._background = [asyncio.create_task(self._follow_log()), asyncio.create_task(self._sample())]

    async def stop(self) -> None:
        """Stop delivering. Subscribers should have been let go before."""
        self._watch.close()
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        await self._delivery.stop()

    # Topics

    async def create_topic(
        self, name: str, retention: Retention | None = None, owner: str | None = None
    ) -> TopicInfo:
        return await self.log.create(name, retention, owner)

    async def delete_topic(self, name: str) -> TopicInfo:
        return await self.log.delete(name)

    # Publishing

    def publish(self, batch: Batch, size_bytes: int | None = None) -> asyncio.Future[Appended]:
        """Append to the log; the future is done when the batch is safe, and only then is it delivered.

        ``size_bytes`` of all drafts is given where there may be a million of them, and the caller has counted.
        """
        size = sum([draft.size_bytes for draft in batch.drafts]) if size_bytes is None else size_bytes
        count = len(batch.drafts)
        self.in_flight += count
        self.in_flight_bytes += size
        finish = None
        if self._tracing is not None:
            batch, finish = self._tracing.publishing(batch)
        future = self.log.append(batch)

        def done(future: asyncio.Future[Appended]) -> None:
            self.in_flight -= count
            self.in_flight_bytes -= size
            if not future.cancelled() and future.exception() is None:
                appended = future.result()
                stored = count - appended.duplicates
                self.counters.published += stored
                self.counters.duplicates += appended.duplicates
                self.activity.count(batch.topic, appended.epoch, stored)
            if finish is not None:
                finish(None if future.cancelled() else future.exception())
            if self.on_published is not None:
                self.on_published()

        future.add_done_callback(done)
        return future

    # Subscribing

    async def subscribe(self, subscriber: Subscriber) -> SubscribeResult:
        """Begin delivery in the next tick: what the caller gathers before giving way comes before any event.

        Fails with ``TopicNotFound`` for a plain name; a pattern may match nothing yet. A subscription with the
        same identity is replaced and, if it belongs to another connection, told so.
        """
        self._check_limits(subscriber)
        if subscriber.follows_pattern:
            self._joining[subscriber] = Joining()
        try:
            positions, gaps = await self._join(subscriber)
            if not subscriber.cursors and not subscriber.follows_pattern:
                raise TopicNotFound(subscriber.pattern)
        except BaseException:
            self._detach(subscriber)
            raise
        finally:
            joining = self._joining.pop(subscriber, None)
        if subscriber.outlet.closed:
            self._detach(subscriber)
            return SubscribeResult({}, [])
        self._register(subscriber)
        if joining is not None:
            for change in joining.created:
                if change.topic not in subscriber.cursors and change.epoch not in joining.gone:
                    self._follow(subscriber, change.topic, change.epoch, 0, 0)
                    positions[change.topic] = Position(0, change.epoch)
        # Some of the topics may have been deleted meanwhile.
        positions = {name: at for name, at in positions.items() if name in subscriber.cursors}
        self._release(list(reversed(subscriber.cursors.values())))
        logger.debug(
            "%s of %s follows %s (%d topics, %s)",
            subscriber.client_id,
            subscriber.owner or "the server",
            subscriber.pattern,
            len(positions),
            subscriber.policy,
            extra={"caller": subscriber.owner or "server"},
        )
        return SubscribeResult(positions, [gap for gap in gaps if gap.topic in positions])

    async def _join(self, subscriber: Subscriber) -> tuple[dict[str, Position], list[Gap]]:
        """Put a cursor on each topic, in turns, for there may be very many; they stay held until ``_release``."""
        joining, gaps = self._joining.get(subscriber), []
        positions: dict[str, Position] = {}
        for info in await self._lookup(subscriber):
            if joining is not None:
                if self.turns.is_over():
                    await self.turns.rest()
                if subscriber.outlet.closed:
                    break
                if not _concerns(subscriber, info.name, info.owner):
                    continue
            try:
                start, gap = await self._resolve(subscriber.start, info)
            except TopicNotFound:
                if joining is None:
                    raise
                continue  # a pattern follows what is left
            if info.epoch in self._gone or (joining is not None and info.epoch in joining.gone):
                continue
            self._check_cursors(subscriber.owner)
            self._follow(subscriber, info.name, info.epoch, info.end, start)
            positions[info.name] = Position(start, info.epoch)
            gaps += [gap] if gap else []
        return positions, gaps

    def _register(self, subscriber: Subscriber) -> None:
        self._replace(subscriber)
        self._subscribers[subscriber.identity] = subscriber
        if subscriber.filter is not None:
            self._filters[subscriber.filter] += 1
        subscriber.outlet.subscribers[subscriber] = None
        subscriber.outlet.on_ready = self._delivery.wake
        if subscriber.follows_pattern:
            self._patterns[subscriber] = None

    def _release(self, cursors: list[Cursor]) -> None:
        """Let delivery begin in a later tick, from the last of these to the first, in turns."""
        while cursors:
            cursor = cursors.pop()
            if not cursor.closed:
                self._delivery.begin(cursor)
            if self.turns.is_over():
                self.turns.later(partial(self._release, cursors))
                return

    def unsubscribe(self, pattern: str, owner: str, client_id: str, outlet: Outlet) -> bool:
        """End a subscription of this outlet; false if there was none, which is no error."""
        subscriber = self._subscribers.get((pattern, owner, client_id))
        if subscriber is None or subscriber.outlet is not outlet:
            return False
        self._remove(subscriber)
        return True

    def disconnect(self, outlet: Outlet) -> None:
        """The connection is gone, and all its subscriptions with it."""
        for subscriber in list(outlet.subscribers):
            self._remove(subscriber)

    def _check_cursors(self, owner: str) -> None:
        """Whether this caller may have one cursor more; the last of them are for others."""
        limit, mine = self.limits.cursors_max, self._cursors_of[owner]
        if self._cursors >= limit:
            raise TooManySubscriptions(f"{limit} cursors are in use; unsubscribe or raise cursors_max")
        if mine >= limit - limit // KEPT_FOR_OTHERS:
            raise TooManySubscriptions(
                f"{owner!r} has {mine} cursors, and the last of {limit} are kept for others; unsubscribe or raise "
                "cursors_max"
            )

    def _check_limits(self, subscriber: Subscriber) -> None:
        self._check_cursors(subscriber.owner)
        if subscriber.filter is None or subscriber.filter in self._filters:
            return
        used, limit = len(self._filters), self.limits.filters_max
        if used >= limit:
            raise TooManySubscriptions(f"{limit} distinct filters are in use; share one or raise filters_max")
        if used >= limit - limit // KEPT_FOR_OTHERS and self._has_filter(subscriber.owner):
            raise TooManySubscriptions(
                f"{used} distinct filters are in use, and the last of {limit} are kept for callers that have none; "
                "share one or raise filters_max"
            )

    def _has_filter(self, owner: str) -> bool:
        return any(one.owner == owner and one.filter is not None for one in self._subscribers.values())

    async def _lookup(self, subscriber: Subscriber) -> Iterable[TopicInfo]:
        if not subscriber.follows_pattern:
            info = await self.log.info(subscriber.pattern)
            if not subscriber.can_read(info.name, info.owner):
                raise Forbidden(
                    f"{subscriber.owner!r} has no right to subscribe on {info.name!r}", topic=info.name
                )
            return [info]
        return await self.log.topics()

    async def _resolve(self, start: Start, info: TopicInfo) -> tuple[int, Gap | None]:
        """The offset at which delivery begins in this topic, and the gap if that is not the one asked for."""
        offset, epoch = start.offset, start.epoch
        if start.positions is not None and info.name in start.positions:
            offset, epoch = start.positions[info.name]
        if offset is not None:
            # An offset beyond the end is honoured too: the cursor waits until the log reaches it.
            if info.first <= offset and epoch in (None, info.epoch):
                return offset, None
            return info.first, Gap(info.name, offset, info.first, info.end)
        if start.since_us is not None:
            return await self.log.offset_at(info.name, start.since_us), None
        return max(info.first, info.end - (start.last_n or 0)), None

    def _follow(self, subscriber: Subscriber, name: str, epoch: str, end: int, start: int) -> None:
        topic = self.topics.get(name)
        if topic is not None and topic.epoch != epoch:
            self._end(topic)  # the watch has not told yet that it was deleted and made anew
            topic = None
        if topic is None:
            topic = self.topics[name] = Topic(name, epoch, end, self.limits.tail_records)
            self._delivery.mark(topic)  # finds what was committed since it was looked up
        asked_until = 0 if subscriber.start.is_live else end
        topic.follow(subscriber, start, asked_until).held = True
        self._cursors += 1
        self._cursors_of[subscriber.owner] += 1

    def _replace(self, subscriber: Subscriber) -> None:
        older = self._subscribers.get(subscriber.identity)
        if older is None:
            return
        self._remove(older)
        if older.outlet is not subscriber.outlet:
            older.outlet.buffer(older.outlet.codec.replaced(older.pattern, older.client_id))
            older.outlet.flush()

    def _remove(self, subscriber: Subscriber) -> None:
        if self._subscribers.get(subscriber.identity) is not subscriber:
            return
        del self._subscribers[subscriber.identity]
        if subscriber.filter is not None:
            self._filters[subscriber.filter] -= 1
            if not self._filters[subscriber.filter]:
                del self._filters[subscriber.filter]
        self._patterns.pop(subscriber, None)
        subscriber.outlet.subscribers.pop(subscriber, None)
        self._detach(subscriber)

    def _detach(self, subscriber: Subscriber) -> None:
        """Close its cursors now, and take them off their topics in turns."""
        cursors = list(subscriber.cursors.values())
        for cursor in cursors:
            cursor.closed = True
        self._unfollow_all(cursors)

    def _unfollow_all(self, cursors: list[Cursor]) -> None:
        while cursors:
            self._unfollow(cursors.pop())
            if self.turns.is_over():
                self.turns.later(partial(self._unfollow_all, cursors))
                return

    def _unfollow(self, cursor: Cursor) -> None:
        topic = cursor.topic
        if not topic.unfollow(cursor):
            return
        self._cursors -= 1
        owner = cursor.subscriber.owner
        self._cursors_of[owner] -= 1
        if not self._cursors_of[owner]:
            del self._cursors_of[owner]
        if not len(topic) and self.topics.get(topic.name) is topic:
            del self.topics[topic.name]

    async def apply_filter(self, filter: Filter, records: Sequence[Record]) -> FilterResult:
        """Which of these old records pass, see ``Delivery.apply_filter``."""
        return await self._delivery.apply_filter(filter, records)

    # Following the log

    async def _follow_log(self) -> None:
        async for changes in self._watch:
            ends_at = time.perf_counter() + TURN_S
            for change in changes:
                try:
                    self._on_change(change)
                except Exception:  # a bug on one topic may not end delivery on all others
                    logger.exception("following %s failed", change.topic)
                if time.perf_counter() >= ends_at:
                    await asyncio.sleep(0)
                    ends_at = time.perf_counter() + TURN_S

    def _on_change(self, change: Change) -> None:
        if change.kind is ChangeKind.APPENDED:
            topic = self.topics.get(change.topic)
            if topic is not None:
                self._delivery.mark(topic)
        elif change.kind is ChangeKind.CREATED:
            self._on_created(change)
        else:
            self._on_deleted(change)

    def _on_created(self, change: Change) -> None:
        self._topic_count += change.topic != AUDIT_TOPIC
        for subscriber, joining in self._joining.items():
            if _concerns(subscriber, change.topic, change.owner):
                joining.created.append(change)
        for subscriber in self._patterns:
            if change.topic not in subscriber.cursors and _concerns(subscriber, change.topic, change.owner):
                outlet = subscriber.outlet
                try:
                    self._check_cursors(subscriber.owner)
                except TooManySubscriptions as error:
                    outlet.buffer(outlet.codec.error(error, change.topic))
                else:
                    outlet.buffer(
                        outlet.codec.topic_created(change.topic, subscriber.client_id, change.epoch)
                    )
                    self._follow(subscriber, change.topic, change.epoch, 0, 0)
                    self._delivery.begin(subscriber.cursors[change.topic])
                outlet.flush()

    def _on_deleted(self, change: Change) -> None:
        self._topic_count -= change.topic != AUDIT_TOPIC
        self._gone.append(change.epoch)
        for joining in self._joining.values():
            joining.gone.add(change.epoch)
        topic = self.topics.get(change.topic)
        if topic is not None and topic.epoch == change.epoch:
            self._end(topic)

    def _end(self, topic: Topic) -> None:
        """The topic is gone: let its subscribers go, and tell them."""
        self._gone.append(topic.epoch)
        told: list[Outlet] = []
        for cursor in topic.cursors:
            subscriber, outlet = cursor.subscriber, cursor.subscriber.outlet
            self._unfollow(cursor)
            if self._subscribers.get(subscriber.identity) is not subscriber:
                continue  # not acknowledged yet, or unsubscribed already
            if not subscriber.follows_pattern:
                self._remove(subscriber)
            outlet.buffer(outlet.codec.topic_deleted(topic.name, subscriber.client_id))
            told.append(outlet)
        self._flush_all(told)

    def _flush_all(self, outlets: list[Outlet]) -> None:
        """Write what was gathered, in turns: each is a call of the operating system."""
        while outlets:
            outlets.pop().flush()
            if self.turns.is_over():
                self.turns.later(partial(self._flush_all, outlets))
                return

    async def _sample(self) -> None:
        while True:
            for _ in range(SECONDS):
                await asyncio.sleep(1)
                self.counters.sample()
            self.activity.forget_idle()

    # Being watched

    @property
    def is_idle(self) -> bool:
        """Whether everything published has been committed, and everything committed was looked at."""
        return not self.in_flight and self._delivery.is_idle

    @property
    def topic_count(self) -> int:
        return self._topic_count

    @property
    def subscriber_count(self) -> int:
        return len(self._subscribers)

    def subscribers_of(self, topic: str) -> int:
        found = self.topics.get(topic)
        return 0 if found is None else len(found)

    async def stats(self) -> PubSubStats:
        """Everything. Costs in proportion to topics and cursors, and so is counted in turns, not at one moment."""
        counters = self.counters
        infos, subscribers = await self.log.topics(), list(self._subscribers.values())
        return PubSubStats(
            uptime_s=counters.uptime_s,
            topics={info.name: self._topic_stats(info) async for info in self.turns.each(infos)},
            subscribers=[subscriber_stats(each) async for each in self.turns.each(subscribers)],
            published=counters.published,
            duplicates=counters.duplicates,
            delivered=counters.delivered,
            dropped=counters.dropped,
            rates=counters.rates(),
            last_minute=counters.last_minute(),
            in_flight=self.in_flight,
            queue_bytes=sum(outlet.unsent_bytes for outlet in self.outlets()),
        )

    def outlets(self) -> Iterable[Outlet]:
        """Every outlet that has a subscription."""
        return {subscriber.outlet: None for subscriber in self._subscribers.values()}

    async def lag(self) -> int:
        """How far the slowest of all cursors is behind."""
        topics = list(self.topics.values())
        return max([topic.lag() async for topic in self.turns.each(topics)], default=0)

    def _topic_stats(self, info: TopicInfo) -> TopicStats:
        topic = self.topics.get(info.name)
        return TopicStats(
            messages=info.end,
            bytes=info.bytes,
            first=info.first,
            end=info.end,
            epoch=info.epoch,
            subscribers=0 if topic is None else len(topic),
            lag=0 if topic is None else topic.lag(),
            last_minute=self.activity.last_minute(info.name, info.epoch),
        )


def _concerns(subscriber: Subscriber, topic: str, owner: str | None) -> bool:
    """Whether a subscription to a pattern shows this topic."""
    return matches(subscriber.pattern, topic) and subscriber.can_read(topic, owner)
