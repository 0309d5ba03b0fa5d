"""The events of requests, read from kernel messages and from the records of a kernel's topic.

A message becomes an event only if it came by the channel of that event: code in a kernel can publish any type on IOPub,
but writes neither the server's own events nor what passes over the shell and control sockets.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

from himalia.jupyter.channels import Channel, channel_of
from himalia.jupyter.duration import header_date_us
from himalia.jupyter.records import (
    EVENT_CHANNEL,
    EVENT_TYPE,
    EVENT_USERNAME,
    KernelEvent,
    RecordHeaders,
    to_message,
)
from himalia.jupyter.wire import KernelMessage
from himalia.record import Record

EXECUTE_REQUEST = "execute_request"
FOREIGN = "foreign:"
"""Prefix of a username that only the kernel reports: code in it can name any caller."""


class EventKind(StrEnum):
    """What can happen to a request, in the order of the columns of the table in ``lifecycle``."""

    QUEUED = "queued"
    """A server put it in its queue: ``request_queued``."""
    SENT = "sent"
    """It was sent to the kernel by way of this server: the request itself."""
    BUSY = "busy"
    INPUT = "input"
    """The kernel repeats the code that it runs: ``execute_input``."""
    RESULT = "result"
    """``execute_result``; only its execution count matters here."""
    ERROR = "error"
    IDLE = "idle"
    REPLY = "reply"
    CLOSED = "closed"
    """A server closed it: ``request_closed``."""
    ENDED = "ended"
    """The kernel died, was stopped or restarts, or its topic was deleted."""


class RequestContent(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The fields of a message's content that a request's state reads, of any type: kernels write anything."""

    execution_state: Any = None
    execution_count: Any = None
    code: Any = None
    silent: Any = None
    status: Any = None
    reason: Any = None
    event: Any = None
    caller: Any = None
    priority: Any = None
    timeout_s: Any = None
    queued_us: Any = None
    sent_us: Any = None
    started_us: Any = None
    finished_us: Any = None


class RequestEvent(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One event of one request."""

    kind: EventKind
    request_id: str = ""
    us: int
    """The time of the record or, live, of the arrival."""
    offset: int = -1
    """The record's offset; -1 live."""
    date_us: int | None = None
    """The kernel's own date of a busy or idle."""
    request_type: str = EXECUTE_REQUEST
    """The type of the request; ``SENT`` only."""
    username: str | None = None
    session: str | None = None
    content: RequestContent = RequestContent()


class _Parent(msgspec.Struct, gc=False):
    username: Any = None
    session: Any = None


_decode_content = msgspec.json.Decoder(RequestContent).decode
_decode_parent = msgspec.json.Decoder(_Parent).decode
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
IOPUB_CHANNELS = frozenset(map(str, Channel))
_REQUEST_CHANNELS = ("shell", "control")
_STATUS_KINDS = {"busy": EventKind.BUSY, "idle": EventKind.IDLE}
_IOPUB_KINDS = {
    "execute_input": EventKind.INPUT,
    "execute_result": EventKind.RESULT,
    "error": EventKind.ERROR,
}
_SERVER_KINDS: dict[str, EventKind] = {
    KernelEvent.REQUEST_QUEUED: EventKind.QUEUED,
    KernelEvent.REQUEST_CLOSED: EventKind.CLOSED,
}


def may_be_event(msg_type: str, channel: str) -> bool:
    """Return whether such a message can be an event. Output cannot, so that a flood is never decoded here."""
    if channel in IOPUB_CHANNELS:
        return msg_type == "status" or msg_type in _IOPUB_KINDS
    return channel == EVENT_CHANNEL or channel in _REQUEST_CHANNELS


def to_event(message: KernelMessage, channel: str, *, offset: int = -1) -> RequestEvent | None:
    """Decode the event that a message is for its request; None for any other message. Never raises."""
    if not may_be_event(message.msg_type, channel):
        return None
    if channel in IOPUB_CHANNELS:
        return _iopub_event(message, offset)
    if channel == EVENT_CHANNEL:
        return _server_event(message, offset)
    return _shell_event(message, offset)


def record_to_event(record: Record, headers: RecordHeaders) -> RequestEvent | None:
    """Decode the event that a record is for its request; None for any other record. Never raises."""
    channel = channel_in(headers)
    if not may_be_event(headers.msg_type, channel):
        return None
    try:
        message = to_message(record, headers)
    except UNREADABLE:
        return None
    return to_event(message, channel, offset=record.offset)


def channel_in(headers: RecordHeaders) -> str:
    """Return the channel of a record; by its type if its headers do not name one."""
    if headers.channel:
        return headers.channel
    if headers.msg_type == EVENT_TYPE:
        return EVENT_CHANNEL
    return "shell" if headers.msg_type in (EXECUTE_REQUEST, "execute_reply") else channel_of(headers.msg_type)


def read_content(message: KernelMessage) -> RequestContent:
    """Decode the fields of a message's content that matter here; all None if it is not an object."""
    try:
        return _decode_content(message.content)
    except UNREADABLE:
        return RequestContent()


def text_or_none(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def int_or_none(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _iopub_event(message: KernelMessage, offset: int) -> RequestEvent | None:
    if message.msg_type == "status":
        return _status_event(message, offset)
    kind = _IOPUB_KINDS[message.msg_type]
    username, session = _sender_of_parent(message) if kind is EventKind.INPUT else (None, None)
    return RequestEvent(
        kind=kind,
        request_id=message.parent_id,
        us=message.received_us,
        offset=offset,
        username=username,
        session=session,
        content=read_content(message),
    )


def _status_event(message: KernelMessage, offset: int) -> RequestEvent | None:
    state = read_content(message).execution_state
    kind = _STATUS_KINDS.get(state) if isinstance(state, str) else None
    if kind is None:
        return None
    return RequestEvent(
        kind=kind,
        request_id=message.parent_id,
        us=message.received_us,
        offset=offset,
        date_us=header_date_us(message),
    )


def _server_event(message: KernelMessage, offset: int) -> RequestEvent | None:
    content = read_content(message)
    kind = _SERVER_KINDS.get(content.event) if isinstance(content.event, str) else None
    if kind is None or message.msg_type != EVENT_TYPE:
        return None
    return RequestEvent(
        kind=kind,
        request_id=message.parent_id,
        us=message.received_us,
        offset=offset,
        username=None if message.username == EVENT_USERNAME else message.username or None,
        content=content,
    )


def _shell_event(message: KernelMessage, offset: int) -> RequestEvent | None:
    msg_type = message.msg_type
    is_reply = msg_type.endswith("_reply")
    if not is_reply and not msg_type.endswith("_request") and not msg_type.startswith("comm_"):
        return None
    return RequestEvent(
        kind=EventKind.REPLY if is_reply else EventKind.SENT,
        request_id=message.parent_id if is_reply else message.msg_id,
        us=message.received_us,
        offset=offset,
        request_type=EXECUTE_REQUEST if is_reply else msg_type,
        username=message.username or None,
        session=message.session or None,
        content=read_content(message),
    )


def _sender_of_parent(message: KernelMessage) -> tuple[str | None, str | None]:
    """Decode the username and session of a message's request, as the kernel reports them."""
    try:
        parent = _decode_parent(message.parent_header)
    except UNREADABLE:
        return None, None
    username = text_or_none(parent.username)
    return FOREIGN + username if username else None, text_or_none(parent.session)
