"""The messages of ``/ws``. ``docs/protocol.md`` shows each of them; a test runs its examples."""

from __future__ import annotations

import re
import struct
import uuid
from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from himalia.errors import BadRequest
from himalia.record import Policy, Position, Record, format_ts

PROTOCOL_VERSION = 1
REQUEST_ID_LENGTH_MAX = 256
CLIENT_ID_LENGTH_MAX = 256
ERROR_LENGTH_MAX = 1000


class Message(msgspec.Struct, omit_defaults=True):
    """A message: a UUID, any JSON as payload, and headers. The payload is stored and delivered byte for byte."""

    id: str
    payload: msgspec.Raw
    headers: dict[str, str] | None = None


class StartPosition(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where a subscription begins in one topic of its pattern. Without an epoch the offset counts in any epoch."""

    offset: int
    epoch: str | None = None


class ClientMessage(msgspec.Struct, omit_defaults=True):
    """A message from a client. Its type determines which fields are required."""

    type: Literal["subscribe", "unsubscribe", "publish", "ping"]
    topic: str | None = None
    message: Message | None = None
    client_id: str | None = None
    last_n: int | None = None
    request_id: str | None = None
    start: int | dict[str, int | StartPosition] | None = msgspec.field(default=None, name="from")
    epoch: str | None = None
    since: str | float | None = None
    policy: Policy | None = None
    limit: int | None = None
    filter: str | None = None
    priority: int = 0


CLIENT_FIELDS: dict[str, tuple[str, ...]] = {
    "subscribe": ("topic", "client_id"),
    "unsubscribe": ("topic", "client_id"),
    "publish": ("topic", "message"),
    "ping": (),
}
"""The fields that each type of message from a client requires. ``decode_client_message`` checks them."""


class ErrorBody(msgspec.Struct, omit_defaults=True):
    code: Annotated[str, Meta(examples=["TOPIC_NOT_FOUND"])]
    message: Annotated[str, Meta(examples=["topic 'orders' does not exist; create it with POST /topics"])]


class NoticeKind(StrEnum):
    """The ``msg`` of an ``info`` message. Clients ignore those they do not know."""

    DROPPED = "dropped"
    GAP = "gap"
    TOPIC_CREATED = "topic_created"
    TOPIC_DELETED = "topic_deleted"
    REPLACED = "replaced"
    PING = "ping"
    SERVER_SHUTDOWN = "server_shutdown"


class ServerMessage(msgspec.Struct, omit_defaults=True):
    """A message from the server. Its type determines which fields are set."""

    type: Literal["ack", "event", "error", "pong", "info"]
    request_id: str | None = None
    topic: str | None = None
    status: Literal["ok"] | None = None
    message: Message | None = None
    offset: int | None = None
    epoch: str | None = None
    topics: dict[str, Position] | None = None
    error: ErrorBody | None = None
    msg: Annotated[
        str | None, Meta(description="A notice, of an info message.", examples=list(NoticeKind))
    ] = None
    first: int | None = None
    last: int | None = None
    count: int | None = None
    requested: int | None = None
    end: int | None = None
    client_id: str | None = None
    ts: str | None = None
    protocol: int | None = None


SERVER_FIELDS: dict[str, tuple[str, ...]] = {
    "ack": ("topic", "status", "ts"),
    "event": ("topic", "offset", "ts", "message"),
    "error": ("error", "ts"),
    "pong": ("ts",),
    "info": ("msg", "ts"),
}
"""The fields that each type of message from the server always has."""


class _RequestId(msgspec.Struct):
    request_id: str | None = None


_decode = msgspec.json.Decoder(ClientMessage).decode
_decode_request_id = msgspec.json.Decoder(_RequestId).decode
DECODE_ERRORS = (msgspec.MsgspecError, ValueError, RecursionError)
_CANONICAL_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z").match
_encoder = msgspec.json.Encoder()
encode = _encoder.encode


def decode_client_message(data: bytes) -> ClientMessage:
    """Return the message with the fields that its type requires, or raise ``BadRequest``."""
    try:
        # The decoder skips payloads without decoding their text, so the encoding is checked here.
        if not data.isascii():
            data.decode()
        message = _decode(data)
    except DECODE_ERRORS as error:
        raise decode_error(error, "the message", "a valid message") from None
    _check_fields(message)
    return message


def decode_error(error: Exception, subject: str, expected: str) -> BadRequest:
    """Describe one of ``DECODE_ERRORS``: ``subject`` is what was decoded, ``expected`` what it should have been."""
    if isinstance(error, UnicodeDecodeError):
        return BadRequest(f"{subject} is not UTF-8 at byte {error.start}")
    if isinstance(error, RecursionError):
        return BadRequest(f"{subject} is nested too deeply")
    return BadRequest(f"{subject} is not {expected}: {error}")


def request_id_of(data: bytes) -> str | None:
    """Return the request id of a message that is otherwise invalid, for its error message."""
    try:
        found = _decode_request_id(data).request_id
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    return found if found is None or len(found) <= REQUEST_ID_LENGTH_MAX else None


def _check_fields(message: ClientMessage) -> None:
    if message.request_id is not None and len(message.request_id) > REQUEST_ID_LENGTH_MAX:
        message.request_id = None
        raise BadRequest(f"request_id has at most {REQUEST_ID_LENGTH_MAX} characters")
    if message.client_id is not None and len(message.client_id) > CLIENT_ID_LENGTH_MAX:
        raise BadRequest(f"client_id has at most {CLIENT_ID_LENGTH_MAX} characters")
    if message.type == "ping":
        return
    if message.topic is None:
        raise BadRequest(f"{message.type} needs a topic")
    if message.type == "publish":
        if message.message is None:
            raise BadRequest('publish needs a message: {"id": uuid, "payload": ...}')
        message.message.id = canonical_uuid(message.message.id)
        return
    if not message.client_id:
        raise BadRequest(f"{message.type} needs a client_id")


def truncate_error(text: str) -> str:
    """Truncate the text of an error, which may quote what the client sent."""
    return text if len(text) <= ERROR_LENGTH_MAX else text[: ERROR_LENGTH_MAX - 3] + "..."


def canonical_uuid(text: str) -> str:
    """Return a UUID in canonical form, so that two spellings of one id are one id."""
    # Parsing costs four times as much as matching the form that every library prints.
    if _CANONICAL_UUID(text):
        return text
    try:
        return str(uuid.UUID(text))
    except ValueError:
        shown = text if len(text) <= 60 else text[:57] + "..."
        raise BadRequest(f"message.id {shown!r} is not a UUID") from None


_STORED = b'"offset":%d,"ts":"%b","message":{"id":%b,"payload":%b,"headers":%b}}'
_EVENT = b'{"type":"event","topic":"%b",' + _STORED
_RECORD = b"{" + _STORED


def encode_event(record: Record) -> bytes:
    """Encode a record as an ``event``, around the stored bytes of its payload and headers."""
    return _EVENT % (
        record.topic.encode(),
        record.offset,
        format_ts(record.ts_us).encode(),
        encode(record.id),
        record.payload,
        record.headers,
    )


def encode_record(record: Record) -> bytes:
    """Encode a record as REST returns it (``models.StoredRecord``), around the stored bytes."""
    return _RECORD % (
        record.offset,
        format_ts(record.ts_us).encode(),
        encode(record.id),
        record.payload,
        record.headers,
    )


# Frames

_FIN_TEXT = 0x81
_pack_short = struct.Struct("!BBH").pack
_pack_long = struct.Struct("!BBQ").pack


def text_frame(payload: bytes) -> bytes:
    """Return one final text frame, unmasked as the server sends it: all subscribers get the same bytes."""
    size = len(payload)
    if size < 126:
        return bytes((_FIN_TEXT, size)) + payload
    if size < 65536:
        return _pack_short(_FIN_TEXT, 126, size) + payload
    return _pack_long(_FIN_TEXT, 127, size) + payload


def text_payloads(frames: bytes) -> Iterator[bytes]:
    """Yield the payloads of concatenated frames of ``text_frame``, for transports that do their own framing."""
    at = 0
    while at < len(frames):
        size, start = frames[at + 1], at + 2
        if size == 126:
            size, start = int.from_bytes(frames[at + 2 : at + 4], "big"), at + 4
        elif size == 127:
            size, start = int.from_bytes(frames[at + 2 : at + 10], "big"), at + 10
        yield frames[start : start + size]
        at = start + size
