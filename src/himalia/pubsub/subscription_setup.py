"""Sets up a subscription: finds its topics, resolves where delivery begins in each, and adds the cursors."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from himalia.errors import Forbidden, TopicNotFound
from himalia.log.api import Log
from himalia.pubsub.subscription import Gap, Subscriber, SubscribeResult, resolve_start
from himalia.pubsub.subscriptions import PendingPattern, Subscriptions
from himalia.pubsub.time_slices import TimeSlices
from himalia.record import Position, TopicInfo

logger = logging.getLogger("himalia.pubsub")


class SubscriptionSetup:
    """Takes several turns of the event loop, in which topics may be created and deleted (``PendingPattern``).

    The cursors stay held until all are added, so no event precedes the acknowledgement of the subscription.
    """

    def __init__(self, log: Log, subscriptions: Subscriptions, time_slices: TimeSlices) -> None:
        self._log = log
        self._subscriptions = subscriptions
        self._time_slices = time_slices

    async def run(self, subscriber: Subscriber) -> SubscribeResult:
        """Register the subscriber and release its cursors; leave nothing behind if this fails or is cancelled."""
        subscriptions = self._subscriptions
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
        subscriptions, gaps = self._subscriptions, []
        pending = subscriptions.pending_patterns.get(subscriber)
        positions: dict[str, Position] = {}
        for info in await self._look_up(subscriber):
            if pending is not None:
                await self._time_slices.checkpoint()
                if subscriber.outlet.closed:
                    break
                if not subscriber.covers(info.name, info.owner):
                    continue
            try:
                start, gap = await resolve_start(self._log, subscriber.start, info)
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
            return await self._log.topics()
        info = await self._log.info(subscriber.pattern)
        if not subscriber.can_read(info.name, info.owner):
            raise Forbidden(
                f"{subscriber.owner!r} has no right to subscribe on {info.name!r}", topic=info.name
            )
        return [info]


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
