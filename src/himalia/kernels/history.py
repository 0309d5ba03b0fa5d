"""Reads the results of requests back from the log, the only place where requests and their output are kept.

A result can be read while the request runs, after a restart of the server, and any number of times while the log
keeps its records.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

from himalia.errors import EpochChanged
from himalia.iopub.result import ExecutionError, ExecutionResult
from himalia.jupyter.lifecycle import ENDINGS, RequestOrigin, RequestStage, RequestState
from himalia.jupyter.outputs import BYTES_MAX, OutputBuilder, non_negative
from himalia.jupyter.records import (
    EVENT_CHANNEL,
    KernelEvent,
    RecordHeaders,
    read_headers,
    stored_id,
    to_message,
)
from himalia.jupyter.request_events import (
    EXECUTE_REQUEST,
    IOPUB_CHANNELS,
    UNREADABLE,
    int_or_none,
    text_or_none,
    to_event,
)
from himalia.jupyter.wire import KernelMessage
from himalia.log.api import Chunk, Log
from himalia.record import Record

CHUNK_RECORDS = 1000
CHUNK_BYTES = 1 << 20
DECODED_ON_LOOP_BYTES = 64 << 10
"""A larger chunk is decoded in a thread."""
WINDOW_MIN = 250
"""Records in the first window of a search back from the end. Each further window is twice as large, up to a chunk's
fourfold, so that a recent record costs little and an old one few reads."""
WINDOW_MAX = 4 * CHUNK_RECORDS


class ExecutionBuilder:
    """Builds the result of one request from the records of its kernel's topic, in their order.

    Records of other requests are recognised by their headers; their payloads are not decoded. It never raises,
    whatever a kernel wrote.
    """

    def __init__(
        self,
        request_id: str,
        *,
        kernel_id: str,
        topic: str,
        bytes_max: int = BYTES_MAX,
        keeps_json: bool = False,
    ) -> None:
        """``keeps_json`` as in ``OutputBuilder``."""
        self.request_id = request_id
        self._kernel_id = kernel_id
        self._topic = topic
        self._record_id = stored_id(request_id)
        # The caller knows that there is such a request: it stays open until its server closes it, also where the
        # record of its queueing is no longer kept.
        self._state = RequestState(
            request_id=request_id, stage=RequestStage.QUEUED, origin=RequestOrigin.QUEUED, awaits_reply=True
        )
        self._outputs = OutputBuilder(bytes_max=bytes_max, keeps_json=keeps_json)
        self._error: ExecutionError | None = None
        self._counts: Counter[str] = Counter()
        self._offset: int | None = None
        self._end = 0
        self._dropped = 0
        self._malformed = 0
        self._is_incomplete = False

    @property
    def is_closed(self) -> bool:
        """Whether the record that closes the request was added: records after it are late."""
        return self._state.is_closed

    def add(self, record: Record) -> None:
        """Apply the topic's next record; records of other requests change nothing."""
        headers = read_headers(record)
        is_event = headers.channel == EVENT_CHANNEL
        if headers.parent_id == self.request_id:
            (self._add_own_event if is_event else self._add_message)(record, headers)
        elif is_event:
            # Events of the kernel itself concern the requests that are open at the time.
            if not headers.parent_id and self._end:
                self._add_kernel_event(record, headers)
        elif record.id == self._record_id and headers.msg_type == EXECUTE_REQUEST:
            self._begin(record)
            self._add_message(record, headers)

    def mark_incomplete(self) -> None:
        """Records that would have come next are no longer kept."""
        self._is_incomplete = True

    def result(self) -> ExecutionResult:
        """The result as far as records were added."""
        summary = self._state.summary()
        return ExecutionResult(
            request_id=self.request_id,
            kernel_id=self._kernel_id,
            topic=self._topic,
            status=summary.status,
            reason=summary.reason,
            execution_count=non_negative(summary.execution_count),
            code=summary.code,
            caller=summary.caller,
            outputs=self._outputs.outputs,
            error=self._error,
            queued_us=summary.queued_us,
            sent_us=summary.sent_us,
            started_us=summary.started_us,
            finished_us=summary.finished_us,
            run_us=summary.run_us,
            counts=dict(self._counts),
            offset=self._offset,
            end=self._end,
            truncated=self._outputs.truncated or self._is_incomplete,
            dropped=self._dropped,
            malformed=self._malformed + self._outputs.malformed,
        )

    def _begin(self, record: Record) -> None:
        """Note the first record that makes the request known: records missing before it are not the request's."""
        if self._offset is None:
            self._offset = record.offset
            self._is_incomplete = False

    def _add_message(self, record: Record, headers: RecordHeaders) -> None:
        self._end = record.offset + 1
        self._counts[headers.channel] += 1
        message = _decode(record, headers)
        if message is None:
            self._malformed += 1
            return
        self._outputs.add(message)
        self._read_error(message)
        self._apply(message, headers.channel)

    def _add_own_event(self, record: Record, headers: RecordHeaders) -> None:
        self._end = record.offset + 1
        message = _decode(record, headers)
        content = message.decoded_content() if message is not None else {}
        event = content.get("event")
        if event == KernelEvent.GAP:
            self._dropped += int_or_none(content.get("count")) or 1
        elif message is not None and not self.is_closed:
            self._dropped += event == KernelEvent.MESSAGE_TOO_LARGE
            if event == KernelEvent.REQUEST_QUEUED:
                self._begin(record)
            self._apply(message, headers.channel)

    def _add_kernel_event(self, record: Record, headers: RecordHeaders) -> None:
        content = _event_content(record, headers)
        event = content.get("event")
        if event == KernelEvent.GAP:
            self._dropped += int_or_none(content.get("count")) or 1
        elif isinstance(event, str) and event in ENDINGS:
            self._state = self._state.end(
                ENDINGS[event], record.ts_us, text_or_none(content.get("reason")) or ""
            )

    def _apply(self, message: KernelMessage, channel: str) -> None:
        event = to_event(message, channel)
        if event is not None and event.request_id == self.request_id:
            self._state = self._state.apply(event)

    def _read_error(self, message: KernelMessage) -> None:
        """Note the error that the code raised, as published or, for silent code, as in the reply."""
        if message.msg_type == "error":
            self._error = _error_of(message.decoded_content()) or self._error
        elif message.msg_type == "execute_reply" and self._error is None:
            content = message.decoded_content()
            if content.get("status") == "error":
                self._error = _error_of(content)


