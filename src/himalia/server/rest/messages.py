"""REST: the messages of a topic, to read and to publish."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Query, Request, Response
from fastapi.responses import StreamingResponse

from himalia.errors import (
    BadRequest,
    EpochChanged,
    HimaliaError,
)
from himalia.log.api import Log
from himalia.protocol import models
from himalia.record import parse_ts
from himalia.server.auth import SECURITY, Caller, Context, require_right
from himalia.server.drafts import Drafter
from himalia.server.http.request_body import body_of
from himalia.server.identity import Right
from himalia.server.rest.publish_body import (
    LINES_AT_ONCE,
    Drafts,
    PublishTarget,
    Receipt,
    has_ndjson,
    publish_lines,
    read_json,
)
from himalia.server.rest.record_stream import (
    ARROW,
    ENCODERS,
    Encoder,
    Range,
    ReaderResponse,
    load_arrow,
    stream_filtered_json,
)
from himalia.server.rest.schema import (
    ERRORS,
    JSON,
    NDJSON,
    NOT_FOUND,
    TopicName,
    errors,
    model_of,
)
from himalia.server.websocket.subscription_request import compile_limited_filter
from himalia.topics import check_name

JSON_LIMIT = 1000

MEDIA_TYPES_MAX = 50
"""Media types of an ``Accept`` header that are considered."""

router = APIRouter(responses=ERRORS, tags=["messages"])


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
    wanted = await _resolve_range(context.log, name, start, since, last, limit, epoch)
    if compiled is not None:
        return ReaderResponse(
            context, caller, stream_filtered_json(context, wanted, compiled), media_type=JSON
        )
    if media_type == ARROW and not context.has_arrow:
        await asyncio.to_thread(load_arrow)
        context.has_arrow = True
    return ReaderResponse(context, caller, encoder(context, wanted), media_type=media_type)


async def _resolve_range(
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


def _negotiate(accept: str) -> tuple[str, Encoder]:
    """Choose a media type by the client's preference, then by the order of ``ENCODERS``."""
    for wanted in _rank_media_types(accept):
        for offered, encoder in ENCODERS.items():
            if wanted in (offered, "*/*", offered.partition("/")[0] + "/*"):
                return offered, encoder
    raise HTTPException(406, f"the server offers {', '.join(ENCODERS)}")


def _rank_media_types(accept: str) -> Iterable[str]:
    ranked: list[tuple[float, str]] = []
    for part in accept.split(",", MEDIA_TYPES_MAX)[:MEDIA_TYPES_MAX]:
        media_type, *parameters = [piece.strip().lower() for piece in part.split(";")]
        quality = next((piece[2:] for piece in parameters if piece.startswith("q=")), "1")
        try:
            ranked.append((float(quality), media_type))
        except ValueError:
            continue
    return [media_type for quality, media_type in sorted(ranked, key=lambda pair: -pair[0]) if quality > 0]


_ONE = model_of(models.IncomingMessage).model_json_schema()

_BODY: dict[str, Any] = {
    "required": True,
    "content": {
        JSON: {
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
    response_model=model_of(models.PublishResponse),
    responses={
        **NOT_FOUND,
        **errors(
            {
                409: "The topic has another epoch",
                413: "The message or the body is too large",
                429: "The caller exceeds its publish rate or its number of producers",
            }
        ),
    },
    openapi_extra={"requestBody": _BODY},
)
async def publish(
    request: Request,
    context: Context,
    caller: Caller,
    name: str = TopicName,
    epoch: Annotated[
        str | None, Query(description="Refuse the request if the topic has another epoch.")
    ] = None,
    producer: Annotated[
        str | None, Query(description="With `sequence`: store the body exactly once.", max_length=255)
    ] = None,
    sequence: Annotated[
        int | None, Query(description="Increases with each body of the producer.", ge=0, lt=1 << 63)
    ] = None,
) -> Response:
    """Publish a message, a list of messages (stored atomically), or NDJSON, one message per line.

    NDJSON is stored while it arrives, so a body may have any length; if a line is invalid, the error names it and the
    lines before it are stored. With `producer` and `sequence` the body is stored atomically and exactly once.
    """
    if (producer is None) != (sequence is None):
        raise BadRequest("`producer` and `sequence` must be given together")
    drafter = Drafter(context.settings, caller)
    drafter.check_topic(name)
    is_ndjson = has_ndjson(request)
    is_atomic = not is_ndjson or producer is not None
    count_max = context.settings.bulk_messages_max if is_atomic else LINES_AT_ONCE
    drafts = Drafts(drafter, name, body_of(request.scope), count_max, context.manager.time_slices)
    target = PublishTarget(context, caller, name, epoch, producer, sequence)
    if is_ndjson:
        return await publish_lines(target, drafts, request)
    try:
        one = await read_json(context, drafts, request)
    except HimaliaError:
        await drafts.free()
        raise
    if not drafts:
        raise BadRequest("the list is empty")
    receipt = Receipt()
    receipt.add(await target.store(drafts))
    await drafts.free()
    return receipt.to_response(name, one=one, listed=True)
