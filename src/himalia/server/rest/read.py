"""REST: reading a topic's records as JSON, NDJSON or Arrow, streamed in chunks."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Annotated, TypeVar

import msgspec
from fastapi import APIRouter, HTTPException, Query, Request
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from himalia.errors import BadRequest, EpochChanged, TopicNotFound
from himalia.log.api import Chunk, Log
from himalia.log.columnar import ColumnChunk
from himalia.protocol import encode, encode_record, models
from himalia.pubsub.filters import Filter
from himalia.record import Record, parse_ts
from himalia.server.auth import SECURITY, Caller, Context, require_right
from himalia.server.context import ServerContext
from himalia.server.identity import Principal, Right
from himalia.server.performance import import_without_collections
from himalia.server.rest.schema import JSON, errors, model_of
from himalia.server.rest.topics import ERRORS, NOT_FOUND, TopicName
from himalia.server.websocket.subscription_request import compile_limited_filter
from himalia.topics import check_name

if TYPE_CHECKING:
    from himalia.server.rest.arrow import ArrowStream


NDJSON = "application/x-ndjson"
ARROW = "application/vnd.apache.arrow.stream"
JSON_LIMIT = 1000
CHUNK_RECORDS = 5000
CHUNK_BYTES = 256 << 10
ARROW_BYTES = 4 << 20
SENT_BYTES = 256 << 10
"""Bytes of a long response that are sent in one turn of the event loop, so that other requests make progress."""

router = APIRouter(responses=ERRORS, tags=["messages"])


Pieces = AsyncGenerator[bytes | memoryview] | AsyncGenerator[bytes]


class ReaderResponse(StreamingResponse):
    """A response that occupies one of the server's reader slots until it is sent or its reader disconnects."""

    def __init__(
        self,
        context: ServerContext,
        caller: Principal,
        pieces: Pieces,
        media_type: str,
    ) -> None:
        context.admit_reader(caller)
        self._pieces = _release_at_end(pieces)
        super().__init__(self._pieces, media_type=media_type)
        self._context = context
        self._caller = caller

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._context.release_reader(self._caller)
            # Otherwise it would end, and free what it has read ahead, only when the garbage collector finds it.
            await self._pieces.aclose()


async def _release_at_end(pieces: Pieces) -> AsyncGenerator[bytes | memoryview]:
    """Yield the pieces, and keep no reference to them if the response ends early.

    The exception that cancels a task group is part of a reference cycle. The frames of its traceback would keep 4 MB
    for each reader until the next full garbage collection.
    """
    piece: bytes | memoryview = b""
    try:
        async with aclosing(pieces):
            async for piece in pieces:
                yield piece
    except BaseException as error:
        piece = b""
        traceback.clear_frames(error.__traceback__)
        raise


class Range(msgspec.Struct, frozen=True):
    """The records to read: offsets ``start`` to ``stop - 1``."""

    topic: str
    epoch: str
    start: int
    stop: int
    first: int
    """The oldest stored offset at the time of the request."""
    end: int
    """The topic's end at the time of the request."""


@router.get(
    "/topics/{name}/messages",
    dependencies=SECURITY,
    response_class=StreamingResponse,
    responses={
        200: {
            "model": model_of(models.MessagesResponse),
            "description": "JSON by default; by `Accept` also NDJSON or a stream of Arrow record batches.",
            "content": {
                NDJSON: {"schema": {"type": "string"}, "example": '{"offset":0,"ts":"...","message":{}}\n'},
                ARROW: {"schema": {"type": "string", "format": "binary"}},
            },
        },
        **NOT_FOUND,
        **errors(
            {
                406: "The server offers none of the media types in `Accept`",
                409: "The topic has another epoch",
                503: "Too many readers",
            }
        ),
    },
)
async def read_messages(
    request: Request,
    context: Context,
    caller: Caller,
    name: str = TopicName,
    start: Annotated[int | None, Query(alias="from", description="First offset.", ge=0, lt=1 << 63)] = None,
    since: Annotated[str | None, Query(description="ISO 8601, or seconds since 1970.")] = None,
    last: Annotated[int | None, Query(description="Read the newest records, this many.", ge=0)] = None,
    limit: Annotated[
        int | None, Query(description="Most records to return; 1000 for JSON by default.", ge=1)
    ] = None,
    epoch: Annotated[
        str | None, Query(description="Refuse the request if the topic has another epoch.")
    ] = None,
    filter: Annotated[
        str | None,
        Query(
            description="CEL on message, headers, topic, offset; `limit` counts the records it is applied to."
        ),
    ] = None,
) -> StreamingResponse:
    """Read stored records, by default from the oldest, up to the current end of the topic."""
    check_name(name, context.settings.topic_length_max)
    await require_right(context.log, caller, Right.SUBSCRIBE, name)
    if sum(given is not None for given in (start, since, last)) > 1:
        raise BadRequest("give only one of `from`, `since` and `last`")
    if last is not None and last > context.settings.last_n_max:
        raise BadRequest(f"`last` must be at most {context.settings.last_n_max}")
    media_type, encoder = _negotiate(request.headers.get("accept", "*/*"))
    compiled = (
        None
        if filter is None
        else await compile_limited_filter(filter, context.settings, context.manager.time_slices)
    )
    if compiled is not None and media_type != JSON:
        raise BadRequest(f"`filter` requires {JSON}; accept that, or read without a filter")
    if media_type == JSON and limit is None:
        limit = JSON_LIMIT
    wanted = await _range(context.log, name, start, since, last, limit, epoch)
    if compiled is not None:
        return ReaderResponse(context, caller, _as_filtered_json(context, wanted, compiled), media_type=JSON)
    if media_type == ARROW and not context.has_arrow:
        await asyncio.to_thread(_load_arrow)
        context.has_arrow = True
    return ReaderResponse(context, caller, encoder(context, wanted), media_type=media_type)