async def read_execution(
    log: Log,
    topic: str,
    kernel_id: str,
    request_id: str,
    start: int,
    *,
    late: bool = False,
    bytes_max: int = BYTES_MAX,
    keeps_json: bool = False,
) -> ExecutionResult:
    """Read the result of a request from the records of its topic, beginning at ``start``.

    It ends with the request's close. Later output, from a thread that the code left running, is in the log but not in
    the result, so that every read returns the same; with ``late`` the result includes it, up to the end of the topic
    at the time of the call. A request that is not closed by then is ``running``, and so is one without any record
    (``find_request`` returns None for it).

    Reads the records between ``start`` and the close in chunks, and yields to the event loop between them. Raises
    ``TopicNotFound``; ``EpochChanged`` if the topic was replaced meanwhile.
    """
    builder = ExecutionBuilder(
        request_id, kernel_id=kernel_id, topic=topic, bytes_max=bytes_max, keeps_json=keeps_json
    )
    info = await log.info(topic)
    while start < info.end:
        chunk = await _read(log, topic, start, CHUNK_RECORDS, info.epoch)
        if chunk.first > start:
            builder.mark_incomplete()
        if sum(len(record.payload) for record in chunk.records) > DECODED_ON_LOOP_BYTES:
            # Decoding it would block the event loop. Chunks are added in turn, so by one thread at a time.
            start = await asyncio.to_thread(_add_chunk, builder, chunk, info.end, late=late)
        else:
            start = _add_chunk(builder, chunk, info.end, late=late)
    return builder.result()


