"""Executions read back from the log, which alone tells the whole story.

Nothing of a request lives anywhere else, so that a result can be asked for while it grows, after the server was
restarted, and any number of times while the log keeps its records.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any, ClassVar

import msgspec

from himalia.errors import EpochChanged
from himalia.iopub.result import ExecutionError, ExecutionResult
from himalia.jupyter.channels import Channel
from himalia.jupyter.duration import StatusDates
from himalia.jupyter.lifecycle import ExecutionStatus
from himalia.jupyter.outputs import BYTES_MAX, OutputFold, natural
from himalia.jupyter.records import (
    EVENT_CHANNEL,
    KernelEvent,
    RecordHeaders,
    headers_of,
    message_of,
    stored_id,
)
from himalia.jupyter.request_events import EventKind, event_of_message
from himalia.jupyter.wire import KernelMessage
from himalia.log.api import Chunk, Log
from himalia.record import Record

CHUNK_RECORDS = 1000
CHUNK_BYTES = 1 << 20
FOLDED_AT_ONCE_BYTES = 64 << 10
WINDOW_MIN = 250
"""Records looked at first in a search back from the end; each further window is twice as large, up to a chunk's
fourfold, so that what is near costs little and what is far few reads."""
WINDOW_MAX = 4 * CHUNK_RECORDS


class _Counted(msgspec.Struct, gc=False):
    execution_count: Any = None


_decode_counted = msgspec.json.Decoder(_Counted).decode
_IOPUB_CHANNELS = frozenset(str(channel) for channel in Channel)


class ExecutionFold:
    """Folds the records of a kernel's topic, in their order, into the result of one request.

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
        """``keeps_json`` as in ``OutputFold``."""
        self.request_id = request_id
        self._kernel_id = kernel_id
        self._topic = topic
        self._record_id = stored_id(request_id)
        self._fold = OutputFold(bytes_max=bytes_max, keeps_json=keeps_json)
        self._counts: Counter[str] = Counter()
        self._offset: int | None = None
        self._end = 0
        self._code: str | None = None
        self._caller = ""
        self._execution_count: int | None = None
        self._error: ExecutionError | None = None
        self._queued_us: int | None = None
        self._sent_us: int | None = None
        self._started_us: int | None = None
        self._dates = StatusDates()
        # What request_closed says; it is never empty, so it also tells whether there was one.
        self._closed: dict[str, Any] | None = None
        self._closed_us = 0
        self._dropped = 0
        self._malformed = 0
        self._missed = False

    @property
    def is_closed(self) -> bool:
        """Whether the record that closes the request has come: what comes after it is late."""
        return self._closed is not None

    def add(self, record: Record) -> None:
        """Take the next record of the topic, whosever it is."""
        headers = headers_of(record)
        is_own = headers.parent_id == self.request_id
        if headers.channel == EVENT_CHANNEL:
            # Events of the kernel itself concern whoever runs at the time.
            if is_own or (not headers.parent_id and self._end):
                self._add_event(record, headers, is_own=is_own)
        elif is_own:
            self._add_message(record, headers)
        elif record.id == self._record_id and headers.msg_type == "execute_request":
            self._add_request(record, headers)

    def miss(self) -> None:
        """Records that would have come next are no longer kept."""
        self._missed = True

    def result(self) -> ExecutionResult:
        """The request as far as it was read."""
        closed = self._closed or {}
        return ExecutionResult(
            request_id=self.request_id,
            kernel_id=self._kernel_id,
            topic=self._topic,
            status=self._status(),
            reason=_text(closed, "reason") or "",
            execution_count=natural(self._execution_count),
            code=self._code or "",
            caller=self._caller,
            outputs=self._fold.outputs,
            error=self._error,
            queued_us=_number(closed, "queued_us") or self._queued_us,
            sent_us=_number(closed, "sent_us") or self._sent_us,
            started_us=_number(closed, "started_us") or self._started_us,
            finished_us=_number(closed, "finished_us") or self._closed_us or None,
            run_us=self._dates.run_us(
                self._queued_us or self._sent_us, self._started_us, self._closed_us or None
            ),
            counts=dict(self._counts),
            offset=self._offset,
            end=self._end,
            truncated=self._fold.truncated or self._missed,
            dropped=self._dropped,
            malformed=self._malformed + self._fold.malformed,
        )

    def _status(self) -> ExecutionStatus:
        """Only the record that closes it ends a request: an idle or a reply alone may have more behind it."""
        if self._closed is None:
            return ExecutionStatus.RUNNING
        try:
            status = ExecutionStatus(_text(self._closed, "status") or "")
        except ValueError:
            return ExecutionStatus.ERROR
        return status if status.is_final else ExecutionStatus.ERROR

    def _add_request(self, record: Record, headers: RecordHeaders) -> None:
        message = self._message(record, headers)
        if message is not None:
            self._begin(record, message.decoded_content())
        if self._queued_us is None:
            # Where nothing says when it was queued, it was when it was written down.
            self._queued_us = record.ts_us
        elif self._sent_us is None:
            self._sent_us = record.ts_us

    def _begin(self, record: Record, content: dict[str, Any]) -> None:
        """The first of the records that say what is asked: if any are missing, they lie before the request."""
        if self._offset is None:
            self._offset = record.offset
            self._missed = False
            self._code = _text(content, "code") or self._code

    def _add_message(self, record: Record, headers: RecordHeaders) -> None:
        message = self._message(record, headers)
        if message is None:
            return
        self._fold.add(message)
        read = self._READS.get(message.msg_type)
        if read is not None:
            read(self, message)

    def _message(self, record: Record, headers: RecordHeaders) -> KernelMessage | None:
        """The message of a record of this request, which is counted."""
        self._end = record.offset + 1
        self._counts[headers.channel] += 1
        message = _decoded(record, headers)
        if message is None:
            self._malformed += 1
        return message

    def _add_event(self, record: Record, headers: RecordHeaders, *, is_own: bool) -> None:
        content = _event_content(record, headers)
        event = content.get("event")
        if is_own:
            self._end = record.offset + 1
        if event == KernelEvent.GAP:
            self._dropped += _number(content, "count") or 1
        elif is_own and self._closed is None:
            self._add_own_event(record, event, content)

    def _add_own_event(self, record: Record, event: Any, content: dict[str, Any]) -> None:
        if event == KernelEvent.MESSAGE_TOO_LARGE:
            self._dropped += 1
        elif event == KernelEvent.REQUEST_QUEUED:
            self._begin(record, content)
            self._queued_us = _number(content, "queued_us") or record.ts_us
            self._caller = _text(content, "caller") or ""
        elif event == KernelEvent.REQUEST_CLOSED:
            self._closed, self._closed_us = content, record.ts_us
            self._read_count(content)

    # What the messages of a request say of it beside their outputs

    def _read_status(self, message: KernelMessage) -> None:
        if self._closed is not None:
            return
        self._dates = _with_status(self._dates, message)
        if self._started_us is None and message.decoded_content().get("execution_state") == "busy":
            self._started_us = message.received_us

    def _read_input(self, message: KernelMessage) -> None:
        content = message.decoded_content()
        if self._code is None:
            self._code = _text(content, "code")
        self._read_count(content)

    def _read_result(self, message: KernelMessage) -> None:
        try:
            count = _decode_counted(message.content).execution_count
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return
        self._read_count({"execution_count": count})

    def _read_error(self, message: KernelMessage) -> None:
        self._error = _error_of(message.decoded_content()) or self._error

    def _read_reply(self, message: KernelMessage) -> None:
        content = message.decoded_content()
        self._read_count(content)
        if content.get("status") == "error" and self._error is None:
            self._error = _error_of(content)

    def _read_count(self, content: dict[str, Any]) -> None:
        count = _number(content, "execution_count")
        if count is not None:
            self._execution_count = count

    _READS: ClassVar[dict[str, Callable[[ExecutionFold, KernelMessage], None]]] = {
        "status": _read_status,
        "execute_input": _read_input,
        "execute_result": _read_result,
        "error": _read_error,
        "execute_reply": _read_reply,
    }


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
    """The result of a request, from the records of its topic that begin at ``start``.

    It ends with the request's ``request_closed``. Output that comes later, from a thread that the code left
    behind, is in the log but not in the result, which is thus the same whenever it is asked for; with ``late``
    it is: all of it up to the end that the topic has at the moment of the call. A request that is not closed by
    then is ``running``, and so is one of which there is no record (``find_request`` tells).

    Reads chunk by chunk, only what lies between ``start`` and the close, and gives way to the event loop
    between chunks. Raises ``TopicNotFound``; ``EpochChanged`` if the topic was replaced meanwhile.
    """
    fold = ExecutionFold(
        request_id, kernel_id=kernel_id, topic=topic, bytes_max=bytes_max, keeps_json=keeps_json
    )
    info = await log.info(topic)
    while start < info.end:
        chunk = await _read(log, topic, start, CHUNK_RECORDS, info.epoch)
        if chunk.first > start:
            fold.miss()
        if sum(len(record.payload) for record in chunk.records) > FOLDED_AT_ONCE_BYTES:
            # Decoding so much takes a while: not on the event loop. One chunk at a time, so by one thread at a time.
            start = await asyncio.to_thread(_add_chunk, fold, chunk, info.end, late=late)
        else:
            start = _add_chunk(fold, chunk, info.end, late=late)
    return fold.result()


