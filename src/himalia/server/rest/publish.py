"""REST: publishing one message, a list, or a stream of lines."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Query, Request, Response

from himalia.errors import (
    BadRequest,
    BodyTimeout,
    HimaliaError,
    LogUnavailable,
    MessageTooLarge,
    ShuttingDown,
    TooManyBodies,
)
from himalia.log.api import Appended, Batch
from himalia.protocol import Message, encode
from himalia.protocol.messages import canonical_uuid
from himalia.pubsub.turns import Turns
from himalia.record import Draft
from himalia.server.auth import SECURITY, Caller, TheBroker
from himalia.server.context import Broker
from himalia.server.drafts import Drafter
from himalia.server.http.message_list import MessageList
from himalia.server.http.request_body import RequestBody, body_of
from himalia.server.identity import Principal
from himalia.server.rest.models import ErrorResponse, PublishBody, PublishResponse
from himalia.server.rest.topics import ERRORS, NOT_FOUND, TopicName

NDJSON = "application/x-ndjson"
LINES_AT_ONCE = 1000
BYTES_AT_ONCE = 2 << 20
"""How much of NDJSON is stored together, unless a producer wants all of it to be."""
COUNTED_AT_ONCE = FREED_AT_ONCE = 1000
DRAFT_BYTES = 100
"""What Python needs for a draft beside what is in it."""
PIECE_BYTES = 64 << 10
"""How much of a body is decoded in one go: a larger one takes turns with everything else."""

router = APIRouter(responses=ERRORS, tags=["messages"])


class Published(msgspec.Struct):
    """A message as REST takes it: bare, its id optional."""

    payload: msgspec.Raw
    id: str | None = None
    headers: dict[str, str] | None = None


_decoder_of_one = msgspec.json.Decoder(Published)
_decoder_of_many = msgspec.json.Decoder(list[Published])
_UNDECODABLE = (msgspec.MsgspecError, ValueError, RecursionError)

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
    response_model=PublishResponse,
    responses={
        **NOT_FOUND,
        409: {"model": ErrorResponse, "description": "The topic has another epoch"},
        413: {"model": ErrorResponse, "description": "The message or the body is too large"},
        429: {
            "model": ErrorResponse,
            "description": "The caller publishes more, or names more producers, than it may",
        },
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
) -> Response:
    """Publish a message, a list of them (stored together or not at all), or NDJSON, one message a line.

    NDJSON is stored as it comes in, so that a body can be of any length; if a line is wrong, the error names it
    and the lines before it are stored. With `producer` and `sequence` the body is stored whole and exactly once.
    """
    if (producer is None) != (sequence is None):
        raise BadRequest("producer and sequence go together")
    drafter = Drafter(broker.settings, caller)
    drafter.check_topic(name)
    is_ndjson = _is_ndjson(request)
    streams = is_ndjson and producer is None
    count_max = LINES_AT_ONCE if streams else broker.settings.bulk_messages_max
    drafts = Drafts(drafter, name, body_of(request.scope), count_max, broker.manager.turns)
    origin = Origin(broker, caller, name, epoch, producer, sequence)
    if is_ndjson:
        return await _publish_lines(origin, drafts, request)
    try:
        one = await _read_json(broker, drafts, request)
    except HimaliaError:
        await drafts.free()
        raise
    if not drafts:
        raise BadRequest("the list is empty")
    stored = Stored()
    stored.add(await origin.store(drafts))
    await drafts.free()
    return stored.response(name, one=one, listed=True)


class Drafts:
    """Drafts of one body, of which there may be a million. Those that are to be stored together are counted."""

    def __init__(self, drafter: Drafter, topic: str, body: RequestBody, count_max: int, turns: Turns) -> None:
        self._drafter = drafter
        self._topic = topic
        self._body = body
        self._turns = turns
        self._count_max = count_max
        self.drafts: list[Draft] = []
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self.drafts)

    def add(self, message: Published) -> None:
        id = str(uuid.uuid4()) if message.id is None else canonical_uuid(message.id)
        draft = self._drafter.draft(self._topic, Message(id, message.payload, message.headers))
        self.drafts.append(draft)
        self.size_bytes += draft.size_bytes
        count = len(self.drafts)
        if count > self._count_max:
            raise MessageTooLarge(f"a body that is stored as a whole has at most {self._count_max} messages")
        if not count % COUNTED_AT_ONCE:
            self._body.keep(self.size_bytes + DRAFT_BYTES * count)

    async def add_all(self, messages: Iterable[Published]) -> None:
        for message in messages:
            self.add(message)
            await self._turns.give_way()

    @property
    def is_batch(self) -> bool:
        """Whether these are enough of NDJSON to be stored together."""
        return len(self.drafts) >= LINES_AT_ONCE or self.size_bytes >= BYTES_AT_ONCE

    def take(self) -> Drafts:
        """What is here, leaving nothing."""
        taken = Drafts(self._drafter, self._topic, self._body, self._count_max, self._turns)
        taken.drafts, self.drafts = self.drafts, taken.drafts
        taken.size_bytes, self.size_bytes = self.size_bytes, 0
        return taken

    async def free(self) -> None:
        """Give their memory back in turns: a million objects at one stroke take a while."""
        while self.drafts:
            del self.drafts[-FREED_AT_ONCE:]
            await self._turns.give_way()


class Stored:
    """What became of the messages of one body, of which NDJSON may have any number."""

    def __init__(self) -> None:
        self.count = self._duplicates = 0
        self._epoch = ""
        self._first: int | None = None
        self._last: int | None = None
        self._offsets: Sequence[int] = ()
        """Of what was added last."""

    def add(self, appended: Appended) -> None:
        self._epoch = appended.epoch
        self._offsets = appended.offsets
        self.count += len(appended.offsets)
        self._duplicates += appended.duplicates
        first, last = min(appended.offsets), max(appended.offsets)
        # Of a batch that a producer sent before its latest one, only that it was stored is still known.
        if first >= 0:
            self._first = first if self._first is None else min(self._first, first)
            self._last = last if self._last is None else max(self._last, last)

    def response(self, topic: str, *, one: bool, listed: bool) -> Response:
        answer = {
            "topic": topic,
            "epoch": self._epoch,
            "count": self.count,
            "duplicates": self._duplicates,
            "offset": self._first if one else None,
            "offsets": list(self._offsets) if listed and not one and self._first is not None else None,
            "first": self._first,
            "last": self._last,
        }
        # Not by way of the model, which would take seconds for a million offsets.
        given = {name: value for name, value in answer.items() if value is not None}
        return Response(encode(given), media_type="application/json")


class Origin(msgspec.Struct, frozen=True):
    """Where a body goes, and under which conditions."""

    broker: Broker
    caller: Principal
    topic: str
    epoch: str | None
    producer: str | None
    sequence: int | None

    async def store(self, drafts: Drafts, *, may_wait: bool = False) -> Appended:
        """Store drafts. Beyond the caller's rate ``RateLimited``, or later if it ``may_wait``."""
        if self.broker.draining:
            raise ShuttingDown("the server is shutting down and takes no more; publish again in a moment")
        await self._count(drafts, may_wait=may_wait)
        await self.broker.until_admitted()
        batch = Batch(self.topic, drafts.drafts, self.epoch, self.producer, self.sequence, self.caller.name)
        return await self.broker.manager.publish(batch, drafts.size_bytes)

    async def _count(self, drafts: Drafts, *, may_wait: bool) -> None:
        # Looked up each time: a caller's usage may be forgotten and made again while a body is being received.
        while may_wait and (wait_s := self.broker.usages.of(self.caller).publish_wait_s()):
            await asyncio.sleep(wait_s)
        usage = self.broker.usages.of(self.caller)
        if usage.limits_publishing:
            usage.publish(len(drafts), drafts.size_bytes)


