"""Publish and subscribe on one log: the facade that the server and kernels use."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence

from himalia.log.api import Appended, Batch, Log
from himalia.protocol.models import PubSubStats
from himalia.pubsub.backlog import FilterResult, apply_filter
from himalia.pubsub.delivery import Delivery
from himalia.pubsub.filters import Filter
from himalia.pubsub.log_watcher import LogWatcher
from himalia.pubsub.outlet import Outlet
from himalia.pubsub.stats import SECONDS, Activity, Counters, Tracing, subscriber_stats, topic_stats
from himalia.pubsub.subscription import Subscriber, SubscribeResult
from himalia.pubsub.subscription_setup import SubscriptionSetup
from himalia.pubsub.subscriptions import Subscriptions
from himalia.pubsub.time_slices import TimeSlices
from himalia.record import Record, Retention, TopicInfo
from himalia.settings import DeliverySettings
from himalia.tasks import TaskSet

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
        self._setup = SubscriptionSetup(log, self.subscriptions, self.time_slices)
        self._watcher = LogWatcher(self.subscriptions, self._delivery)
        self._background = TaskSet(logger, "publish and subscribe failed")

    async def start(self) -> None:
        """Follow the log, which must be open."""
        watch = self.log.watch()
        self._watcher.count_topics(await self.log.topics())
        self._background.spawn(self._watcher.run(watch))
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
            batch, finish = self._tracing.start_publish(batch)
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
        return await self._setup.run(subscriber)

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
            self.activity.drop_idle()

    @property
    def is_idle(self) -> bool:
        """Whether everything published is committed, and everything committed was offered to its subscribers."""
        return not self.in_flight and self._delivery.is_idle

    @property
    def topic_count(self) -> int:
        return self._watcher.topic_count

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
            topics={
                info.name: topic_stats(info, self.topics.get(info.name), self.activity)
                async for info in self.time_slices.iterate(infos)
            },
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