async def find_request(log: Log, topic: str, request_id: str) -> int | None:
    """Where a request begins, searched from the topic's end backwards; ``None`` if the log does not have it.

    That is its ``request_queued``, behind which all of its records lie, or, of a request that did not wait here,
    its ``execute_request`` (for which all of the topic is looked through).
    """
    request_record_id = stored_id(request_id)
    sent: int | None = None

    def is_queued(record: Record) -> bool:
        nonlocal sent
        headers = headers_of(record)
        if record.id == request_record_id and headers.msg_type == "execute_request":
            sent = record.offset
        if headers.parent_id != request_id or headers.channel != EVENT_CHANNEL:
            return False
        return bool(_event_content(record, headers).get("event") == KernelEvent.REQUEST_QUEUED)

    queued = await _newest(log, topic, is_queued)
    return sent if queued is None else queued.offset


async def last_iopub(log: Log, topic: str) -> Record | None:
    """The newest message of IOPub in a kernel's topic, searched like a request."""
    return await _newest(log, topic, lambda record: headers_of(record).channel in _IOPUB_CHANNELS)


def _add_chunk(fold: ExecutionFold, chunk: Chunk, end: int, *, late: bool) -> int:
    """Fold a chunk; returns where to read on, which is ``end`` when there is no need to."""
    for record in chunk.records:
        if record.offset >= end:
            return end
        fold.add(record)
        if fold.is_closed and not late:
            return end
    return chunk.records[-1].offset + 1 if chunk.records else end


