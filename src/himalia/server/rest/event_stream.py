"""REST: subscribing to a topic with Server-Sent Events, as on the WebSocket, for browsers and ``curl``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Literal
from uuid import uuid4

from fastapi import APIRouter, Header, Query
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from himalia.errors import BadRequest, HimaliaError, Unauthorized
from himalia.protocol import ClientMessage, Policy
from himalia.pubsub import Outlet
from himalia.server.auth import SECURITY, Caller, Context
from himalia.server.caller_usage import ConnectionSlot
from himalia.server.codecs import SSE, SSE_WITHOUT_IDS, SseCodec
from himalia.server.context import ServerContext
from himalia.server.identity import Credential
from himalia.server.rest.schema import ERRORS, NOT_FOUND, errors
from himalia.server.websocket.subscription_request import make_subscriber
from himalia.topics import is_pattern

router = APIRouter(responses=ERRORS, tags=["messages"])


class SseOutlet(Outlet):
    """Buffers data until the response's generator sends it."""

    __slots__ = ("_bytes_max", "_ended", "_unsent", "_wake")

    def __init__(self, codec: SseCodec, bytes_max: int) -> None:
        super().__init__(codec)
        self._bytes_max = bytes_max
        self._unsent: list[bytes] = []
        self._wake = asyncio.Event()
        self._ended = False

    @property
    def unsent_bytes(self) -> int:
        return sum(len(data) for data in self._unsent)

    def write(self, data: bytes) -> None:
        self._unsent.append(data)
        self.paused = self.unsent_bytes >= self._bytes_max
        self._wake.set()

    def close(self, error: HimaliaError) -> None:
        self._ended = True
        self._wake.set()

    async def stream(self, heartbeat_s: float) -> AsyncIterator[bytes]:
        """Yield data as it is written, and a comment after ``heartbeat_s`` without any."""
        while not (self._ended and not self._unsent):
            try:
                await asyncio.wait_for(self._wake.wait(), heartbeat_s)
            except TimeoutError:
                yield b": ping\n\n"
                continue
            self._wake.clear()
            if self._unsent:
                data, self._unsent = b"".join(self._unsent), []
                yield data
            if self.paused:
                self.resume()


class EventsResponse(StreamingResponse):
    """An event stream, which holds a connection slot and a subscription until it ends, for whatever reason.

    They are released here and not in the generator: a stalled reader's generator may be abandoned at a ``yield``, and
    then ends only when the garbage collector finds it.
    """

    def __init__(
        self, context: ServerContext, outlet: SseOutlet, slot: ConnectionSlot, credential: Credential
    ) -> None:
        super().__init__(
            _stream(outlet, context.settings.heartbeat_s),
            media_type="text/event-stream",
            headers={"Cache-Control": "no-store"},
        )
        self._context = context
        self._outlet = outlet
        self._slot = slot
        self._credential = credential

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._credential.watch(self._on_credential_end)
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._credential.unwatch(self._on_credential_end)
            self._outlet.closed = True
            self._slot.release()
            self._context.streams.pop(self._outlet, None)
            self._context.manager.disconnect(self._outlet)

    def _on_credential_end(self, why: Unauthorized) -> None:
        self._outlet.buffer(SSE.encode_error(why))
        self._outlet.flush()
        self._outlet.close(why)


async def _stream(outlet: SseOutlet, heartbeat_s: float) -> AsyncIterator[bytes]:
    yield b": connected\n\n"
    async for data in outlet.stream(heartbeat_s):
        yield data


@router.get(
    "/topics/{name}/events",
    dependencies=SECURITY,
    response_class=StreamingResponse,
    responses={
        200: {
            "description": "Events with their offset as id; `error` and `info` messages as events of that name.",
            "content": {"text/event-stream": {"example": 'id: 0\ndata: {"type":"event","offset":0}\n\n'}},
        },
        **NOT_FOUND,
        **errors({429: "Too many subscriptions"}),
    },
)
async def events(
    context: Context,
    caller: Caller,
    name: str,
    last_n: Annotated[
        int | None, Query(description="Begin with the newest records, this many.", ge=0)
    ] = None,
    start: Annotated[int | None, Query(alias="from", description="First offset.", ge=0, lt=1 << 63)] = None,
    epoch: Annotated[str | None, Query(description="The epoch that `from` was read in.")] = None,
    since: Annotated[str | None, Query(description="ISO 8601, or seconds since 1970.")] = None,
    policy: Annotated[
        Policy | Literal[""], Query(description="What the server does when you fall behind.")
    ] = "",
    limit: Annotated[int | None, Query(description="Records by which you may fall behind.", ge=1)] = None,
    filter: Annotated[str | None, Query(description="CEL on message, headers, topic, offset.")] = None,
    last_event_id: Annotated[
        str | None, Header(description="Offset of the last event you received; resumes after it.")
    ] = None,
) -> StreamingResponse:
    """Subscribe to a topic or a pattern. Sends stored records as requested, then new ones until you disconnect."""
    slot = context.admit(caller)
    if last_event_id:
        if is_pattern(name):
            raise BadRequest("Last-Event-ID resumes a topic, not a pattern; use `from` on the WebSocket")
        start, last_n, since = _resume_offset(last_event_id), None, None
    message = ClientMessage(
        "subscribe",
        topic=name,
        client_id=f"sse-{uuid4()}",
        last_n=last_n,
        start=start,
        epoch=epoch,
        since=since,
        policy=policy or None,
        limit=limit,
        filter=filter,
    )
    outlet = SseOutlet(SSE_WITHOUT_IDS if is_pattern(name) else SSE, context.settings.write_buffer_bytes)
    try:
        subscriber = await make_subscriber(
            message, context.settings, caller, outlet, context.manager.time_slices
        )
        context.streams[outlet] = None
        slot.outlet = outlet
        with context.usages.of(caller).reserve_subscription(subscriber.identity):
            result = await context.manager.subscribe(subscriber)
    except BaseException:
        context.streams.pop(outlet, None)
        slot.release()
        raise
    for gap in result.gaps:
        outlet.buffer(SSE.encode_gap(gap.topic, subscriber.client_id, gap.requested, gap.first, gap.end))
    outlet.flush()
    return EventsResponse(context, outlet, slot, caller.credential)


def _resume_offset(last_event_id: str) -> int:
    if not last_event_id.isascii() or not last_event_id.isdigit() or len(last_event_id) > 18:
        raise BadRequest("Last-Event-ID must be the offset of the last event you received")
    return int(last_event_id) + 1