async def _range(
    log: Log,
    name: str,
    start: int | None,
    since: str | None,
    last: int | None,
    limit: int | None,
    epoch: str | None,
) -> Range:
    info = await log.info(name)
    if epoch is not None and epoch != info.epoch:
        raise EpochChanged(name, epoch, info.epoch)
    if since is not None:
        try:
            first = await log.offset_at(name, parse_ts(since))
        except (ValueError, OverflowError) as error:
            raise BadRequest(f"`since` must be ISO 8601 or seconds since 1970: {error}") from None
    elif last is not None:
        first = info.end - last
    else:
        first = start or 0
    first = max(first, info.first)
    # Beyond the end nothing is read, and ``next`` is the offset of the request: as a subscription, it waits.
    end = max(first, info.end)
    stop = end if limit is None else min(first + limit, end)
    return Range(name, info.epoch, first, stop, info.first, info.end)


async def read_chunks(log: Log, wanted: Range) -> AsyncIterator[Chunk]:
    """Yield the range in chunks. Ends early if the topic is deleted; skips what retention deletes meanwhile."""
    at = wanted.start
    while at < wanted.stop:
        limit = min(CHUNK_RECORDS, wanted.stop - at)
        try:
            chunk = await log.read(wanted.topic, at, limit=limit, bytes_max=CHUNK_BYTES)
        except TopicNotFound:
            return
        if chunk.epoch != wanted.epoch or not chunk.records:
            return
        records = [record for record in chunk.records if record.offset < wanted.stop]
        if records:
            yield Chunk(records, chunk.first, chunk.end, chunk.epoch)
        at = chunk.records[-1].offset + 1


async def read_column_chunks(log: Log, wanted: Range) -> AsyncIterator[ColumnChunk]:
    """Yield the range in columnar chunks; otherwise as ``read_chunks``."""
    at = wanted.start
    while at < wanted.stop:
        try:
            columns = await log.read_columns(wanted.topic, at, wanted.stop, bytes_max=ARROW_BYTES)
        except TopicNotFound:
            return
        if columns.epoch != wanted.epoch or not len(columns):
            return
        at = columns.stop
        pieces = [columns]
        # The generator keeps no reference: the megabytes are free while a slow reader takes the encoded batch.
        del columns
        yield pieces.pop()


async def _join(context: ServerContext, separator: bytes, records: Iterable[Record]) -> bytes:
    """Encode records. One response at a time, with other work in between: if many responses began together, their
    first chunks would make one long turn of the event loop.
    """
    async with context.formatting:
        await asyncio.sleep(0)
        return separator.join([encode_record(record) for record in records])


_HEAD = b'{"messages":['


def _tail(wanted: Range, at: int, end: int, failed: models.FilterFailures | None = None) -> bytes:
    """Encode a ``MessagesResponse`` behind its messages, which were streamed."""
    page = models.MessagesResponse(
        messages=[], next=at, first=wanted.first, end=end, epoch=wanted.epoch, failed=failed
    )
    return encode(page)[len(_HEAD) :]