def _is_ndjson(request: Request) -> bool:
    media_type = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if media_type in (NDJSON, "application/ndjson", "application/jsonl"):
        return True
    if media_type == "application/json" or media_type.endswith("+json"):
        return False
    raise BadRequest(f"content type {media_type!r} is neither application/json nor {NDJSON}")


async def _read_json(broker: Broker, drafts: Drafts, request: Request) -> bool:
    """Make drafts of a JSON body; says whether it was one message and not a list."""
    body_of(request.scope).allow(broker.settings.bulk_bytes_max, "; send NDJSON without a producer instead")
    text, several = bytearray(), False
    messages = MessageList(_decode_many, 2 * broker.frame_bytes_max)
    async for data in request.stream():
        for at in range(0, len(data), PIECE_BYTES):
            piece = data[at : at + PIECE_BYTES]
            if not several:
                text += piece
                several = len(text) > PIECE_BYTES and text.lstrip()[:1] == b"["
                if len(text) > broker.frame_bytes_max and not several:
                    raise MessageTooLarge(f"a message has at most {broker.frame_bytes_max} bytes, as JSON")
                if not several:
                    continue
                piece = bytes(text)
                text.clear()
            # Finding where messages end is work too, however few of them there are.
            await broker.manager.turns.give_way()
            await drafts.add_all(messages.feed(piece))
    if several:
        await drafts.add_all(messages.finish())
    elif several := text.lstrip()[:1] == b"[":
        await drafts.add_all(_decode_many(bytes(text)))
    else:
        drafts.add(_decode(bytes(text)))
    return not several


