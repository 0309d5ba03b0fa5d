"""REST: reading a topic's records as JSON, NDJSON or Arrow, streamed in chunks whatever their number."""

from __future__ import annotations

import asyncio
import gc
import traceback
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from contextlib import aclosing, suppress
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, TypeVar

import msgspec
from fastapi import APIRouter, HTTPException, Query, Request
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from himalia.errors import BadRequest, EpochChanged, TopicNotFound
from himalia.log.api import Chunk, Log
from himalia.log.columnar import ColumnChunk
from himalia.protocol import encode
from himalia.pubsub.filters import Filter
from himalia.record import Record, format_ts, parse_ts
from himalia.server.auth import SECURITY, Caller, TheBroker, require_right
from himalia.server.context import Broker
from himalia.server.identity import Principal, Right
from himalia.server.rest.models import ErrorResponse, MessagesResponse
from himalia.server.rest.topics import ERRORS, NOT_FOUND, TopicName
from himalia.server.websocket.subscribing import compile_checked
from himalia.topics import check_name

if TYPE_CHECKING:
    from himalia.server.rest.arrow import ArrowStream


JSON = "application/json"
NDJSON = "application/x-ndjson"
ARROW = "application/vnd.apache.arrow.stream"
JSON_LIMIT = 1000
CHUNK_RECORDS = 5000
CHUNK_BYTES = 256 << 10
ARROW_BYTES = 4 << 20
SENT_BYTES = 256 << 10
"""What is sent of a long answer in one turn of the event loop: others publish and listen meanwhile."""

router = APIRouter(responses=ERRORS, tags=["messages"])


Pieces = AsyncGenerator[bytes | memoryview] | AsyncGenerator[bytes]


class ReaderResponse(StreamingResponse):
    """An answer that takes one of the server's places for readers until it is sent, or its reader is gone."""

    def __init__(
        self,
        broker: Broker,
        caller: Principal,
        pieces: Pieces,
        media_type: str,
    ) -> None:
        broker.admit_reader(caller)
        self._pieces = _freed_at_end(pieces)
        super().__init__(self._pieces, media_type=media_type)
        self._broker = broker
        self._caller = caller

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._broker.release_reader(self._caller)
            # By itself it would end only when the garbage collector finds it, with what it has read ahead.
            await self._pieces.aclose()


async def _freed_at_end(pieces: Pieces) -> AsyncGenerator[bytes | memoryview]:
    """These pieces. When they end early, nothing of them is kept.

    The error that ends a task group is part of a reference cycle, and the frames in its traceback have what they were
    working on: 4 MB for each reader, until the next full run of the garbage collector.
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
    """The records to read: from ``start`` up to, but not including, ``stop``."""

    topic: str
    epoch: str
    start: int
    stop: int
    first: int
    """The oldest that was kept when it was asked."""
    end: int
    """The topic's end when it was asked."""


@router.get(
    "/topics/{name}/messages",
    dependencies=SECURITY,
    response_class=StreamingResponse,
    responses={
        200: {
            "model": MessagesResponse,
            "description": "JSON by default; NDJSON or a stream of Arrow record batches by `Accept`.",
            "content": {
                NDJSON: {"schema": {"type": "string"}, "example": '{"offset":0,"ts":"...","message":{}}\n'},
                ARROW: {"schema": {"type": "string", "format": "binary"}},
            },
        },
        **NOT_FOUND,
        406: {"model": ErrorResponse, "description": "None of the media types in `Accept` is offered"},
        409: {"model": ErrorResponse, "description": "The topic has another epoch"},
        503: {"model": ErrorResponse, "description": "Too many readers"},
    },
)
async def read_messages(
    request: Request,
    broker: TheBroker,
    caller: Caller,
    name: str = TopicName,
    start: Annotated[int | None, Query(alias="from", description="First offset.", ge=0, lt=1 << 63)] = None,
    since: Annotated[str | None, Query(description="ISO 8601, or seconds since 1970.")] = None,
    last: Annotated[int | None, Query(description="The newest so many.", ge=0)] = None,
    limit: Annotated[
        int | None, Query(description="At most so many; 1000 for JSON by default.", ge=1)
    ] = None,
    epoch: Annotated[str | None, Query(description="Refuse if the topic has another epoch.")] = None,
    filter: Annotated[
        str | None,
        Query(description="CEL on message, headers, topic, offset; `limit` counts what it is asked about."),
    ] = None,
) -> StreamingResponse:
    """Read records that are stored. Begins at the oldest one kept unless told otherwise; ends at the end of now."""
    check_name(name, broker.settings.topic_length_max)
    await require_right(broker.log, caller, Right.SUBSCRIBE, name)
    if sum(given is not None for given in (start, since, last)) > 1:
        raise BadRequest("give one of from, since and last, not several")
    if last is not None and last > broker.settings.last_n_max:
        raise BadRequest(f"last is at most {broker.settings.last_n_max}")
    media_type, encoder = _choose(request.headers.get("accept", "*/*"))
    compiled = (
        None if filter is None else await compile_checked(filter, broker.settings, broker.manager.turns)
    )
    if compiled is not None and media_type != JSON:
        raise BadRequest(f"filter goes with {JSON}; accept that, or read without it")
    if media_type == JSON and limit is None:
        limit = JSON_LIMIT
    wanted = await _range(broker.log, name, start, since, last, limit, epoch)
    if compiled is not None:
        return ReaderResponse(broker, caller, _as_filtered_json(broker, wanted, compiled), media_type=JSON)
    if media_type == ARROW and not broker.has_arrow:
        await asyncio.to_thread(_load_arrow)
        broker.has_arrow = True
    return ReaderResponse(broker, caller, encoder(broker, wanted), media_type=media_type)


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
            raise BadRequest(f"since is ISO 8601 or seconds since 1970: {error}") from None
    elif last is not None:
        first = info.end - last
    else:
        first = start or 0
    first = max(first, info.first)
    # Beyond the end nothing is read, and ``next`` stays what was asked for: it waits, like a subscription.
    end = max(first, info.end)
    stop = end if limit is None else min(first + limit, end)
    return Range(name, info.epoch, first, stop, info.first, info.end)


