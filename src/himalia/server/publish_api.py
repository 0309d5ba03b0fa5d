"""REST: publishing one message, a list, or a stream of lines."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Query, Request

from himalia.errors import BadRequest, LogUnavailable, MessageTooLarge, ShuttingDown
from himalia.log.contract import Appended, Batch
from himalia.protocol import Message
from himalia.protocol.messages import canonical_uuid
from himalia.record import Draft
from himalia.server.access import SECURITY, Caller, TheBroker
from himalia.server.broker import Broker
from himalia.server.drafting import Drafter
from himalia.server.models import ErrorResponse, PublishBody, PublishResponse
from himalia.server.topics_api import ERRORS, NOT_FOUND, TopicName

NDJSON = "application/x-ndjson"
LINES_AT_ONCE = 1000

router = APIRouter(responses=ERRORS, tags=["messages"])


class Published(msgspec.Struct):
    """A message as REST takes it: bare, its id optional."""

    payload: msgspec.Raw
    id: str | None = None
    headers: dict[str, str] | None = None


_decode_one = msgspec.json.Decoder(Published).decode
_decode_many = msgspec.json.Decoder(list[Published]).decode

_ONE = PublishBody.model_json_schema()
_BODY: dict[str, Any] = {
    "required": True,
    "content": {
        "application/json": {
            "schema": {
                "anyOf": [_ONE, {"type": "array", "minItems": 1, "items": _ONE}],
            },
            "examples": {
                "one": {"value": {"payload": {"sku": "A-17", "quantity": 2}}},
                "several": {"value": [{"payload": 1}, {"payload": 2, "headers": {"source": "shop"}}]},
            },
        },
        NDJSON: {"schema": {"type": "string"}, "example": '{"payload":1}\n{"payload":2}\n'},
    },
}


@router.post(
    "/topics/{name}/messages",
    dependencies=SECURITY,
    response_model_exclude_none=True,
    responses={
        **NOT_FOUND,
        409: {"model": ErrorResponse, "description": "The topic has another epoch"},
        413: {"model": ErrorResponse, "description": "The message or the body is too large"},
    },
    openapi_extra={"requestBody": _BODY},
)
async def publish(
    request: Request,
    broker: TheBroker,
    caller: Caller,
    name: str = TopicName,
    epoch: Annotated[str | None, Query(description="Refuse if the topic has another epoch.")] = None,
    producer: Annotated[
        str | None, Query(description="With `sequence`: store the body exactly once.", max_length=255)
    ] = None,
    sequence: Annotated[
        int | None, Query(description="Grows with each body of a producer.", ge=0, lt=1 << 63)
    ] = None,
) -> PublishResponse:
    """Publish a message, a list of them (stored together or not at all), or NDJSON, one message a line.

    NDJSON is stored as it comes in, so that a body can be of any length; if a line is wrong, the error names it
    and the lines before it are stored. With `producer` and `sequence` the body is stored whole and exactly once.
    """
    if (producer is None) != (sequence is None):
        raise BadRequest("producer and sequence go together")
    drafter = Drafter(broker.settings, caller)
    drafter.check_topic(name)
    origin = Origin(broker, name, epoch, producer, sequence)
    if _is_ndjson(request):
        return await _publish_lines(origin, drafter, request)
    body = await _whole_body(request, broker.settings.bulk_bytes_max)
    several = body.lstrip()[:1] == b"["
    drafts = [_draft(drafter, name, message) for message in _decode(body, several=several)]
    if not drafts:
        raise BadRequest("the list is empty")
    appended = await origin.store(drafts)
    return _response(name, [appended], one=not several, listed=True)


class Origin(msgspec.Struct, frozen=True):
    """Where a body goes, and under which conditions."""

    broker: Broker
    topic: str
    epoch: str | None
    producer: str | None
    sequence: int | None

    async def store(self, drafts: Sequence[Draft]) -> Appended:
        if self.broker.draining:
            raise ShuttingDown("the server is shutting down and takes no more; publish again in a moment")
        await self.broker.until_admitted()
        batch = Batch(self.topic, drafts, self.epoch, self.producer, self.sequence)
        return await self.broker.manager.publish(batch)


def _is_ndjson(request: Request) -> bool:
    media_type = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if media_type in (NDJSON, "application/ndjson", "application/jsonl"):
        return True
    if media_type == "application/json" or media_type.endswith("+json"):
        return False
    raise BadRequest(f"content type {media_type!r} is neither application/json nor {NDJSON}")


async def _whole_body(request: Request, bytes_max: int) -> bytes:
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > bytes_max:
            raise MessageTooLarge(
                f"a body has at most {bytes_max} bytes; send NDJSON without a producer instead"
            )
        parts.append(part)
    return b"".join(parts)


def _decode(body: bytes, *, several: bool) -> list[Published]:
    try:
        body.decode()
        return _decode_many(body) if several else [_decode_one(body)]
    except UnicodeDecodeError as error:
        raise BadRequest(f"the body is not UTF-8 at byte {error.start}") from None
    except RecursionError:
        raise BadRequest("the body is nested too deeply") from None
    except (msgspec.MsgspecError, ValueError) as error:
        raise BadRequest(f'not a message {{"id"?, "payload", "headers"?}}: {error}') from None


def _draft(drafter: Drafter, topic: str, message: Published) -> Draft:
    id = str(uuid.uuid4()) if message.id is None else canonical_uuid(message.id)
    return drafter.draft(topic, Message(id, message.payload, message.headers))


async def _publish_lines(origin: Origin, drafter: Drafter, request: Request) -> PublishResponse:
    stored: list[Appended] = []
    drafts: list[Draft] = []
    number = 1
    whole = origin.producer is not None
    try:
        async for line in _lines(request, origin.broker, whole=whole):
            if line.strip():
                drafts.append(_draft(drafter, origin.topic, _decode(line, several=False)[0]))
            if len(drafts) >= LINES_AT_ONCE and not whole:
                batch, drafts = drafts, []
                stored.append(await origin.store(batch))
            number += 1
        if drafts:
            stored.append(await origin.store(drafts))
    except BadRequest as error:
        if drafts and not whole:
            stored.append(await origin.store(drafts))
        raise type(error)(
            f"line {number}: {error.message} ({_count(stored)} lines before it are stored)"
        ) from None
    except (LogUnavailable, ShuttingDown) as error:
        if not stored:
            raise
        raise type(error)(
            f"{error.message} (the first {_count(stored)} messages of the body are stored)", **error.data
        ) from None
    if not stored:
        raise BadRequest("the body has no messages")
    return _response(origin.topic, stored, one=False, listed=False)


def _count(stored: Sequence[Appended]) -> int:
    return sum(len(appended.offsets) for appended in stored)


async def _lines(request: Request, broker: Broker, *, whole: bool) -> AsyncIterator[bytes]:
    """The lines of a body as they come in; only a body that must be stored whole is limited in length."""
    body_bytes_max, line_bytes_max = broker.settings.bulk_bytes_max, broker.frame_bytes_max
    # The parts of the line that has not ended yet.
    parts: list[bytes] = []
    size = length = 0
    async for data in request.stream():
        size += len(data)
        if whole and size > body_bytes_max:
            raise MessageTooLarge(f"a body with a producer has at most {body_bytes_max} bytes")
        part, *others = data.split(b"\n")
        parts.append(part)
        length += len(part)
        if others:
            yield b"".join(parts)
            for line in others[:-1]:
                yield line
            parts, length = others[-1:], len(others[-1])
        if length > line_bytes_max:
            raise MessageTooLarge(f"a line has at most {line_bytes_max} bytes")
    if length:
        yield b"".join(parts)


def _response(topic: str, stored: Sequence[Appended], *, one: bool, listed: bool) -> PublishResponse:
    offsets = [offset for appended in stored for offset in appended.offsets]
    # Of a batch that a producer sent before its latest one, only that it was stored is still known.
    known = [offset for offset in offsets if offset >= 0]
    return PublishResponse(
        topic=topic,
        epoch=stored[-1].epoch,
        count=len(offsets),
        duplicates=sum(appended.duplicates for appended in stored),
        offset=known[0] if one and known else None,
        offsets=offsets if listed and not one and known else None,
        first=min(known, default=None),
        last=max(known, default=None),
    )
