"""Kernel messages and kernel events as records of the topic ``kernels.<kernel_id>``, and back again.

A record's payload is the Jupyter message (``header``, ``parent_header``, ``metadata``, ``content`` and, where there
are any, ``buffers`` in base64), joined from the parts as the wire decoded them, which ensures that each is JSON on
one line. The fields that readers select by are in the record's headers: a reader need not decode the payload of a
record that it skips.
"""

from __future__ import annotations

import json
from base64 import b64encode
from enum import StrEnum
from typing import Any
from uuid import UUID, uuid4, uuid5

import msgspec

from himalia.jupyter.wire import PROTOCOL_VERSION, Fault, KernelMessage
from himalia.record import Draft, Record, format_ts, now_us

ID_LENGTH_MAX = 256
EVENT_TYPE = "kernel_event"
EVENT_CHANNEL = "kernel"
EVENT_USERNAME = "himalia"
DISK_WAS_FULL = "the disk was full when the kernel ended"
"""Why the last messages of a kernel are missing."""

_ID_NAMESPACE = UUID("7d0f6b0c-5c3e-5b1a-9b44-0c6a4d1f7a52")


class KernelEvent(StrEnum):
    """Events of a kernel and of its requests, which the server writes to the kernel's topic."""

    STARTED = "started"
    DIED = "died"
    RESTARTING = "restarting"
    RESTARTED = "restarted"
    MOVED = "moved"
    INTERRUPTED = "interrupted"
    REATTACHED = "reattached"
    ATTACHED = "attached"
    STOPPED = "stopped"
    GAP = "gap"
    REQUEST_QUEUED = "request_queued"
    REQUEST_CLOSED = "request_closed"
    MESSAGE_TOO_LARGE = "message_too_large"


class RecordHeaders(msgspec.Struct, frozen=True, gc=False):
    """The headers of a kernel's record. ``channel`` is one of the five of IOPub, ``shell``, ``stdin``, ``control``
    or, for our own events, ``kernel``; ``parent_id`` is the request's id, or empty."""

    msg_type: str = ""
    channel: str = ""
    parent_id: str = ""
    kernel_id: str = ""
    username: str = ""
    session: str = ""


class _Envelope(msgspec.Struct, gc=False):
    header: msgspec.Raw
    parent_header: msgspec.Raw
    metadata: msgspec.Raw
    content: msgspec.Raw
    buffers: tuple[bytes, ...] = ()


class _SpoolNumber(msgspec.Struct, gc=False):
    seq: str = ""


class _Identity(msgspec.Struct, gc=False):
    msg_id: str = ""


_encode = msgspec.json.Encoder().encode
_decode_headers = msgspec.json.Decoder(RecordHeaders).decode
_decode_spool_number = msgspec.json.Decoder(_SpoolNumber).decode
_decode_envelope = msgspec.json.Decoder(_Envelope).decode
_decode_identity = msgspec.json.Decoder(_Identity).decode


def to_draft(message: KernelMessage, kernel_id: str, channel: str) -> Draft:
    """Encode a message as the log stores it. The same message always gives the same draft.

    The identities, which belong to one connection, and the time of arrival are not stored: the log has its own time.
    """
    headers = RecordHeaders(
        msg_type=message.msg_type,
        channel=channel,
        parent_id=message.parent_id,
        kernel_id=kernel_id,
        username=message.username,
        session=message.session,
    )
    encoded = _encode(headers)
    if message.seq >= 0:
        encoded = b'%b,"seq":"%d"}' % (encoded[:-1], message.seq)
    return Draft(record_id(message), _payload_of(message), encoded)


def seq_of(record: Record) -> int | None:
    """Return the number of a record's message in its kernel's spool; None if it came another way, or 0.1 stored it."""
    try:
        seq = _decode_spool_number(record.headers).seq
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return int(seq) if seq.isdecimal() else None


