"""Topics and their messages: creating, listing, publishing, reading."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from himalia.record import Retention
from himalia.topics import NAME_LENGTH_MAX

TOPIC_NAME: dict[str, Any] = {
    "pattern": r"^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$",
    "maxLength": NAME_LENGTH_MAX,
}
"""A topic's name, for schemas only: ``himalia.topics`` checks names, with better messages than a pattern gives."""
MESSAGE_ID: dict[str, Any] = {"anyOf": [{"type": "string", "format": "uuid"}, {"type": "null"}]}


class CreateTopicRequest(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    name: Annotated[
        str,
        Meta(
            description="Segments of letters, digits, '_' and '-', joined by dots.",
            examples=["orders"],
            extra_json_schema=TOPIC_NAME,
        ),
    ]
    retention: Retention | None = None


class CreateTopicResponse(msgspec.Struct, frozen=True, kw_only=True):
    status: Literal["created"] = "created"
    topic: Annotated[str, Meta(examples=["orders"])]


class DeleteTopicResponse(msgspec.Struct, frozen=True, kw_only=True):
    status: Literal["deleted"] = "deleted"
    topic: Annotated[str, Meta(examples=["orders"])]


class TopicSummary(msgspec.Struct, frozen=True):
    """A topic. The stored records are ``first`` to ``end - 1``."""

    name: Annotated[str, Meta(examples=["orders"])]
    subscribers: int
    messages: Annotated[int, Meta(description="Messages ever published: the offset of the next one.")]
    bytes: Annotated[int, Meta(description="Size of the stored records.")]
    first: Annotated[int, Meta(description="Offset of the oldest stored record.")]
    end: Annotated[int, Meta(description="One past the newest offset.")]
    epoch: Annotated[
        str, Meta(description="Changes when the topic is deleted and created again, or restored.")
    ]
    created: Annotated[str, Meta(examples=["2026-11-15T20:17:03.000123Z"])]
    retention: Retention


class TopicList(msgspec.Struct, frozen=True):
    topics: list[TopicSummary]


class IncomingMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message to publish. Without an id the server assigns one, and a repeated request stores a new message."""

    id: Annotated[
        str | None,
        Meta(
            description="A UUID.",
            examples=["7d9f2c1e-0b7a-4c58-9d43-0f6c8a1f2b3c"],
            extra_json_schema=MESSAGE_ID,
        ),
    ] = None
    payload: Annotated[msgspec.Raw, Meta(examples=[{"sku": "A-17", "quantity": 2}])]
    headers: Annotated[dict[str, str] | None, Meta(examples=[{"source": "shop"}])] = None


class PublishResponse(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    topic: Annotated[str, Meta(examples=["orders"])]
    epoch: str
    count: Annotated[int, Meta(description="Messages in the request, duplicates included.")]
    duplicates: Annotated[int, Meta(description="Messages that were already stored.")]
    offset: Annotated[int | None, Meta(description="Offset of the message, if the body was one message.")] = (
        None
    )
    offsets: Annotated[
        list[int] | None, Meta(description="Offset of each message, in order; absent for NDJSON.")
    ] = None
    first: Annotated[int | None, Meta(description="Smallest offset of the request.")] = None
    last: Annotated[int | None, Meta(description="Largest offset of the request.")] = None


class StoredMessage(msgspec.Struct, frozen=True):
    id: str
    payload: msgspec.Raw
    headers: dict[str, str] = {}


class StoredRecord(msgspec.Struct, frozen=True):
    """A record as the server streams it; ``himalia.protocol.encode_record`` writes it."""

    offset: int
    ts: str
    message: StoredMessage


class FilterFailures(msgspec.Struct, frozen=True):
    count: Annotated[
        int, Meta(description="Records on which the filter failed; the response leaves them out.")
    ]
    offset: Annotated[int, Meta(description="Offset of the first of them.")]
    message: str


class MessagesResponse(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    messages: list[StoredRecord]
    next: Annotated[int, Meta(description="Pass it as `from` to read on.")]
    first: Annotated[int, Meta(description="Offset of the oldest stored record.")]
    end: int
    epoch: str
    failed: Annotated[
        FilterFailures | None, Meta(description="Present if the filter failed on any record.")
    ] = None
