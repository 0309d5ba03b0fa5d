"""The body of a publish request: one message, a list, or NDJSON, decoded in steps and stored in batches."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterable, Sequence

import msgspec
from fastapi import Request, Response

from himalia.errors import (
    BadRequest,
    BodyTimeout,
    LogUnavailable,
    MessageTooLarge,
    ShuttingDown,
    TooManyBodies,
)
from himalia.log.api import Appended, Batch
from himalia.ndjson import LineSplitter
from himalia.protocol import Message, models
from himalia.protocol.messages import DECODE_ERRORS, canonical_uuid, decode_error
from himalia.pubsub.time_slices import TimeSlices
from himalia.record import Draft
from himalia.server.context import ServerContext
from himalia.server.drafts import Drafter
from himalia.server.http.message_list import MessageList
from himalia.server.http.request_body import RequestBody, body_of
from himalia.server.identity import Principal
from himalia.server.rest.schema import (
    JSON,
    NDJSON,
    json_response,
)

EXPECTED = 'a message {"id"?, "payload", "headers"?} or a list of messages'
LINES_AT_ONCE = 1000
BYTES_AT_ONCE = 2 << 20
"""NDJSON is stored in batches of this many messages or bytes; with a producer it is stored as one batch."""
COUNTED_AT_ONCE = FREED_AT_ONCE = 1000
DRAFT_BYTES = 100
"""Memory of a draft in addition to its id, headers and payload."""
PIECE_BYTES = 64 << 10
"""Larger bodies are decoded in pieces of this size, with other work of the event loop in between."""
_decode_one = msgspec.json.Decoder(models.IncomingMessage).decode
_decode_list = msgspec.json.Decoder(list[models.IncomingMessage]).decode


class Drafts:
    """The drafts of one body, which may be a million; counts those that are stored as one batch."""

    def __init__(
        self, drafter: Drafter, topic: str, body: RequestBody, count_max: int, time_slices: TimeSlices
    ) -> None:
        self._drafter = drafter
        self._topic = topic
        self._body = body
        self._time_slices = time_slices
        self._count_max = count_max
        self.drafts: list[Draft] = []
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self.drafts)

    def add(self, message: models.IncomingMessage) -> None:
        id = str(uuid.uuid4()) if message.id is None else canonical_uuid(message.id)
        draft = self._drafter.draft(self._topic, Message(id, message.payload, message.headers))
        self.drafts.append(draft)
        self.size_bytes += draft.size_bytes
        count = len(self.drafts)
        if count > self._count_max:
            raise MessageTooLarge(f"a body that is stored atomically has at most {self._count_max} messages")
        if not count % COUNTED_AT_ONCE:
            self._body.reserve(self.size_bytes + DRAFT_BYTES * count)

    async def add_all(self, messages: Iterable[models.IncomingMessage]) -> None:
        for message in messages:
            self.add(message)
            await self._time_slices.checkpoint()

    @property
    def is_batch(self) -> bool:
        """Whether there are enough lines of NDJSON to store them."""
        return len(self.drafts) >= LINES_AT_ONCE or self.size_bytes >= BYTES_AT_ONCE

    def split_off(self) -> Drafts:
        """Move all drafts to a new object."""
        moved = Drafts(self._drafter, self._topic, self._body, self._count_max, self._time_slices)
        moved.drafts, self.drafts = self.drafts, moved.drafts
        moved.size_bytes, self.size_bytes = self.size_bytes, 0
        return moved

    async def free(self) -> None:
        """Free the memory in steps: freeing a million objects at once would stall the event loop."""
        while self.drafts:
            del self.drafts[-FREED_AT_ONCE:]
            await self._time_slices.checkpoint()


class Receipt:
    """Counts and offsets of the stored messages of one body."""

    def __init__(self) -> None:
        self.count = self._duplicates = 0
        self._epoch = ""
        self._first: int | None = None
        self._last: int | None = None
        self._offsets: Sequence[int] = ()
        """Of the batch that was added last."""

    def add(self, appended: Appended) -> None:
        self._epoch = appended.epoch
        self._offsets = appended.offsets
        self.count += len(appended.offsets)
        self._duplicates += appended.duplicates
        first, last = min(appended.offsets), max(appended.offsets)
        # Negative: a repeat of a producer's earlier batch, whose offsets are no longer known.
        if first >= 0:
            self._first = first if self._first is None else min(self._first, first)
            self._last = last if self._last is None else max(self._last, last)

    def to_response(self, topic: str, *, one: bool, listed: bool) -> Response:
        offsets = list(self._offsets) if listed and not one and self._first is not None else None
        return json_response(
            models.PublishResponse(
                topic=topic,
                epoch=self._epoch,
                count=self.count,
                duplicates=self._duplicates,
                offset=self._first if one else None,
                offsets=offsets,
                first=self._first,
                last=self._last,
            )
        )


class PublishTarget(msgspec.Struct, frozen=True):
    """The topic that a body is published to, and on which conditions."""

    context: ServerContext
    caller: Principal
    topic: str
    epoch: str | None
    producer: str | None
    sequence: int | None

    async def store(self, drafts: Drafts, *, may_wait: bool = False) -> Appended:
        """Append drafts. Beyond the caller's rate, raise ``RateLimited``, or wait if it ``may_wait``."""
        if self.context.draining:
            raise ShuttingDown("the server is shutting down; publish again when it has restarted")
        await self._enforce_rate(drafts, may_wait=may_wait)
        await self.context.wait_for_room()
        batch = Batch(self.topic, drafts.drafts, self.epoch, self.producer, self.sequence, self.caller.name)
        return await self.context.manager.publish(batch, drafts.size_bytes)

    async def _enforce_rate(self, drafts: Drafts, *, may_wait: bool) -> None:
        # Looked up each time: a caller's usage may be dropped and created again while its body arrives.
        while may_wait and (wait_s := self.context.usages.of(self.caller).publish_wait_s()):
            await asyncio.sleep(wait_s)
        usage = self.context.usages.of(self.caller)
        if usage.limits_publishing:
            usage.count_publish(len(drafts), drafts.size_bytes)


