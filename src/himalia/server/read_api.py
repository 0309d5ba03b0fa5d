"""REST: reading a topic's records as JSON, NDJSON or Arrow, streamed in chunks whatever their number."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated

import msgspec
from fastapi import APIRouter, HTTPException, Query, Request
from fastapi.responses import StreamingResponse

from himalia.errors import BadRequest, EpochChanged, TopicNotFound
from himalia.log.columns import Columns
from himalia.log.contract import Chunk, Log
from himalia.protocol import encode
from himalia.record import Record, format_ts, parse_ts
from himalia.server.access import SECURITY, Caller, TheBroker
from himalia.server.ahead import one_ahead
from himalia.server.models import ErrorResponse, MessagesResponse
from himalia.server.topics_api import ERRORS, NOT_FOUND, TopicName
from himalia.server.trust import Right
from himalia.topics import check_name

if TYPE_CHECKING:
    from himalia.server.arrow import ArrowStream

JSON = "application/json"
NDJSON = "application/x-ndjson"
ARROW = "application/vnd.apache.arrow.stream"
JSON_LIMIT = 1000
CHUNK_RECORDS = 5000
CHUNK_BYTES = 1 << 20
ARROW_BYTES = 4 << 20
SENT_BYTES = 256 << 10
"""What is sent of a long answer in one turn of the event loop: others publish and listen meanwhile."""

router = APIRouter(responses=ERRORS, tags=["messages"])


class Range(msgspec.Struct, frozen=True):
    """The records to read: from ``start`` up to, but not including, ``stop``."""

    topic: str
    epoch: str
    start: int
    stop: int
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
) -> StreamingResponse:
    """Read records that are stored. Begins at the oldest one kept unless told otherwise; ends at the end of now."""
    check_name(name, broker.settings.topic_length_max)
    caller.require(Right.SUBSCRIBE, name)
    if sum(given is not None for given in (start, since, last)) > 1:
        raise BadRequest("give one of from, since and last, not several")
    if last is not None and last > broker.settings.last_n_max:
        raise BadRequest(f"last is at most {broker.settings.last_n_max}")
    media_type, encoder = _choose(request.headers.get("accept", "*/*"))
    if media_type == JSON and limit is None:
        limit = JSON_LIMIT
    wanted = await _range(broker.log, name, start, since, last, limit, epoch)
    return StreamingResponse(encoder(broker.log, wanted), media_type=media_type)


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
    first = min(max(first, info.first), info.end)
    stop = info.end if limit is None else min(first + limit, info.end)
    return Range(name, info.epoch, first, stop, info.end)


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


async def columns_in(log: Log, wanted: Range) -> AsyncIterator[Columns]:
    """The range in pieces of columns; otherwise as ``chunks``."""
    at = wanted.start
    while at < wanted.stop:
        try:
            columns = await log.read_columns(wanted.topic, at, wanted.stop, bytes_max=ARROW_BYTES)
        except TopicNotFound:
            return
        if columns.epoch != wanted.epoch or not len(columns):
            return
        yield columns
        at = columns.stop


def stored(record: Record) -> bytes:
    """A record as REST shows it."""
    return b'{"offset":%d,"ts":"%b","message":{"id":%b,"payload":%b,"headers":%b}}' % (
        record.offset,
        format_ts(record.ts_us).encode(),
        encode(record.id),
        record.payload,
        record.headers,
    )


async def _as_json(log: Log, wanted: Range) -> AsyncIterator[bytes]:
    yield b'{"messages":['
    separator, at, end = b"", wanted.start, wanted.end
    async for chunk in chunks(log, wanted):
        yield separator + b",".join(stored(record) for record in chunk.records)
        separator, at, end = b",", chunk.records[-1].offset + 1, chunk.end
    yield b'],"next":%d,"end":%d,"epoch":"%b"}' % (at, end, wanted.epoch.encode())


async def _as_ndjson(log: Log, wanted: Range) -> AsyncIterator[bytes]:
    async for chunk in chunks(log, wanted):
        yield b"".join(stored(record) + b"\n" for record in chunk.records)


def _as_arrow(log: Log, wanted: Range) -> AsyncIterator[bytes | memoryview]:
    from himalia.server.arrow import ArrowStream

    # Made before the answer begins, so that a missing library is an answer of its own.
    return _in_turns(one_ahead(_batches(ArrowStream(), log, wanted)))


async def _batches(stream: ArrowStream, log: Log, wanted: Range) -> AsyncGenerator[bytes | memoryview]:
    yield stream.head()
    async for columns in columns_in(log, wanted):
        # In a thread: it takes milliseconds, though little of that needs the interpreter.
        yield await asyncio.to_thread(stream.batch, wanted.topic, columns)
    yield stream.tail()


async def _in_turns(pieces: AsyncGenerator[bytes | memoryview, None]) -> AsyncIterator[bytes | memoryview]:
    async with aclosing(pieces):
        async for piece in pieces:
            for start in range(0, len(piece), SENT_BYTES):
                yield piece[start : start + SENT_BYTES]


Encoder = Callable[[Log, Range], AsyncIterator[bytes | memoryview] | AsyncIterator[bytes]]
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
    for part in accept.split(","):
        media_type, *parameters = [piece.strip().lower() for piece in part.split(";")]
        quality = next((piece[2:] for piece in parameters if piece.startswith("q=")), "1")
        try:
            ranked.append((float(quality), media_type))
        except ValueError:
            continue
    return [media_type for quality, media_type in sorted(ranked, key=lambda pair: -pair[0]) if quality > 0]
