"""Moving cursors: once per tick of the event loop, from the tail or, further back, from the log.

A commit marks its topic, a transport that can take more marks its outlet; neither mark carries data. The tick
then serves every cursor concerned and writes once to each outlet.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any

from himalia.errors import InternalError, LogUnavailable, SlowConsumer, TopicNotFound
from himalia.log.contract import Chunk, Log
from himalia.pubsub.cursor import Cursor
from himalia.pubsub.outlet import Outlet
from himalia.pubsub.stats import Meter
from himalia.pubsub.tail import view_of
from himalia.pubsub.topic import Topic
from himalia.pubsub.tracing import Tracing
from himalia.record import Record

logger = logging.getLogger("himalia.delivery")

CURSORS_AT_ONCE = 64
"""Cursors served before the loop looks at its sockets: new publishes are committed while the rest is served."""
READS_AT_ONCE = 8
RETRY_AFTER_S = 1.0


class Delivery:
    """Serves the cursors of one event loop. Nothing here blocks or fails because of one subscriber."""

    def __init__(
        self,
        log: Log,
        meter: Meter,
        *,
        chunk_bytes: int,
        tail_bytes: int,
        tail_records: int,
        tracing: Tracing | None = None,
    ) -> None:
        self._log = log
        self._meter = meter
        self._chunk_bytes = chunk_bytes
        self._tail_bytes = tail_bytes
        self._tail_records = tail_records
        self._tracing = tracing
        self.topics: dict[str, Topic] = {}
        self._dirty: dict[Topic, None] = {}
        self._ready: dict[Outlet, None] = {}
        self._scheduled = False
        # Cursors to serve, in the order of their turn.
        self._due: deque[Cursor] = deque()
        # Whether any subscriber ever had a priority, so that turns must be ordered by it.
        self.has_priorities = False
        self._reads = asyncio.Semaphore(READS_AT_ONCE)
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()

    def mark(self, topic: Topic) -> None:
        """The topic may have new records."""
        self._dirty[topic] = None
        self._schedule()

    def wake(self, outlet: Outlet) -> None:
        """The outlet may be able to take more."""
        self._ready[outlet] = None
        self._schedule()

    @property
    def is_idle(self) -> bool:
        """Whether nothing is marked, in line or being read."""
        return not (self._dirty or self._ready or self._due or self._tasks)

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
        due, serve = self._due, self._serve
        for _ in range(min(len(due), CURSORS_AT_ONCE)):
            cursor = due.popleft()
            cursor.due = False
            if serve(cursor):
                touched[cursor.subscriber.outlet] = None
        for outlet in touched:
            outlet.flush()
        if due:
            self._schedule()

    def _gather_due(self) -> None:
        """Put the cursors of marked topics and outlets in line, behind those that are in line already."""
        dirty, self._dirty = self._dirty, {}
        ready, self._ready = self._ready, {}
        is_mixed = bool(self._due or ready or len(dirty) > 1)
        for topic in dirty:
            self._refresh(topic)
            self._line_up(topic.cursors)
        for outlet in ready:
            for subscriber in outlet.subscribers:
                self._line_up(subscriber.cursors.values())
        # The cursors of one topic are in order already.
        if self.has_priorities and is_mixed:
            self._due = deque(sorted(self._due, key=lambda cursor: -cursor.subscriber.priority))

    def _line_up(self, cursors: Iterable[Cursor]) -> None:
        for cursor in cursors:
            if not cursor.due:
                cursor.due = True
                self._due.append(cursor)

    def _serve(self, cursor: Cursor) -> bool:
        """Move one cursor as far as its transport allows; says whether something was gathered."""
        tail = cursor.topic.tail
        if cursor.next >= tail.end or cursor.reading or cursor.closed:
            return False
        outlet = cursor.subscriber.outlet
        if outlet.paused or cursor.stalled or outlet.closed:
            if outlet.closed:
                return False
            if outlet.paused:
                cursor.stalled = True
                if cursor.subscriber.policy == "disconnect" and cursor.over_limit():
                    self._disconnect(cursor)
                return False
            if not self._catch_up_after_stall(cursor):
                return False
        if cursor.next < tail.first:
            self._start_reading(cursor)
            return outlet.gathered_bytes > 0
        if outlet.gathered_bytes >= self._chunk_bytes:
            self.wake(outlet)
            return True
        part = cursor.view.slice(cursor.next, tail.first, self._chunk_bytes)
        cursor.next = part.end
        cursor.subscriber.sent += part.matched
        self._meter.delivered += part.matched
        if part.data:
            outlet.gather(part.data)
        if part.failure is not None:
            outlet.gather(outlet.codec.error(part.failure, cursor.topic.name))
        if part.end < tail.end:
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
        self._meter.dropped += last - first + 1
        logger.debug("dropped %s..%s of %s for %s", first, last, cursor.topic.name, subscriber.client_id)
        outlet = subscriber.outlet
        outlet.gather(outlet.codec.dropped(cursor.topic.name, subscriber.client_id, first, last))
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
        outlet.gather(outlet.codec.error(error, cursor.topic.name))
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
            return  # that read wakes the outlet when it is done
        outlet.reading = cursor.reading = True
        self._spawn(self._read_for(cursor))

    async def _read_for(self, cursor: Cursor) -> None:
        """Send one chunk of the log to a cursor that is behind the tail."""
        outlet = cursor.subscriber.outlet
        is_there = False
        try:
            chunk = await self._read(cursor.topic.name, cursor.next)
            is_there = chunk is not None and chunk.epoch == cursor.topic.epoch
            if chunk is not None and is_there and not cursor.closed:
                self._send(cursor, chunk)
        except Exception:
            outlet.close(InternalError("reading the log failed in the server; resume where you are"))
            raise
        finally:
            outlet.reading = cursor.reading = False
            self._next_in_turn(cursor)
            if not is_there:
                # The topic is gone, and the watch will say so; it is not read again until then.
                cursor.closed = True
            self.wake(outlet)

    def _next_in_turn(self, cursor: Cursor) -> None:
        """Let the other cursors of the outlet read before this one does again."""
        subscriber = cursor.subscriber
        if not cursor.closed and subscriber in subscriber.outlet.subscribers:
            subscriber.cursors[cursor.topic.name] = subscriber.cursors.pop(cursor.topic.name)
            del subscriber.outlet.subscribers[subscriber]
            subscriber.outlet.subscribers[subscriber] = None

    def _send(self, cursor: Cursor, chunk: Chunk) -> None:
        subscriber, outlet = cursor.subscriber, cursor.subscriber.outlet
        name = cursor.topic.name
        if chunk.first > cursor.next:
            outlet.gather(outlet.codec.gap(name, subscriber.client_id, cursor.next, chunk.first, chunk.end))
            cursor.next = chunk.first
        if chunk.records:
            view = view_of(chunk.records, outlet.codec, subscriber.filter)
            part = view.slice(cursor.next, chunk.records[0].offset, 1 << 62)
            cursor.next = part.end
            subscriber.sent += part.matched
            self._meter.delivered += part.matched
            outlet.gather(part.data)
            if part.failure is not None:
                outlet.gather(outlet.codec.error(part.failure, name))
        outlet.flush()

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
