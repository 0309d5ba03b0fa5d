"""Publish and subscribe on one log: the facade that the server and kernels use."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence

from himalia.errors import Forbidden, TopicNotFound
from himalia.log.api import Appended, Batch, Log
from himalia.protocol.models import PubSubStats, TopicStats
from himalia.pubsub.backlog import FilterResult, apply_filter
from himalia.pubsub.delivery import Delivery
from himalia.pubsub.filters import Filter
from himalia.pubsub.log_watcher import LogWatcher
from himalia.pubsub.outlet import Outlet
from himalia.pubsub.stats import SECONDS, Activity, Counters, Tracing, subscriber_stats
from himalia.pubsub.subscription import Gap, Subscriber, SubscribeResult, resolve_start
from himalia.pubsub.subscriptions import PendingPattern, Subscriptions
from himalia.pubsub.time_slices import TimeSlices
from himalia.record import Position, Record, Retention, TopicInfo
from himalia.settings import DeliverySettings
from himalia.tasks import TaskSet
from himalia.topics import AUDIT_TOPIC

logger = logging.getLogger("himalia.pubsub")


def _ignore() -> None:
    pass


class PubSubManager:
    """Publishes to a log and delivers from it, on one event loop. ``start`` before use, ``stop`` after."""

    def __init__(
        self,
        log: Log,
        settings: DeliverySettings | None = None,
        tracing: Tracing | None = None,
        on_published: Callable[[], None] = _ignore,
    ) -> None:
        """``on_published`` is called whenever publishes are no longer in flight, whether they succeeded or failed."""
        settings = settings or DeliverySettings()
        self.log = log
        self._tracing = tracing
        self._on_published = on_published
        self.counters = Counters()
        self.activity = Activity()
        self.time_slices = TimeSlices()
        self.in_flight = 0
        self.in_flight_bytes = 0
        self._delivery = Delivery(log, settings, self.time_slices, self.counters, tracing)
        self.topics = self._delivery.topics
        """The topics that are followed, by name."""
        self.subscriptions = Subscriptions(settings, self._delivery, self.time_slices)
        self._follower = LogWatcher(self.subscriptions, self._delivery)
        self._background = TaskSet(logger, "publish and subscribe failed")

    async def start(self) -> None:
        """Follow the log, which must be open."""
        watch = self.log.watch()
        self._follower.topic_count = sum(info.name != AUDIT_TOPIC for info in await self.log.topics())
        self._background.spawn(self._follower.run(watch))
        self._background.spawn(self._sample())

    async def stop(self) -> None:
        """Stop delivering. Outlets should be disconnected before."""
        await self._background.cancel()
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
        """Append to the log; the future is done when the batch is committed, and only then is it delivered.

        ``size_bytes`` of all drafts may be given by a caller that has computed it: there may be a million of them.
        """
        size = sum([draft.size_bytes for draft in batch.drafts]) if size_bytes is None else size_bytes
        count = len(batch.drafts)
        self.in_flight += count
        self.in_flight_bytes += size
        finish = None
        if self._tracing is not None:
            batch, finish = self._tracing.publishing(batch)
        future = self.log.append(batch)

        def on_done(future: asyncio.Future[Appended]) -> None:
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
            self._on_published()

        future.add_done_callback(on_done)
        return future

    # Subscribing

    async def subscribe(self, subscriber: Subscriber) -> SubscribeResult:
        """Begin delivery in the next tick: what the caller buffers before it yields precedes any event.

        Raises ``TopicNotFound`` for a plain name; a pattern may match nothing yet. A subscription with the
        same identity is replaced; if it belongs to another connection, that one is notified.
        """
        subscriptions = self.subscriptions
        subscriptions.check_limits(subscriber)
        if subscriber.follows_pattern:
            subscriptions.pending_patterns[subscriber] = PendingPattern()
        try:
            positions, gaps = await self._add_cursors(subscriber)
            if not subscriber.cursors and not subscriber.follows_pattern:
                raise TopicNotFound(subscriber.pattern)
        except BaseException:
            subscriptions.close_cursors(subscriber)
            raise
        finally:
            pending = subscriptions.pending_patterns.pop(subscriber, None)
        if subscriber.outlet.closed:
            subscriptions.close_cursors(subscriber)
            return SubscribeResult({}, [])
        subscriptions.add(subscriber)
        if pending is not None:
            for change in pending.created:
                if change.topic not in subscriber.cursors and change.epoch not in pending.deleted_epochs:
                    subscriptions.follow(subscriber, change.topic, change.epoch, 0, 0)
                    positions[change.topic] = Position(0, change.epoch)
        # Some of the topics may have been deleted meanwhile.
        positions = {name: at for name, at in positions.items() if name in subscriber.cursors}
        subscriptions.release(list(reversed(subscriber.cursors.values())))
        _log_subscription(subscriber, len(positions))
        return SubscribeResult(positions, [gap for gap in gaps if gap.topic in positions])

    async def _add_cursors(self, subscriber: Subscriber) -> tuple[dict[str, Position], list[Gap]]:
        """Add a cursor on each topic, in turns, since there may be very many; they stay held until released."""
        subscriptions, gaps = self.subscriptions, []
        pending = subscriptions.pending_patterns.get(subscriber)
        positions: dict[str, Position] = {}
        for info in await self._look_up(subscriber):
            if pending is not None:
                await self.time_slices.checkpoint()
                if subscriber.outlet.closed:
                    break
                if not subscriber.covers(info.name, info.owner):
                    continue
            try:
                start, gap = await resolve_start(self.log, subscriber.start, info)
            except TopicNotFound:
                if pending is None:
                    raise
                continue  # a pattern follows what is left
            if info.epoch in subscriptions.deleted_epochs:
                continue
            if pending is not None and info.epoch in pending.deleted_epochs:
                continue
            subscriptions.check_cursors(subscriber.owner)
            subscriptions.follow(subscriber, info.name, info.epoch, info.end, start)
            positions[info.name] = Position(start, info.epoch)
            gaps += [gap] if gap else []
        return positions, gaps

    async def _look_up(self, subscriber: Subscriber) -> Iterable[TopicInfo]:
        if subscriber.follows_pattern:
            return await self.log.topics()
        info = await self.log.info(subscriber.pattern)
        if not subscriber.can_read(info.name, info.owner):
            raise Forbidden(
                f"{subscriber.owner!r} has no right to subscribe on {info.name!r}", topic=info.name
            )
        return [info]

    def unsubscribe(self, pattern: str, owner: str, client_id: str, outlet: Outlet) -> bool:
        """End a subscription of this outlet; return False if there was none, which is no error."""
        subscriber = self.subscriptions.find(pattern, owner, client_id)
        if subscriber is None or subscriber.outlet is not outlet:
            return False
        self.subscriptions.remove(subscriber)
        return True

    def disconnect(self, outlet: Outlet) -> None:
        """End all subscriptions of a connection that was closed."""
        for subscriber in list(outlet.subscribers):
            self.subscriptions.remove(subscriber)

    async def apply_filter(self, filter: Filter, records: Sequence[Record]) -> FilterResult:
        """Evaluate a filter on old records, in turns."""
        return await apply_filter(filter, records, self.time_slices)

    # Observability

    async def _sample(self) -> None:
        while True:
            for _ in range(SECONDS):
                await asyncio.sleep(1)
                self.counters.sample()
            self.activity.forget_idle()

    @property
    def is_idle(self) -> bool:
        """Whether everything published is committed, and everything committed was offered to its subscribers."""
        return not self.in_flight and self._delivery.is_idle

    @property
    def topic_count(self) -> int:
        return self._follower.topic_count

    @property
    def subscriber_count(self) -> int:
        return len(self.subscriptions)

    def subscribers_of(self, topic: str) -> int:
        found = self.topics.get(topic)
        return 0 if found is None else len(found)

    async def stats(self) -> PubSubStats:
        """Return all statistics. The cost grows with topics and cursors, so they are collected in turns."""
        counters = self.counters
        infos, subscribers = await self.log.topics(), list(self.subscriptions.subscribers)
        return PubSubStats(
            uptime_s=counters.uptime_s,
            topics={info.name: self._topic_stats(info) async for info in self.time_slices.iterate(infos)},
            subscribers=[subscriber_stats(each) async for each in self.time_slices.iterate(subscribers)],
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
        """Return every outlet that has a subscription."""
        return {subscriber.outlet: None for subscriber in self.subscriptions.subscribers}

    async def lag(self) -> int:
        """Return how far the slowest of all cursors is behind."""
        topics = list(self.topics.values())
        return max([topic.lag() async for topic in self.time_slices.iterate(topics)], default=0)

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


def _log_subscription(subscriber: Subscriber, topics: int) -> None:
    logger.debug(
        "%s of %s follows %s (%d topics, %s)",
        subscriber.client_id,
        subscriber.owner or "the server",
        subscriber.pattern,
        topics,
        subscriber.policy,
        extra={"caller": subscriber.owner or "server"},
    )
