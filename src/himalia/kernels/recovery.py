"""What a server that comes back finds in a kernel's topic: the requests that nobody has closed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec

from himalia.kernels.duration import StatusDates
from himalia.kernels.history import last_iopub
from himalia.kernels.intake import Bookmark
from himalia.kernels.keeper import place
from himalia.kernels.keeper.spool import Spooled
from himalia.kernels.records import (
    EVENT_CHANNEL,
    KernelEvent,
    RecordHeaders,
    closing_data,
    event_draft,
    headers_of,
    message_of,
    seq_of,
)
from himalia.kernels.result import ExecutionStatus
from himalia.kernels.wire import KernelMessage, Wire
from himalia.log.api import Log
from himalia.record import Draft, Record

CHUNK = 4000


class OpenRequest(msgspec.Struct, kw_only=True):
    """A request without an end, as far as the topic tells of it."""

    request_id: str
    offset: int
    queued_us: int
    code: str = ""
    priority: int = 0
    timeout_s: float | None = None
    caller: str = ""
    sent_us: int | None = None
    started_us: int | None = None
    execution_count: int | None = None
    has_failed: bool = False
    is_idle: bool = False
    dates: StatusDates = msgspec.field(default_factory=StatusDates)

    @property
    def was_sent(self) -> bool:
        return self.sent_us is not None or self.started_us is not None


def closing_draft(kernel_id: str, request: OpenRequest, reason: str) -> Draft:
    """The end of a request whose kernel is gone, as far as the topic tells how it ended."""
    status = ExecutionStatus.DIED if request.was_sent else ExecutionStatus.ABORTED
    if request.is_idle:
        status, reason = (ExecutionStatus.ERROR if request.has_failed else ExecutionStatus.OK), ""
    return event_draft(
        kernel_id,
        KernelEvent.REQUEST_CLOSED,
        request_id=request.request_id,
        **closing_data(request, status, reason),
    )


async def bookmark_in(log: Log, topic: str) -> Bookmark:
    """Where to go on with a kernel's spool: behind the last of its messages that is in the topic."""
    last = await last_iopub(log, topic)
    if last is None:
        return Bookmark()
    seq = seq_of(last)
    return Bookmark(wanted=message_of(last).msg_id) if seq is None else Bookmark(seq)


async def has_ended(log: Log, topic: str) -> bool:
    """Whether the last that a topic tells of its kernel is its end; also if it tells nothing at all."""
    end = (await log.info(topic)).end
    records = (await log.read(topic, end - 1, limit=1)).records if end else ()
    if not records:
        return True
    event = _event_of(records[-1], headers_of(records[-1])).get("event")
    return event in (KernelEvent.DIED, KernelEvent.STOPPED)


def left_connection_file(directory: Path) -> Path:
    """The connection file of the kernel that was kept in a directory."""
    about = place.read_about(directory) or {}
    return Path(str(about.get("connection_file") or directory / place.CONNECTION_FILE))


async def open_requests(log: Log, topic: str) -> list[OpenRequest]:
    """Requests that were queued and not closed, in the order they came."""
    since = await _open_since(log, topic)
    if since is None:
        return []
    found: dict[str, OpenRequest] = {}
    async for record in _records(log, topic, since):
        _take(found, record, headers_of(record))
    return list(found.values())


async def _open_since(log: Log, topic: str) -> int | None:
    """Where to begin to read: the newest event of a request says from where all that were open then are told of."""
    end = (await log.info(topic)).end
    while end > 0:
        start = max(0, end - CHUNK)
        records = [record async for record in _records(log, topic, start, end)]
        for record in reversed(records):
            content = _event_of(record, headers_of(record))
            if str(content.get("event", "")).startswith("request_"):
                since = content.get("open_since")
                return min(since, record.offset) if isinstance(since, int) else record.offset
        if not records or records[0].offset > start:
            return None  # the log keeps nothing older
        end = start
    return None


def _take(found: dict[str, OpenRequest], record: Record, headers: RecordHeaders) -> None:
    if headers.channel == EVENT_CHANNEL:
        _take_event(found, record, headers)
    elif headers.msg_type == "execute_request" and record.id in found:
        found[record.id].sent_us = record.ts_us
    elif (request := found.get(headers.parent_id)) is not None:
        _take_message(request, record, headers)


def _take_event(found: dict[str, OpenRequest], record: Record, headers: RecordHeaders) -> None:
    content = _event_of(record, headers)
    request_id = headers.parent_id
    if content.get("event") == KernelEvent.REQUEST_QUEUED:
        found[request_id] = OpenRequest(
            request_id=request_id,
            offset=record.offset,
            queued_us=record.ts_us,
            code=str(content.get("code", "")),
            priority=int(content.get("priority", 0)),
            timeout_s=content.get("timeout_s"),
            caller=str(content.get("caller", "")),
        )
    elif content.get("event") == KernelEvent.REQUEST_CLOSED:
        found.pop(request_id, None)


def _take_message(request: OpenRequest, record: Record, headers: RecordHeaders) -> None:
    if headers.msg_type == "status":
        message = message_of(record, headers)
        request.dates.add(message)
        state = message.decoded_content().get("execution_state")
        if state == "busy":
            request.started_us = request.started_us or record.ts_us
        request.is_idle = request.is_idle or state == "idle"
    elif headers.msg_type == "error":
        request.has_failed = True
    elif headers.msg_type == "execute_input":
        request.execution_count = message_of(record, headers).decoded_content().get("execution_count")


def _event_of(record: Record, headers: RecordHeaders) -> dict[str, Any]:
    return message_of(record, headers).decoded_content() if headers.channel == EVENT_CHANNEL else {}


async def _records(log: Log, topic: str, start: int, end: int | None = None) -> AsyncIterator[Record]:
    while end is None or start < end:
        limit = CHUNK if end is None else min(CHUNK, end - start)
        chunk = await log.read(topic, start, limit=limit)
        for record in chunk.records:
            if end is not None and record.offset >= end:
                return
            yield record
        if not chunk.records:
            return
        start = chunk.records[-1].offset + 1


def parents_in(spooled: Iterator[Spooled], wire: Wire) -> set[str]:
    """The requests of which a spool has heard. Reads all of it, so call it in a thread."""
    decoded = (wire.decode(entry.frames) for entry in spooled)
    return {message.parent_id for message in decoded if isinstance(message, KernelMessage)}