def _decode(text: bytes) -> Published:
    try:
        text.decode()
        return _decoder_of_one.decode(text)
    except _UNDECODABLE as error:
        raise _bad_request(error) from None


def _decode_many(text: bytes) -> list[Published]:
    try:
        text.decode()
        return _decoder_of_many.decode(text)
    except _UNDECODABLE as error:
        raise _bad_request(error) from None


def _bad_request(error: Exception) -> BadRequest:
    if isinstance(error, UnicodeDecodeError):
        return BadRequest(f"the body is not UTF-8 at byte {error.start}")
    if isinstance(error, RecursionError):
        return BadRequest("the body is nested too deeply")
    return BadRequest(f'not a message {{"id"?, "payload", "headers"?}}: {error}')


async def _publish_lines(origin: Origin, drafts: Drafts, request: Request) -> Response:
    stored = Stored()
    number, turns = 1, origin.broker.manager.turns
    whole, body = origin.producer is not None, body_of(request.scope)
    try:
        async for line in _lines(request, origin.broker, whole=whole):
            if line.strip():
                drafts.add(_decode(line))
            if drafts and not whole and (drafts.is_batch or body.should_store):
                stored.add(await origin.store(drafts.take(), may_wait=stored.count > 0))
                body.stored()
            number += 1
            await turns.give_way()
        if drafts:
            stored.add(await origin.store(drafts, may_wait=stored.count > 0))
            await drafts.free()
    except BadRequest as error:
        if drafts and not whole:
            stored.add(await origin.store(drafts, may_wait=stored.count > 0))
        raise type(error)(
            f"line {number}: {error.message} ({stored.count} lines before it are stored)"
        ) from None
    except (LogUnavailable, ShuttingDown, BodyTimeout, TooManyBodies) as error:
        if not stored.count:
            raise
        raise type(error)(
            f"{error.message} (the first {stored.count} messages of the body are stored)", **error.data
        ) from None
    if not stored.count:
        raise BadRequest("the body has no messages")
    return stored.response(origin.topic, one=False, listed=False)


async def _lines(request: Request, broker: Broker, *, whole: bool) -> AsyncIterator[bytes]:
    """The lines of a body as they come in; only a body that must be stored whole is limited in length."""
    line_bytes_max = broker.frame_bytes_max
    if whole:
        body_of(request.scope).allow(broker.settings.bulk_bytes_max, " if it has a producer")
    else:
        body_of(request.scope).stream(BYTES_AT_ONCE)
    # The parts of the line that has not ended yet.
    parts: list[bytes] = []
    length = 0
    async for data in request.stream():
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