async def _newest(log: Log, topic: str, is_wanted: Callable[[Record], bool]) -> Record | None:
    """The newest record of its kind, from windows that go back from the end."""
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
    """The newest of its kind within a window, and whether retention has passed all that lies before it."""
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
    # A log that has the records at hand does not give way by itself.
    await asyncio.sleep(0)
    return chunk


def _decoded(record: Record, headers: RecordHeaders) -> KernelMessage | None:
    """The record's message; ``None`` for a payload that is none, which nothing of ours writes."""
    try:
        return message_of(record, headers)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _event_content(record: Record, headers: RecordHeaders) -> dict[str, Any]:
    message = _decoded(record, headers)
    return message.decoded_content() if message is not None else {}


def _error_of(content: dict[str, Any]) -> ExecutionError | None:
    traceback = content.get("traceback")
    if not isinstance(content.get("ename"), str):
        return None
    return ExecutionError(
        ename=content["ename"],
        evalue=_text(content, "evalue") or "",
        traceback=[line for line in traceback if isinstance(line, str)]
        if isinstance(traceback, list)
        else [],
    )


def _text(content: dict[str, Any], key: str) -> str | None:
    value = content.get(key)
    return value if isinstance(value, str) else None


def _number(content: dict[str, Any], key: str) -> int | None:
    value = content.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _with_status(dates: StatusDates, message: KernelMessage) -> StatusDates:
    event = event_of_message(message, "status")
    if event is None:
        return dates
    is_busy = event.kind is EventKind.BUSY
    return dates.with_busy(event.date_us) if is_busy else dates.with_idle(event.date_us)