async def chunks(log: Log, wanted: Range) -> AsyncIterator[Chunk]:
    """The range in pieces. Ends early if the topic goes away; skips what retention takes meanwhile."""
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


async def columns_in(log: Log, wanted: Range) -> AsyncIterator[ColumnChunk]:
    """The range in pieces of columns; otherwise as ``chunks``."""
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
        # Megabytes, which are not needed any more while what was made of them waits for a slow reader.
        del columns
        yield pieces.pop()


def stored(record: Record) -> bytes:
    """A record as REST shows it."""
    return b'{"offset":%d,"ts":"%b","message":{"id":%b,"payload":%b,"headers":%b}}' % (
        record.offset,
        format_ts(record.ts_us).encode(),
        encode(record.id),
        record.payload,
        record.headers,
    )


async def _join(broker: Broker, separator: bytes, records: Iterable[Record]) -> bytes:
    """These records as text. One answer at a time, and other work between two: of many answers that begin together,
    the first pieces would make one long turn of the event loop.
    """
    async with broker.formatting:
        await asyncio.sleep(0)
        return separator.join([stored(record) for record in records])


async def _as_json(broker: Broker, wanted: Range) -> AsyncGenerator[bytes]:
    yield b'{"messages":['
    separator, at, end = b"", wanted.start, wanted.end
    async for chunk in chunks(broker.log, wanted):
        yield separator + await _join(broker, b",", chunk.records)
        separator, at, end = b",", chunk.records[-1].offset + 1, chunk.end
    yield b'],"next":%d,"first":%d,"end":%d,"epoch":"%b"}' % (at, wanted.first, end, wanted.epoch.encode())


async def _as_filtered_json(broker: Broker, wanted: Range, filter: Filter) -> AsyncGenerator[bytes]:
    yield b'{"messages":['
    separator, at, end = b"", wanted.start, wanted.end
    failed, failure = 0, None
    async for chunk in chunks(broker.log, wanted):
        matched = await broker.manager.apply_filter(filter, chunk.records)
        if matched.passed:
            yield separator + await _join(broker, b",", matched.passed)
            separator = b","
        failed += matched.failed
        failure = failure or matched.failure
        at, end = chunk.records[-1].offset + 1, chunk.end
    yield b'],"next":%d,"first":%d,"end":%d,"epoch":"%b"' % (at, wanted.first, end, wanted.epoch.encode())
    if failure is not None:
        offset, error = failure
        yield b',"failed":' + encode({"count": failed, "offset": offset, "message": error.message})
    yield b"}"


async def _as_ndjson(broker: Broker, wanted: Range) -> AsyncGenerator[bytes]:
    async for chunk in chunks(broker.log, wanted):
        yield await _join(broker, b"\n", chunk.records) + b"\n"


def _load_arrow() -> None:
    """Import pyarrow: in a thread, because it takes 0.2 s, and without the garbage collector.

    It would walk again and again through what is being imported, and stop all threads each time.
    """
    gc.disable()
    try:
        import_module("himalia.server.rest.arrow")
    finally:
        gc.freeze()
        gc.enable()


def _as_arrow(broker: Broker, wanted: Range) -> AsyncGenerator[bytes | memoryview]:
    from himalia.server.rest.arrow import ArrowStream

    # Made before the answer begins, so that a missing library is an answer of its own.
    return _in_turns(one_ahead(_batches(ArrowStream(), broker, wanted)))


async def _batches(stream: ArrowStream, broker: Broker, wanted: Range) -> AsyncGenerator[bytes | memoryview]:
    yield stream.head()
    async for columns in columns_in(broker.log, wanted):
        # In a thread: it takes milliseconds, though little of that needs the interpreter.
        async with broker.encodings:
            batch = await asyncio.to_thread(stream.batch, wanted.topic, columns)
        del columns
        yield batch
    yield stream.tail()


async def _in_turns(pieces: AsyncGenerator[bytes | memoryview]) -> AsyncGenerator[bytes | memoryview]:
    async with aclosing(pieces):
        async for piece in pieces:
            for start in range(0, len(piece), SENT_BYTES):
                # A copy: the holder of a view, such as a socket that is full, keeps all of the piece.
                yield bytes(piece[start : start + SENT_BYTES])


MEDIA_TYPES_MAX = 50
"""Of a longer list in ``Accept`` only the beginning is looked at."""
Encoder = Callable[[Broker, Range], Pieces]
_OFFERED: dict[str, Encoder] = {JSON: _as_json, NDJSON: _as_ndjson, ARROW: _as_arrow}


def _choose(accept: str) -> tuple[str, Encoder]:
    """The first acceptable media type, by the client's preference and then by ours."""
    for wanted in _by_preference(accept):
        for offered, encoder in _OFFERED.items():
            if wanted in (offered, "*/*", offered.partition("/")[0] + "/*"):
                return offered, encoder
    raise HTTPException(406, f"offered are {', '.join(_OFFERED)}")


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


async def one_ahead(source: AsyncGenerator[T, None]) -> AsyncGenerator[T, None]:
    """What the source gives, of which the next is made while the last is still being sent. None ends it."""
    async with aclosing(source):
        making = asyncio.ensure_future(anext(source, None))
        try:
            while (made := await making) is not None:
                making = asyncio.ensure_future(anext(source, None))
                yield made
        finally:
            making.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await making