def has_ndjson(request: Request) -> bool:
    media_type = request.headers.get("content-type", JSON).partition(";")[0].strip().lower()
    if media_type in (NDJSON, "application/ndjson", "application/jsonl"):
        return True
    if media_type == JSON or media_type.endswith("+json"):
        return False
    raise BadRequest(f"content type {media_type!r} is neither {JSON} nor {NDJSON}")


async def read_json(context: ServerContext, drafts: Drafts, request: Request) -> bool:
    """Decode a JSON body to drafts. Returns whether it was one message rather than a list."""
    body_of(request.scope).set_limit(
        context.settings.bulk_bytes_max, "; send NDJSON without a producer instead"
    )
    text, several = bytearray(), False
    messages = MessageList(decode_messages, 2 * context.frame_bytes_max)
    async for data in request.stream():
        for at in range(0, len(data), PIECE_BYTES):
            piece = data[at : at + PIECE_BYTES]
            if not several:
                text += piece
                several = len(text) > PIECE_BYTES and text.lstrip()[:1] == b"["
                if len(text) > context.frame_bytes_max and not several:
                    raise MessageTooLarge(f"a message has at most {context.frame_bytes_max} bytes, as JSON")
                if not several:
                    continue
                piece = bytes(text)
                text.clear()
            # Finding where messages end takes time too, even if there are few.
            await context.manager.time_slices.checkpoint()
            await drafts.add_all(messages.feed(piece))
    if several:
        await drafts.add_all(messages.finish())
    elif several := text.lstrip()[:1] == b"[":
        await drafts.add_all(decode_messages(bytes(text)))
    else:
        drafts.add(_decode_message(bytes(text)))
    return not several


def _decode_message(text: bytes, subject: str = "the body") -> models.IncomingMessage:
    try:
        text.decode()
        return _decode_one(text)
    except DECODE_ERRORS as error:
        raise decode_error(error, subject, EXPECTED) from None


def decode_messages(text: bytes) -> list[models.IncomingMessage]:
    try:
        text.decode()
        return _decode_list(text)
    except DECODE_ERRORS as error:
        raise decode_error(error, "the body", EXPECTED) from None


async def publish_lines(target: PublishTarget, drafts: Drafts, request: Request) -> Response:
    receipt = Receipt()
    number, time_slices = 1, target.context.manager.time_slices
    is_atomic, body = target.producer is not None, body_of(request.scope)
    try:
        async for line in _lines(request, target.context, is_atomic=is_atomic):
            if line.strip():
                drafts.add(_decode_message(line, "it"))
            if drafts and not is_atomic and (drafts.is_batch or body.should_store):
                receipt.add(await target.store(drafts.split_off(), may_wait=receipt.count > 0))
                body.restart_timeout()
            number += 1
            await time_slices.checkpoint()
        if drafts:
            receipt.add(await target.store(drafts, may_wait=receipt.count > 0))
            await drafts.free()
    except BadRequest as error:
        if drafts and not is_atomic:
            receipt.add(await target.store(drafts, may_wait=receipt.count > 0))
        raise type(error)(
            f"line {number}: {error.message} ({receipt.count} lines before it are stored)"
        ) from None
    except (LogUnavailable, ShuttingDown, BodyTimeout, TooManyBodies) as error:
        if not receipt.count:
            raise
        raise type(error)(
            f"{error.message} (the first {receipt.count} messages of the body are stored)", **error.data
        ) from None
    if not receipt.count:
        raise BadRequest("the body has no messages")
    return receipt.to_response(target.topic, one=False, listed=False)


async def _lines(request: Request, context: ServerContext, *, is_atomic: bool) -> AsyncIterator[bytes]:
    """Yield the lines of a body as it arrives; only a body that is stored atomically is limited in length."""
    line_bytes_max = context.frame_bytes_max
    if is_atomic:
        body_of(request.scope).set_limit(context.settings.bulk_bytes_max, " if it has a producer")
    else:
        body_of(request.scope).set_streaming(BYTES_AT_ONCE)
    splitter = LineSplitter()
    async for data in request.stream():
        for line in splitter.feed(data):
            yield line
        if splitter.pending_bytes > line_bytes_max:
            raise MessageTooLarge(f"a line has at most {line_bytes_max} bytes")
    for line in splitter.finish():
        yield line
