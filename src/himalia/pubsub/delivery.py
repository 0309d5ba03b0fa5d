"""Moves cursors: once per tick of the event loop, from the tail or, further back, from the log.

A commit marks its topic, a transport that can take more marks its outlet; neither mark carries data. The tick
then serves every cursor concerned and writes once to each outlet.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Coroutine, Iterable, Sequence
from heapq import heappop, heappush
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

from himalia.errors import FilterFailed, InternalError, LogUnavailable, SlowConsumer, TopicNotFound
from himalia.log.api import Chunk, Log
from himalia.pubsub.feed import Encoded, View
from himalia.pubsub.filters import Filter
from himalia.pubsub.outlet import Outlet
from himalia.pubsub.stats import Counters, Tracing
from himalia.pubsub.subscription import Cursor
from himalia.pubsub.topic import Topic
from himalia.pubsub.turns import TURN_S, Turns
from himalia.record import Record

if TYPE_CHECKING:
    from himalia.pubsub.subscription import Cursor


logger = logging.getLogger("himalia.delivery")

CURSORS_AT_ONCE = 64
"""Cursors served before the loop looks at its sockets: new publishes are committed while the rest is served."""
RELEASED_AT_ONCE = 512
"""Cursors that were held up by their transports and are put in line in one turn."""
ENCODED_AT_ONCE = 32
"""Records read from the log that are encoded and filtered before it is asked whether the turn is over."""
READS_AT_ONCE = 8
FILTERING_S = 0.003
"""Time for evaluating filters before the loop looks at its sockets; one evaluation may exceed it."""
RETRY_AFTER_S = 1.0


class FilterResult(NamedTuple):
    """Records that passed a filter, on how many it failed, and the first of these."""

    passed: list[Record]
    failed: int
    failure: tuple[int, FilterFailed] | None


class Delivery:
    """Serves the cursors of one event loop. Nothing here blocks or fails because of one subscriber."""

    def __init__(
        self,
        log: Log,
        counters: Counters,
        turns: Turns,
        *,
        chunk_bytes: int,
        tail_bytes: int,
        tail_records: int,
        tracing: Tracing | None = None,
    ) -> None:
        self._log = log
        self._counters = counters
        self._turns = turns
        self._chunk_bytes = chunk_bytes
        self._tail_bytes = tail_bytes
        self._tail_records = tail_records
        self._tracing = tracing
        self.topics: dict[str, Topic] = {}
        self._dirty: OrderedDict[Topic, None] = OrderedDict()
        self._ready: OrderedDict[Outlet, None] = OrderedDict()
        # Topics with records that a filter has not looked at, in the order of their turn.
        self._behind: dict[Topic, None] = {}
        self._scheduled = False
        # Cursors to serve, in the order of their turn.
        self.due = DueCursors()
        self._reads = asyncio.Semaphore(READS_AT_ONCE)
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()

    def mark(self, topic: Topic) -> None:
        """The topic may have new records."""
        self._dirty[topic] = None
        self._schedule()

    def begin(self, cursor: Cursor) -> None:
        """Serve a cursor that was held, on a topic that is followed already: the others on it have nothing new."""
        cursor.held = False
        self.due.extend((cursor,))
        if cursor.topic.tail.is_behind:
            self._behind[cursor.topic] = None
        self._schedule()

    def wake(self, outlet: Outlet) -> None:
        """The outlet may be able to take more."""
        self._ready[outlet] = None
        self._schedule()

    @property
    def is_idle(self) -> bool:
        """Whether nothing is marked, in line or being read."""
        return not (self._dirty or self._ready or self._behind or self.due or self._tasks)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._tick)

    def _tick(self) -> None:
        """Serve a slice of what is due; the loop reads new publishes between two slices."""
        self._scheduled = False
        self._gather_due()
        touched: dict[Outlet, None] = {}
        serve = self._serve
        for cursor in self.due.take(CURSORS_AT_ONCE):
            if serve(cursor):
                touched[cursor.subscriber.outlet] = None
        for outlet in touched:
            outlet.flush()
        if self.due or self._dirty or self._ready or self._behind:
            self._schedule()

    def _gather_due(self) -> None:
        """Put the cursors of marked topics and outlets in line, as many as fit into this turn."""
        ends_at = perf_counter() + TURN_S
        while self._dirty:
            topic, _ = self._dirty.popitem(last=False)
            self._refresh(topic)
            self.due.extend(topic.cursors)
            if topic.tail.is_behind:
                self._behind[topic] = None
            if perf_counter() >= ends_at:
                break
        if self._behind:
            self._judge()
        self._release_blocked()

    def _judge(self) -> None:
        """Evaluate filters on new records for a while, and put the cursors that can move on in line."""
        until = perf_counter() + FILTERING_S
        for topic in list(self._behind):
            del self._behind[topic]
            topic.tail.judge(until)
            self.due.extend(topic.filtered_cursors)
            if topic.tail.is_behind:
                self._behind[topic] = None
            if perf_counter() >= until:
                return

    def _release_blocked(self) -> None:
        """Put cursors in line that were held up, of outlets that can take more."""
        room = RELEASED_AT_ONCE
        left: list[Outlet] = []
        while self._ready and room > 0:
            outlet, _ = self._ready.popitem(last=False)
            if outlet.paused or outlet.closed:
                continue  # a transport that can take more marks its outlet again
            released = outlet.take_blocked(room)
            self.due.extend(released)
            room -= len(released) + 1
            if outlet.has_blocked:
                left.append(outlet)
        for outlet in left:
            self._ready[outlet] = None

    def _serve(self, cursor: Cursor) -> bool:
        """Move one cursor as far as its transport allows; says whether something was gathered."""
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
                if cursor.subscriber.policy == "disconnect" and cursor.over_limit():
                    self._disconnect(cursor)
                return False
            if not self._catch_up_after_stall(cursor):
                return False
        if cursor.next < view.first:
            self._start_reading(cursor)
            return outlet.buffered_bytes > 0
        if outlet.buffered_bytes >= self._chunk_bytes:
            outlet.block(cursor)
            self.wake(outlet)
            return True
        part = view.slice(cursor.next, self._chunk_bytes)
        cursor.next = part.end
        cursor.subscriber.sent += part.matched
        self._counters.delivered += part.matched
        if part.data:
            outlet.buffer(part.data)
        if part.failure is not None:
            outlet.buffer(outlet.codec.error(part.failure, cursor.topic.name))
        if part.end < view.end:
            outlet.block(cursor)
            self.wake(outlet)
        return True

    def _catch_up_after_stall(self, cursor: Cursor) -> bool:
        """The transport was full and is not any more: skip what the policy says; false if that ended it."""
        cursor.stalled = False
        if not cursor.over_limit():
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
        outlet.buffer(outlet.codec.dropped(cursor.topic.name, subscriber.client_id, first, last))
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
        outlet.buffer(outlet.codec.error(error, cursor.topic.name))
        outlet.flush()
        outlet.close(error)

    # The tail

    def _refresh(self, topic: Topic) -> None:
        if topic.refreshing:
            topic.marked_meanwhile = True
            return
        records = self._log.recent(topic.name, topic.end, topic.epoch)
        if records is None:
            topic.refreshing = True
            self._spawn(self._fill(topic))
        elif records:
            topic.tail.extend(records, self._share())
            if logger.isEnabledFor(logging.DEBUG):
                _log_routing(topic, records)
            if self._tracing is not None:
                self._tracing.delivering(topic.name, records, len(topic))

    def _share(self) -> int:
        """Bytes that each followed topic may keep in memory."""
        return max(self._tail_bytes // max(len(self.topics), 1), self._chunk_bytes // 4)

    async def _fill(self, topic: Topic) -> None:
        """Bring the tail up to the log's end by reading the log."""
        moved = False
        try:
            while self.topics.get(topic.name) is topic:
                chunk = await self._read(topic.name, topic.end)
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
                topic.tail.extend(chunk.records, self._share())
                moved = True
        finally:
            topic.refreshing = False
            # Not in any case: a topic that is gone, of which the watch has not told yet, would be read for ever.
            if moved or topic.marked_meanwhile:
                topic.marked_meanwhile = False
                self.mark(topic)

    # The log

    def _start_reading(self, cursor: Cursor) -> None:
        outlet = cursor.subscriber.outlet
        if outlet.reading:
            outlet.await_read(cursor)
            return
        outlet.reading = cursor.held = True
        self._spawn(self._read_for(cursor))

    async def _read_for(self, cursor: Cursor) -> None:
        """Send one chunk of the log to a cursor that is behind the tail."""
        outlet = cursor.subscriber.outlet
        is_there = False
        try:
            chunk = await self._read(cursor.topic.name, cursor.next)
            is_there = chunk is not None and chunk.epoch == cursor.topic.epoch
            if chunk is not None and is_there and not cursor.closed:
                await self._send(cursor, chunk)
        except Exception:
            outlet.close(InternalError("reading the log failed in the server; resume where you are"))
            raise
        finally:
            outlet.reading = cursor.held = False
            if not is_there:
                # The topic is gone, and the watch will say so; it is not read again until then.
                cursor.closed = True
            if not cursor.closed:
                outlet.block(cursor)  # behind the other cursors of the outlet, which read first
            self.wake(outlet)

    async def _send(self, cursor: Cursor, chunk: Chunk) -> None:
        subscriber, outlet = cursor.subscriber, cursor.subscriber.outlet
        name = cursor.topic.name
        first = chunk.records[0].offset if chunk.records else chunk.first
        view = View(Encoded(outlet.codec), subscriber.filter, first)
        await self._extend(view, chunk.records, cursor)
        if cursor.closed or outlet.closed:
            return
        if chunk.first > cursor.next:
            outlet.buffer(outlet.codec.gap(name, subscriber.client_id, cursor.next, chunk.first, chunk.end))
            cursor.next = chunk.first
        if chunk.records:
            part = view.slice(cursor.next, 1 << 62)
            cursor.next = part.end
            subscriber.sent += part.matched
            self._counters.delivered += part.matched
            outlet.buffer(part.data)
            if part.failure is not None:
                outlet.buffer(outlet.codec.error(part.failure, name))
        outlet.flush()

    async def _extend(self, view: View, records: Sequence[Record], cursor: Cursor) -> None:
        """Encode old records for a cursor, in turns with other readers and with the loop."""
        while (done := view.end - view.first) < len(records) and not cursor.closed:
            if done and self._turns.is_over():
                await self._turns.rest()
            view.extend(records[done : done + ENCODED_AT_ONCE], perf_counter() + FILTERING_S)

    async def apply_filter(self, filter: Filter, records: Sequence[Record]) -> FilterResult:
        """Evaluate a filter on old records, in turns with the other readers of such and with the loop."""
        passed: list[Record] = []
        failed, first = 0, None
        for record in records:
            await self._turns.give_way()
            try:
                if filter.matches(record):
                    passed.append(record)
            except FilterFailed as error:
                failed += 1
                # Made anew: what the other was raised in holds the whole record, decoded.
                first = first or (record.offset, FilterFailed(error.message, **error.data))
        return FilterResult(passed, failed, first)

    async def _read(self, topic: str, start: int) -> Chunk | None:
        """A chunk of the log, waiting for as long as the log is unwell; ``None`` if the topic is gone."""
        while True:
            try:
                async with self._reads:
                    return await self._log.read(
                        topic, start, limit=self._tail_records, bytes_max=self._chunk_bytes
                    )
            except TopicNotFound:
                return None
            except LogUnavailable as error:
                logger.warning("reading %s failed, trying again: %s", topic, error)
                await asyncio.sleep(RETRY_AFTER_S)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("delivery failed", exc_info=task.exception())


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


