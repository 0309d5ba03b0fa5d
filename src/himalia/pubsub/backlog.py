"""Reads the log for what is in no tail: for cursors that catch up, and for filters on old records."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from time import perf_counter
from typing import NamedTuple

from himalia.errors import FilterFailed, InternalError, LogUnavailable, TopicNotFound
from himalia.log.api import Chunk, Log
from himalia.pubsub.filters import Filter
from himalia.pubsub.stats import Counters
from himalia.pubsub.subscription import Cursor
from himalia.pubsub.tail import EncodedEvents, View
from himalia.pubsub.time_slices import TimeSlices
from himalia.record import Record
from himalia.settings import DeliverySettings

logger = logging.getLogger("himalia.delivery")

READS_AT_ONCE = 8
ENCODED_AT_ONCE = 32
"""Records that are encoded and filtered before the next check whether the turn is over."""
FILTERING_S = 0.003
"""Time for evaluating filters before the loop polls its sockets; one evaluation may exceed it."""
RETRY_AFTER_S = 1.0


class Backlog:
    """Reads and encodes old records, in turns with other work on the event loop."""

    def __init__(
        self, log: Log, settings: DeliverySettings, time_slices: TimeSlices, counters: Counters
    ) -> None:
        self._log = log
        self._settings = settings
        self._time_slices = time_slices
        self._counters = counters
        self._reads = asyncio.Semaphore(READS_AT_ONCE)

    async def read(self, topic: str, start: int) -> Chunk | None:
        """Read one chunk, retrying while the log is unavailable; ``None`` if the topic does not exist."""
        while True:
            try:
                async with self._reads:
                    return await self._log.read(
                        topic,
                        start,
                        limit=self._settings.tail_records,
                        bytes_max=self._settings.chunk_bytes,
                    )
            except TopicNotFound:
                return None
            except LogUnavailable as error:
                logger.warning("reading %s failed, retrying: %s", topic, error)
                await asyncio.sleep(RETRY_AFTER_S)

    async def send_chunk(self, cursor: Cursor) -> None:
        """Send one chunk of the log to a cursor that is behind the tail; close the cursor if its topic is deleted."""
        outlet = cursor.subscriber.outlet
        exists = False
        try:
            chunk = await self.read(cursor.topic.name, cursor.next)
            exists = chunk is not None and chunk.epoch == cursor.topic.epoch
            if chunk is not None and exists and not cursor.closed:
                await self._send(cursor, chunk)
        except Exception:
            outlet.close(InternalError("reading the log failed in the server; resume where you are"))
            raise
        finally:
            if not exists:
                # The log's watch is about to report the deletion. Until then the topic is not read again.
                cursor.closed = True

    async def _send(self, cursor: Cursor, chunk: Chunk) -> None:
        subscriber, outlet = cursor.subscriber, cursor.subscriber.outlet
        name = cursor.topic.name
        first = chunk.records[0].offset if chunk.records else chunk.first
        view = View(EncodedEvents(outlet.codec), subscriber.filter, first)
        await self._extend(view, chunk.records, cursor)
        if cursor.closed or outlet.closed:
            return
        if chunk.first > cursor.next:
            outlet.buffer(
                outlet.codec.encode_gap(name, subscriber.client_id, cursor.next, chunk.first, chunk.end)
            )
            cursor.next = chunk.first
        if chunk.records:
            part = view.slice(cursor.next, 1 << 62)
            cursor.next = part.end
            subscriber.sent += part.matched
            self._counters.delivered += part.matched
            outlet.buffer(part.data)
            if part.failure is not None:
                outlet.buffer(outlet.codec.encode_error(part.failure, name))
        outlet.flush()

    async def _extend(self, view: View, records: Sequence[Record], cursor: Cursor) -> None:
        """Encode the records of a chunk for a cursor, in turns."""
        while (done := view.end - view.first) < len(records) and not cursor.closed:
            if done and self._time_slices.is_over():
                await self._time_slices.wait_next()
            view.extend(records[done : done + ENCODED_AT_ONCE], perf_counter() + FILTERING_S)


class FilterResult(NamedTuple):
    """Records that passed a filter, on how many it failed, and the first failure with its offset."""

    passed: list[Record]
    failed: int
    failure: tuple[int, FilterFailed] | None


async def apply_filter(filter: Filter, records: Sequence[Record], time_slices: TimeSlices) -> FilterResult:
    """Evaluate a filter on old records, in turns."""
    passed: list[Record] = []
    failed, first = 0, None
    for record in records:
        await time_slices.checkpoint()
        try:
            if filter.matches(record):
                passed.append(record)
        except FilterFailed as error:
            failed += 1
            # A copy: the traceback of the original references the whole decoded record.
            first = first or (record.offset, FilterFailed(error.message, **error.data))
    return FilterResult(passed, failed, first)
