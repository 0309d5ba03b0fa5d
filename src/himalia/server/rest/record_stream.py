"""Streams a range of a topic's records as JSON, NDJSON or Arrow, in chunks."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, TypeVar

import msgspec
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from himalia.errors import TopicNotFound
from himalia.log.api import Chunk, Log
from himalia.log.columnar import ColumnChunk
from himalia.protocol import encode, encode_record, models
from himalia.pubsub.filters import Filter
from himalia.record import Record
from himalia.server.context import ServerContext
from himalia.server.identity import Principal
from himalia.server.performance import import_without_collections
from himalia.server.rest.schema import JSON, NDJSON

if TYPE_CHECKING:
    from himalia.server.rest.arrow import ArrowStream

ARROW = "application/vnd.apache.arrow.stream"
CHUNK_RECORDS = 5000
CHUNK_BYTES = 256 << 10
ARROW_BYTES = 4 << 20
SENT_BYTES = 256 << 10
"""Bytes of a long response that are sent in one turn of the event loop, so that other requests make progress."""
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


async def _encode_records(context: ServerContext, separator: bytes, records: Iterable[Record]) -> bytes:
    """Encode records. One response at a time, with other work in between: if many responses began together, their
    first chunks would make one long turn of the event loop.
    """
    async with context.formatting:
        await asyncio.sleep(0)
        return separator.join([encode_record(record) for record in records])


_HEAD = b'{"messages":['


def _encode_tail(wanted: Range, at: int, end: int, failed: models.FilterFailures | None = None) -> bytes:
    """Encode a ``MessagesResponse`` behind its messages, which were streamed."""
    page = models.MessagesResponse(
        messages=[], next=at, first=wanted.first, end=end, epoch=wanted.epoch, failed=failed
    )
    return encode(page)[len(_HEAD) :]


async def _stream_json(context: ServerContext, wanted: Range) -> AsyncGenerator[bytes]:
    yield _HEAD
    separator, at, end = b"", wanted.start, wanted.end
    async for chunk in read_chunks(context.log, wanted):
        yield separator + await _encode_records(context, b",", chunk.records)
        separator, at, end = b",", chunk.records[-1].offset + 1, chunk.end
    yield _encode_tail(wanted, at, end)


async def stream_filtered_json(
    context: ServerContext, wanted: Range, filter: Filter
) -> AsyncGenerator[bytes]:
    yield _HEAD
    separator, at, end = b"", wanted.start, wanted.end
    failed, failure = 0, None
    async for chunk in read_chunks(context.log, wanted):
        matched = await context.manager.apply_filter(filter, chunk.records)
        if matched.passed:
            yield separator + await _encode_records(context, b",", matched.passed)
            separator = b","
        failed += matched.failed
        failure = failure or matched.failure
        at, end = chunk.records[-1].offset + 1, chunk.end
    if failure is None:
        yield _encode_tail(wanted, at, end)
    else:
        offset, error = failure
        yield _encode_tail(wanted, at, end, models.FilterFailures(failed, offset, error.message))


async def _stream_ndjson(context: ServerContext, wanted: Range) -> AsyncGenerator[bytes]:
    async for chunk in read_chunks(context.log, wanted):
        yield await _encode_records(context, b"\n", chunk.records) + b"\n"


def load_arrow() -> None:
    """Import pyarrow. Called in a thread, because it takes 0.2 s."""
    import_without_collections("himalia.server.rest.arrow")


def _stream_arrow(context: ServerContext, wanted: Range) -> AsyncGenerator[bytes | memoryview]:
    from himalia.server.rest.arrow import ArrowStream

    # Created before the response begins, so that a missing library gets an error response.
    return _slice_for_loop(prefetch(_encode_batches(ArrowStream(), context, wanted)))


async def _encode_batches(
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


Encoder = Callable[[ServerContext, Range], Pieces]
ENCODERS: dict[str, Encoder] = {JSON: _stream_json, NDJSON: _stream_ndjson, ARROW: _stream_arrow}
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