def event_draft(
    kernel_id: str, event: str, /, *, request_id: str = "", session: str = "", caller: str = "", **data: Any
) -> Draft:
    """Encode a server event in the shape of a message; ``data``, any JSON, is its content together with its name.

    ``caller`` is the name of the caller who caused it; empty if the server or the kernel did.
    """
    msg_id = str(uuid4())
    if caller:
        data["caller"] = caller
    header = {
        "msg_id": msg_id,
        "msg_type": EVENT_TYPE,
        "session": session,
        "username": caller or EVENT_USERNAME,
        "date": format_ts(now_us()),
        "version": PROTOCOL_VERSION,
    }
    headers = RecordHeaders(
        msg_type=EVENT_TYPE,
        channel=EVENT_CHANNEL,
        parent_id=request_id,
        kernel_id=kernel_id,
        username=caller or EVENT_USERNAME,
        session=session,
    )
    envelope = {
        "header": header,
        "parent_header": {"msg_id": request_id} if request_id else {},
        "metadata": {},
        "content": {"event": event, **data},
    }
    return Draft(msg_id, _encode_envelope(envelope), _encode(headers))


def too_large_draft(kernel_id: str, fault: Fault, limit: int) -> Draft:
    """Encode the event for a message that is too large to keep: its type and size."""
    return event_draft(
        kernel_id,
        KernelEvent.MESSAGE_TOO_LARGE,
        request_id=fault.parent_id,
        msg_type=fault.msg_type,
        size_bytes=fault.size_bytes,
        limit=limit,
    )


def gap_draft(kernel_id: str, count: int | None, reason: str) -> Draft:
    """Encode the event for missing messages; ``count`` is None if their number is not known."""
    known: dict[str, Any] = {} if count is None else {"count": count}
    return event_draft(kernel_id, KernelEvent.GAP, **known, reason=reason)


def read_headers(record: Record) -> RecordHeaders:
    """Decode a record's headers, and not its payload; empty ones for a record that is not a kernel's."""
    try:
        return _decode_headers(record.headers)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return RecordHeaders()


def to_message(record: Record, headers: RecordHeaders | None = None) -> KernelMessage:
    """Decode the message that a record stores: the inverse of ``to_draft``. Headers that are given save decoding them.

    Its parts are the same bytes, except for white space around them. ``received_us`` is the record's time.
    Raises ``msgspec.DecodeError`` for a payload that is not a kernel message.
    """
    if headers is None:
        headers = read_headers(record)
    envelope = _decode_envelope(record.payload)
    return KernelMessage(
        msg_id=_decode_identity(envelope.header).msg_id,
        msg_type=headers.msg_type,
        session=headers.session,
        username=headers.username,
        parent_id=headers.parent_id,
        header=bytes(envelope.header),
        parent_header=bytes(envelope.parent_header),
        metadata=bytes(envelope.metadata),
        content=bytes(envelope.content),
        buffers=envelope.buffers,
        received_us=record.ts_us,
    )


def record_id(message: KernelMessage) -> str:
    """Return the id under which a message is stored: its own or, if that is empty or malformed, one derived from it.

    It depends only on the message, so that storing a message twice is a no-op.
    """
    if message.msg_id:
        return stored_id(message.msg_id)
    # Without an id, only the whole message tells it from others.
    whole = b"\n".join((message.header, message.parent_header, message.content, *message.buffers))
    return str(uuid5(_ID_NAMESPACE, whole.hex()))


def stored_id(msg_id: str) -> str:
    """Return the record id of a message with this Jupyter id."""
    if 0 < len(msg_id) <= ID_LENGTH_MAX and msg_id.isprintable():
        return msg_id
    return str(uuid5(_ID_NAMESPACE, msg_id.encode("utf-8", "backslashreplace").hex()))


def _payload_of(message: KernelMessage) -> bytes:
    parts = [
        b'{"header":',
        message.header,
        b',"parent_header":',
        message.parent_header,
        b',"metadata":',
        message.metadata,
        b',"content":',
        message.content,
    ]
    if message.buffers:
        parts += (b',"buffers":["', b'","'.join(map(b64encode, message.buffers)), b'"]')
    parts.append(b"}")
    return b"".join(parts)


def _encode_envelope(envelope: dict[str, Any]) -> bytes:
    try:
        return _encode(envelope)
    except UnicodeEncodeError:
        # A path or an error text that is not Unicode must not keep the event out of the log.
        return json.dumps(envelope, ensure_ascii=False).encode("utf-8", "replace")
