"""Moves cursors: once per tick of the event loop, from the tail or, further back, from the log.

A commit marks its topic, a transport that is writable again marks its outlet; neither mark carries data. The tick
then serves every cursor concerned and writes once to each outlet.

Invariants, all on one event loop:

- ``Cursor.next`` only grows. Every record that it passes was sent, left out by the filter, or named in a ``dropped``
  or ``gap`` notice.
- A cursor with something to send is never forgotten. It is in exactly one place that leads back to ``_serve``: in
  the queue (``is_queued``); with its outlet, which can take no more or has another read of the log under way; held
  (``held``), while its subscription is not acknowledged or the log is read for it; or on a topic whose tail has
  records that its filter has not looked at.
- ``Topic.end`` advances only after the commit, so nothing is delivered that a crash could take back.
- A cursor takes part in no tick after it is ``closed``, and an outlet is written to at most once per tick.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Sequence
from time import perf_counter

from himalia.errors import SlowConsumer
from himalia.log.api import Log
from himalia.pubsub.backlog import FILTERING_S, Backlog
from himalia.pubsub.cursor_queue import CursorQueue
from himalia.pubsub.outlet import Outlet
from himalia.pubsub.stats import Counters, Tracing
from himalia.pubsub.subscription import Cursor
from himalia.pubsub.time_slices import SLICE_S, TimeSlices
from himalia.pubsub.topic import Topic
from himalia.record import Record
from himalia.settings import DeliverySettings
from himalia.tasks import TaskSet

logger = logging.getLogger("himalia.delivery")

CURSORS_AT_ONCE = 64
"""Cursors served before the loop polls its sockets: new publishes are committed while the rest is served."""
UNBLOCKED_AT_ONCE = 512
"""Cursors that were blocked by their transports and are queued in one turn."""


class Delivery:
    """Serves the cursors of one event loop. Nothing here blocks or fails because of one subscriber."""

    def __init__(
        self,
        log: Log,
        settings: DeliverySettings,
        time_slices: TimeSlices,
        counters: Counters,
        tracing: Tracing | None = None,
    ) -> None:
        self._log = log
        self._counters = counters
        self._chunk_bytes = settings.chunk_bytes
        self._tail_bytes = settings.tail_bytes
        self._tail_records = settings.tail_records
        self._tracing = tracing
        self._backlog = Backlog(log, settings, time_slices, counters)
        self.topics: dict[str, Topic] = {}
        """The topics that are followed, by name."""
        self._queue = CursorQueue()
        # Marks, in the order they were set: topics that may have new records, outlets that may be able to take more,
        # and topics whose filters have not looked at all records of the tail.
        self._marked_topics: OrderedDict[Topic, None] = OrderedDict()
        self._marked_outlets: OrderedDict[Outlet, None] = OrderedDict()
        self._unfiltered: OrderedDict[Topic, None] = OrderedDict()
        self._is_scheduled = False
        self._tasks = TaskSet(logger, "delivery failed")

    def mark_topic(self, topic: Topic) -> None:
        """Note that the topic may have new records."""
        self._marked_topics[topic] = None
        self._schedule()

    def mark_outlet(self, outlet: Outlet) -> None:
        """Note that the outlet may be able to take more."""
        self._marked_outlets[outlet] = None
        self._schedule()

    def start_cursor(self, cursor: Cursor) -> None:
        """Start to serve a cursor that was held on a followed topic. The topic's other cursors have nothing new."""
        cursor.held = False
        self._queue.add((cursor,))
        if cursor.topic.tail.has_unfiltered:
            self._unfiltered[cursor.topic] = None
        self._schedule()

    @property
    def is_idle(self) -> bool:
        """Whether nothing is marked, queued or being read."""
        return not (
            self._marked_topics or self._marked_outlets or self._unfiltered or self._queue or self._tasks
        )

    async def stop(self) -> None:
        await self._tasks.cancel()

    # The tick

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._tick)

    def _tick(self) -> None:
        """Serve a slice of what is due; the loop reads new publishes between two slices."""
        self._is_scheduled = False
        self._collect_due()
        touched: dict[Outlet, None] = {}
        serve = self._serve
        for cursor in self._queue.pop(CURSORS_AT_ONCE):
            if serve(cursor):
                touched[cursor.subscriber.outlet] = None
        for outlet in touched:
            outlet.flush()
        if self._queue or self._marked_topics or self._marked_outlets or self._unfiltered:
            self._schedule()

    def _collect_due(self) -> None:
        """Queue the cursors of marked topics and outlets, as many as fit into this turn."""
        ends_at = perf_counter() + SLICE_S
        while self._marked_topics:
            topic, _ = self._marked_topics.popitem(last=False)
            self._update_tail(topic)
            self._queue.add(topic.cursors)
            if topic.tail.has_unfiltered:
                self._unfiltered[topic] = None
            if perf_counter() >= ends_at:
                break
        if self._unfiltered:
            self._evaluate_filters()
        self._collect_unblocked()

    def _evaluate_filters(self) -> None:
        """Evaluate filters on new records for a while, and queue the cursors that can move on."""
        until = perf_counter() + FILTERING_S
        for topic in list(self._unfiltered):
            del self._unfiltered[topic]
            topic.tail.evaluate_filters(until)
            self._queue.add(topic.filtered_cursors)
            if topic.tail.has_unfiltered:
                self._unfiltered[topic] = None
            if perf_counter() >= until:
                return

    def _collect_unblocked(self) -> None:
        """Queue cursors that were blocked, of outlets that can take more."""
        room = UNBLOCKED_AT_ONCE
        left: list[Outlet] = []
        while self._marked_outlets and room > 0:
            outlet, _ = self._marked_outlets.popitem(last=False)
            if outlet.paused or outlet.closed:
                continue  # a transport that becomes writable marks its outlet again
            unblocked = outlet.pop_blocked(room)
            self._queue.add(unblocked)
            room -= len(unblocked) + 1
            if outlet.has_blocked:
                left.append(outlet)
        for outlet in left:
            self._marked_outlets[outlet] = None

    def _serve(self, cursor: Cursor) -> bool:
        """Move one cursor as far as its transport allows; return whether anything was buffered."""
        view = cursor.view
        if cursor.next >= view.end or cursor.held or cursor.closed:
            return False
        outlet = cursor.subscriber.outlet
        if outlet.paused or cursor.stalled or outlet.closed:
            if outlet.closed:
                return False
            if outlet.paused:
                cursor.stalled = True
                outlet.block(cursor)
                if cursor.subscriber.policy == "disconnect" and cursor.exceeds_limit():
                    self._disconnect(cursor)
                return False
            if not self._catch_up_after_stall(cursor):
                return False
        if cursor.next < view.first:
            self._start_reading(cursor)
            return outlet.buffered_bytes > 0
        if outlet.buffered_bytes >= self._chunk_bytes:
            outlet.block(cursor)
            self.mark_outlet(outlet)
            return True
        part = view.slice(cursor.next, self._chunk_bytes)
        cursor.next = part.end
        cursor.subscriber.sent += part.matched
        self._counters.delivered += part.matched
        if part.data:
            outlet.buffer(part.data)
        if part.failure is not None:
            outlet.buffer(outlet.codec.encode_error(part.failure, cursor.topic.name))
        if part.end < view.end:
            outlet.block(cursor)
            self.mark_outlet(outlet)
        return True

    def _catch_up_after_stall(self, cursor: Cursor) -> bool:
        """Apply the policy after the transport was full; return whether the cursor is still to be served."""
        cursor.stalled = False
        if not cursor.exceeds_limit():
            return True
        if cursor.subscriber.policy == "disconnect":
            self._disconnect(cursor)
            return False
        first, last = cursor.skip()
        subscriber = cursor.subscriber
        subscriber.dropped += last - first + 1
        self._counters.dropped += last - first + 1
        logger.debug("dropped %s..%s of %s for %s", first, last, cursor.topic.name, subscriber.client_id)
        outlet = subscriber.outlet
        outlet.buffer(outlet.codec.encode_dropped(cursor.topic.name, subscriber.client_id, first, last))
        return True

    def _disconnect(self, cursor: Cursor) -> None:
        subscriber, outlet = cursor.subscriber, cursor.subscriber.outlet
        error = SlowConsumer(
            f"subscriber {subscriber.client_id!r} is {cursor.lag} records behind on {cursor.topic.name!r}, "
            f"its limit is {subscriber.limit}; resume with from={cursor.next}",
            topic=cursor.topic.name,
            offset=cursor.next,
        )
        cursor.closed = True
        outlet.buffer(outlet.codec.encode_error(error, cursor.topic.name))
        outlet.flush()
        outlet.close(error)

    # The tail

    def _update_tail(self, topic: Topic) -> None:
        """Bring the tail up to the log's end: from memory now, or by a task that reads the log."""
        if topic.refilling:
            topic.marked_while_refilling = True
            return
        records = self._log.recent(topic.name, topic.end, topic.epoch)
        if records is None:
            topic.refilling = True
            self._tasks.spawn(self._refill_tail(topic))
        elif records:
            topic.tail.extend(records, self._tail_bytes_per_topic())
            if logger.isEnabledFor(logging.DEBUG):
                _log_routing(topic, records)
            if self._tracing is not None:
                self._tracing.record_delivery(topic.name, records, len(topic))

    def _tail_bytes_per_topic(self) -> int:
        """Return how many bytes each followed topic may keep in memory."""
        return max(self._tail_bytes // max(len(self.topics), 1), self._chunk_bytes // 4)

    async def _refill_tail(self, topic: Topic) -> None:
        """Bring the tail up to the log's end by reading the log."""
        moved = False
        try:
            while self.topics.get(topic.name) is topic:
                chunk = await self._backlog.read(topic.name, topic.end)
                if chunk is None or chunk.epoch != topic.epoch:
                    return
                far = chunk.end - self._tail_records
                if max(chunk.first, far) > topic.end:
                    # Cursors further back read the log at their own pace.
                    topic.tail.skip_to(max(chunk.first, far))
                    moved = True
                    continue
                if not chunk.records:
                    return
                topic.tail.extend(chunk.records, self._tail_bytes_per_topic())
                moved = True
        finally:
            topic.refilling = False
            # Only then: a deleted topic, whose deletion the watch has not reported yet, would be read again and again.
            if moved or topic.marked_while_refilling:
                topic.marked_while_refilling = False
                self.mark_topic(topic)

    # The log

    def _start_reading(self, cursor: Cursor) -> None:
        """Read the log for a cursor behind the tail; one read at a time per outlet bounds its memory."""
        outlet = cursor.subscriber.outlet
        if outlet.reading:
            outlet.await_read(cursor)
            return
        outlet.reading = cursor.held = True
        self._tasks.spawn(self._read_for(cursor))

    async def _read_for(self, cursor: Cursor) -> None:
        outlet = cursor.subscriber.outlet
        try:
            await self._backlog.send_chunk(cursor)
        finally:
            outlet.reading = cursor.held = False
            if not cursor.closed:
                outlet.block(cursor)  # behind the other cursors of the outlet, which read first
            self.mark_outlet(outlet)


def _log_routing(topic: Topic, records: Sequence[Record]) -> None:
    first, last = records[0].offset, records[-1].offset
    clients = [cursor.subscriber.client_id for cursor in topic.cursors]
    logger.debug(
        "%s %d..%d goes to %d subscribers",
        topic.name,
        first,
        last,
        len(clients),
        extra={"topic": topic.name, "first": first, "last": last, "subscribers": clients[:20]},
    )
