"""Follows the log's changes: marks topics for delivery, and adds and removes cursors of patterns."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence

from himalia.errors import TooManySubscriptions
from himalia.log.api import Change, ChangeKind, Watch
from himalia.pubsub.delivery import Delivery
from himalia.pubsub.subscription import Subscriber
from himalia.pubsub.subscriptions import Subscriptions
from himalia.pubsub.time_slices import SLICE_S
from himalia.record import TopicInfo
from himalia.topics import AUDIT_TOPIC

logger = logging.getLogger("himalia.pubsub")


class LogWatcher:
    """Applies the changes that a watch of the log yields, whichever client caused them."""

    def __init__(self, subscriptions: Subscriptions, delivery: Delivery) -> None:
        self._subscriptions = subscriptions
        self._delivery = delivery
        self.topic_count = 0
        """Topics of the log, without the audit trail."""

    def count_topics(self, topics: Sequence[TopicInfo]) -> None:
        """Count the topics that exist already. The watch must be open, so that none is missed."""
        self.topic_count = sum(info.name != AUDIT_TOPIC for info in topics)

    async def run(self, watch: Watch) -> None:
        """Apply changes until the watch ends, in time slices."""
        try:
            async for changes in watch:
                ends_at = time.perf_counter() + SLICE_S
                for change in changes:
                    try:
                        self._apply(change)
                    except Exception:  # a bug on one topic may not end delivery on all others
                        logger.exception("following %s failed", change.topic)
                    if time.perf_counter() >= ends_at:
                        await asyncio.sleep(0)
                        ends_at = time.perf_counter() + SLICE_S
        finally:
            watch.close()

    def _apply(self, change: Change) -> None:
        if change.kind is ChangeKind.APPENDED:
            topic = self._delivery.topics.get(change.topic)
            if topic is not None:
                self._delivery.mark_topic(topic)
        elif change.kind is ChangeKind.CREATED:
            self._on_created(change)
        else:
            self._on_deleted(change)

    def _on_created(self, change: Change) -> None:
        self.topic_count += change.topic != AUDIT_TOPIC
        subscriptions = self._subscriptions
        for subscriber, pending in subscriptions.pending_patterns.items():
            if subscriber.covers(change.topic, change.owner):
                pending.created.append(change)
        for subscriber in subscriptions.patterns:
            if change.topic not in subscriber.cursors and subscriber.covers(change.topic, change.owner):
                self._extend_pattern(subscriber, change)
                subscriber.outlet.flush()

    def _extend_pattern(self, subscriber: Subscriber, change: Change) -> None:
        """Follow a new topic from its first record, if there is room for one more cursor."""
        outlet = subscriber.outlet
        try:
            self._subscriptions.check_cursors(subscriber.owner)
        except TooManySubscriptions as error:
            outlet.buffer(outlet.codec.encode_error(error, change.topic))
            return
        outlet.buffer(outlet.codec.encode_topic_created(change.topic, subscriber.client_id, change.epoch))
        self._subscriptions.follow(subscriber, change.topic, change.epoch, 0, 0)
        self._delivery.start_cursor(subscriber.cursors[change.topic])

    def _on_deleted(self, change: Change) -> None:
        self.topic_count -= change.topic != AUDIT_TOPIC
        subscriptions = self._subscriptions
        subscriptions.deleted_epochs.append(change.epoch)
        for pending in subscriptions.pending_patterns.values():
            pending.deleted_epochs.add(change.epoch)
        topic = self._delivery.topics.get(change.topic)
        if topic is not None and topic.epoch == change.epoch:
            subscriptions.close_topic(topic)