class DueCursors:
    """Those of higher priority first, else in the order they came. Adding and taking do not depend on the length."""

    def __init__(self) -> None:
        self._queues: dict[int, deque[Cursor]] = {}
        # The priorities of queues that are not empty, negated, as a heap.
        self._priorities: list[int] = []

    def __bool__(self) -> bool:
        return bool(self._priorities)

    def extend(self, cursors: Iterable[Cursor]) -> None:
        """Put those in line that are not there yet."""
        queues = self._queues
        for cursor in cursors:
            if not cursor.due:
                cursor.due = True
                queue = queues.get(cursor.subscriber.priority)
                if queue is None:
                    queue = self._add_queue(cursor.subscriber.priority)
                queue.append(cursor)

    def _add_queue(self, priority: int) -> deque[Cursor]:
        heappush(self._priorities, -priority)
        queue = self._queues[priority] = deque()
        return queue

    def take(self, count: int) -> list[Cursor]:
        """Up to ``count`` cursors, which are then no longer in line."""
        taken: list[Cursor] = []
        while self._priorities and len(taken) < count:
            priority = -self._priorities[0]
            queue = self._queues[priority]
            taken += [queue.popleft() for _ in range(min(len(queue), count - len(taken)))]
            if not queue:
                del self._queues[priority]
                heappop(self._priorities)
        for cursor in taken:
            cursor.due = False
        return taken