async def find_request(log: Log, topic: str, request_id: str) -> int | None:
    """Find where a request begins, searching back from the topic's end; ``None`` if the log does not have it.

    That is its ``request_queued``, which precedes all of its records, or, for a request that did not wait here, its
    ``execute_request`` (for which the whole topic is searched).
    """
    request_record_id = stored_id(request_id)
    sent: int | None = None

    def is_queued(record: Record) -> bool:
        nonlocal sent
        headers = read_headers(record)
        if record.id == request_record_id and headers.msg_type == "execute_request":
            sent = record.offset
        if headers.parent_id != request_id or headers.channel != EVENT_CHANNEL:
            return False
        return bool(_event_content(record, headers).get("event") == KernelEvent.REQUEST_QUEUED)

    queued = await _newest(log, topic, is_queued)
    return sent if queued is None else queued.offset


async def last_iopub(log: Log, topic: str) -> Record | None:
    """Find the newest IOPub message in a kernel's topic."""
    return await _newest(log, topic, lambda record: read_headers(record).channel in IOPUB_CHANNELS)


def _add_chunk(builder: ExecutionBuilder, chunk: Chunk, end: int, *, late: bool) -> int:
    """Add a chunk; returns the next offset to read, which is ``end`` when the result is complete."""
    for record in chunk.records:
        if record.offset >= end:
            return end
        builder.add(record)
        if builder.is_closed and not late:
            return end
    return chunk.records[-1].offset + 1 if chunk.records else end


async def _newest(log: Log, topic: str, is_wanted: Callable[[Record], bool]) -> Record | None:
    """Find the newest matching record, in windows from the end backwards."""
    info = await log.info(topic)
    end, size = info.end, WINDOW_MIN
    while end > info.first:
        start = max(end - size, info.first)
        found, is_over = await _newest_between(log, topic, start, end, info.epoch, is_wanted)
        if found is not None or is_over:
            return found
        end, size = start, min(2 * size, WINDOW_MAX)
    return None


async def _newest_between(
    log: Log, topic: str, start: int, end: int, epoch: str, is_wanted: Callable[[Record], bool]
) -> tuple[Record | None, bool]:
    """Find the newest matching record of a window; and whether retention has deleted every record before it."""
    found, is_over = None, False
    while start < end:
        chunk = await _read(log, topic, start, end - start, epoch)
        is_over = is_over or chunk.first >= start
        for record in reversed(chunk.records):
            if record.offset < end and is_wanted(record):
                found = record
                break
        start = chunk.records[-1].offset + 1 if chunk.records else end
    return found, is_over


async def _read(log: Log, topic: str, start: int, limit: int, epoch: str) -> Chunk:
    chunk = await log.read(topic, start, limit=limit, bytes_max=CHUNK_BYTES)
    if chunk.epoch != epoch:
        raise EpochChanged(topic, epoch, chunk.epoch)
    # A read from the cache does not yield by itself.
    await asyncio.sleep(0)
    return chunk


def _decode(record: Record, headers: RecordHeaders) -> KernelMessage | None:
    """Decode a record's message; ``None`` for a payload that is not one, which no server writes."""
    try:
        return to_message(record, headers)
    except UNREADABLE:
        return None


def _event_content(record: Record, headers: RecordHeaders) -> dict[str, Any]:
    message = _decode(record, headers)
    return message.decoded_content() if message is not None else {}


def _error_of(content: dict[str, Any]) -> ExecutionError | None:
    ename, traceback = text_or_none(content.get("ename")), content.get("traceback")
    if ename is None:
        return None
    return ExecutionError(
        ename=ename,
        evalue=text_or_none(content.get("evalue")) or "",
        traceback=[line for line in traceback if isinstance(line, str)]
        if isinstance(traceback, list)
        else [],
    )