async def _as_json(context: ServerContext, wanted: Range) -> AsyncGenerator[bytes]:
    yield _HEAD
    separator, at, end = b"", wanted.start, wanted.end
    async for chunk in read_chunks(context.log, wanted):
        yield separator + await _join(context, b",", chunk.records)
        separator, at, end = b",", chunk.records[-1].offset + 1, chunk.end
    yield _tail(wanted, at, end)


async def _as_filtered_json(context: ServerContext, wanted: Range, filter: Filter) -> AsyncGenerator[bytes]:
    yield _HEAD
    separator, at, end = b"", wanted.start, wanted.end
    failed, failure = 0, None
    async for chunk in read_chunks(context.log, wanted):
        matched = await context.manager.apply_filter(filter, chunk.records)
        if matched.passed:
            yield separator + await _join(context, b",", matched.passed)
            separator = b","
        failed += matched.failed
        failure = failure or matched.failure
        at, end = chunk.records[-1].offset + 1, chunk.end
    if failure is None:
        yield _tail(wanted, at, end)
    else:
        offset, error = failure
        yield _tail(wanted, at, end, models.FilterFailures(failed, offset, error.message))


async def _as_ndjson(context: ServerContext, wanted: Range) -> AsyncGenerator[bytes]:
    async for chunk in read_chunks(context.log, wanted):
        yield await _join(context, b"\n", chunk.records) + b"\n"


def _load_arrow() -> None:
    """Import pyarrow. Called in a thread, because it takes 0.2 s."""
    import_without_collections("himalia.server.rest.arrow")


def _as_arrow(context: ServerContext, wanted: Range) -> AsyncGenerator[bytes | memoryview]:
    from himalia.server.rest.arrow import ArrowStream

    # Created before the response begins, so that a missing library gets an error response.
    return _slice_for_loop(prefetch(_batches(ArrowStream(), context, wanted)))


async def _batches(
    stream: ArrowStream, context: ServerContext, wanted: Range
) -> AsyncGenerator[bytes | memoryview]:
    yield stream.head()
    async for columns in read_column_chunks(context.log, wanted):
        # In a thread: it takes milliseconds, most of them without the GIL.
        async with context.encodings:
            batch = await asyncio.to_thread(stream.batch, wanted.topic, columns)
        del columns
        yield batch
    yield stream.tail()


async def _slice_for_loop(pieces: AsyncGenerator[bytes | memoryview]) -> AsyncGenerator[bytes | memoryview]:
    async with aclosing(pieces):
        async for piece in pieces:
            for start in range(0, len(piece), SENT_BYTES):
                # A copy: a view, held by a full socket, would keep the whole piece in memory.
                yield bytes(piece[start : start + SENT_BYTES])


MEDIA_TYPES_MAX = 50
"""Media types of an ``Accept`` header that are considered."""
Encoder = Callable[[ServerContext, Range], Pieces]
_OFFERED: dict[str, Encoder] = {JSON: _as_json, NDJSON: _as_ndjson, ARROW: _as_arrow}


def _negotiate(accept: str) -> tuple[str, Encoder]:
    """Choose a media type by the client's preference, then by the order of ``_OFFERED``."""
    for wanted in _by_preference(accept):
        for offered, encoder in _OFFERED.items():
            if wanted in (offered, "*/*", offered.partition("/")[0] + "/*"):
                return offered, encoder
    raise HTTPException(406, f"the server offers {', '.join(_OFFERED)}")


def _by_preference(accept: str) -> Iterable[str]:
    ranked: list[tuple[float, str]] = []
    for part in accept.split(",", MEDIA_TYPES_MAX)[:MEDIA_TYPES_MAX]:
        media_type, *parameters = [piece.strip().lower() for piece in part.split(";")]
        quality = next((piece[2:] for piece in parameters if piece.startswith("q=")), "1")
        try:
            ranked.append((float(quality), media_type))
        except ValueError:
            continue
    return [media_type for quality, media_type in sorted(ranked, key=lambda pair: -pair[0]) if quality > 0]


T = TypeVar("T")


async def prefetch(source: AsyncGenerator[T, None]) -> AsyncGenerator[T, None]:
    """Yield from ``source``, computing one item ahead of the consumer. ``source`` never yields None."""
    async with aclosing(source):
        upcoming = asyncio.ensure_future(anext(source, None))
        try:
            while (item := await upcoming) is not None:
                upcoming = asyncio.ensure_future(anext(source, None))
                yield item
        finally:
            upcoming.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await upcoming
