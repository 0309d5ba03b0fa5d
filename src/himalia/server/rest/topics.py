"""REST: topics, health, statistics and metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec
from fastapi import APIRouter, Body, Path, Request, Response

from himalia import __version__
from himalia.errors import Forbidden
from himalia.protocol import PROTOCOL_VERSION, encode, models
from himalia.protocol.models.topics import TOPIC_NAME
from himalia.record import TopicInfo, format_ts
from himalia.server.auth import SECURITY, Caller, Context, MaybeCaller
from himalia.server.context import ServerContext
from himalia.server.identity import Principal, Right
from himalia.server.observe.audit import AuditEvent
from himalia.server.rest.schema import JSON, JsonBody, errors, json_response, model_of
from himalia.topics import AUDIT_TOPIC, check_name, is_pattern, is_reserved, matches

ERRORS = errors(
    {
        401: "No key, or an unknown one",
        403: "The key lacks the right, or the origin is foreign",
        408: "The body arrived too slowly",
        414: "The URL is too long",
        422: "Bad input",
        503: "The log cannot store now, or the server receives too much at once; retry",
    }
)
NOT_FOUND = errors({404: "No such topic"})
TopicName = Path(description="The topic's name.", examples=["orders"], json_schema_extra=TOPIC_NAME)

router = APIRouter(responses=ERRORS)


@router.post(
    "/topics",
    status_code=201,
    tags=["topics"],
    dependencies=SECURITY,
    response_model=model_of(models.CreateTopicResponse),
    responses=errors({409: "The topic exists already", 429: "Too many topics"}),
)
async def create_topic(
    body: Annotated[JsonBody[models.CreateTopicRequest], Body()], context: Context, caller: Caller
) -> Response:
    """Create a topic, optionally with its own retention."""
    name = check_name(body.name, context.settings.topic_length_max)
    _require_manage(caller, name)

    async def create() -> None:
        await context.manager.create_topic(name, body.retention)
        context.audit.record(AuditEvent.TOPIC_CREATED, caller, topic=name)

    await context.audit.shielded.run(create())
    return json_response(models.CreateTopicResponse(topic=name), 201)


@router.delete(
    "/topics/{name}",
    tags=["topics"],
    dependencies=SECURITY,
    response_model=model_of(models.DeleteTopicResponse),
    responses={**NOT_FOUND, **errors({409: "A running kernel writes to the topic"})},
)
async def delete_topic(context: Context, caller: Caller, name: str = TopicName) -> Response:
    """Delete a topic and its records. Its subscribers are notified and unsubscribed."""
    check_name(name, context.settings.topic_length_max)
    caller.require(Right.MANAGE, name)
    if name == AUDIT_TOPIC:
        raise Forbidden(f"{name!r} is reserved: only its retention removes records", topic=name)
    if context.kernel_host is not None:
        context.kernel_host.check_deletable(name)

    async def delete() -> None:
        deleted = await context.manager.delete_topic(name)
        records = deleted.end - deleted.first
        context.audit.record(AuditEvent.TOPIC_DELETED, caller, topic=name, records=records)

    await context.audit.shielded.run(delete())
    return json_response(models.DeleteTopicResponse(topic=name))


def _require_manage(caller: Principal, name: str) -> None:
    caller.require(Right.MANAGE, name)
    if is_reserved(name) and name.startswith("kernels"):
        raise Forbidden(f"{name!r} is reserved: the server creates the topics of kernels", topic=name)
    if name == AUDIT_TOPIC:
        raise Forbidden(f"{name!r} is reserved: the server creates it", topic=name)


@router.get("/topics", tags=["topics"], dependencies=SECURITY, response_model=model_of(models.TopicList))
async def list_topics(context: Context, caller: Caller) -> Response:
    """List the topics that you may read or publish to."""
    infos = await context.log.topics()
    # Encoded one by one, with other work in between: there may be thousands.
    topics = [
        encode(_summary(context, info))
        async for info in context.manager.time_slices.iterate(infos)
        if may_see(caller, info.name, info.owner)
    ]
    return Response(b'{"topics":[%b]}' % b",".join(topics), media_type=JSON)


def may_see(caller: Principal, topic: str, owner: str | None = None) -> bool:
    """Return whether lists show a topic to this caller. They never show the audit trail, which is read by name."""
    return topic != AUDIT_TOPIC and any(caller.may(right, topic, owner) for right in Right)


def _summary(context: ServerContext, info: TopicInfo) -> models.TopicSummary:
    return models.TopicSummary(
        name=info.name,
        subscribers=context.manager.subscribers_of(info.name),
        messages=info.end,
        bytes=info.bytes,
        first=info.first,
        end=info.end,
        epoch=info.epoch,
        created=format_ts(info.created_us),
        retention=info.retention,
    )


@router.get(
    "/health",
    tags=["server"],
    response_model=model_of(models.Health),
    responses=errors({503: "The server cannot work; `problem` says what to do"}, models.Health),
)
async def health(context: Context, caller: MaybeCaller) -> Response:
    """Report whether the server works; with a key, also its state."""
    state = await context.log.health()
    status, code = ("ok", 200) if state.ok else ("degraded", 503)
    if caller is None:
        return json_response(models.Health(status=status), code)
    report = models.Health(
        status=status,
        problem=state.problem,
        warnings=list(state.warnings),
        uptime_sec=context.manager.counters.uptime_s,
        topics=context.manager.topic_count,
        subscribers=context.manager.subscriber_count,
        connections=context.connection_count,
        kernels=context.kernel_count,
        version=__version__,
        protocol=PROTOCOL_VERSION,
        log=context.log.url,
    )
    return json_response(report, code)


@router.post(
    "/clock/confirm",
    tags=["server"],
    dependencies=SECURITY,
    response_model=model_of(models.ClockConfirmed),
)
async def confirm_clock(context: Context, caller: Caller) -> Response:
    """Confirm that the server's clock is right, after a warning that it jumped. Needs `manage` on `>`."""
    if not caller.may_all(Right.MANAGE):
        raise Forbidden(
            f"{caller.name!r} has no right to confirm the clock, which retention depends on: "
            "that takes manage on '>'",
            right=Right.MANAGE,
        )

    async def confirm() -> str | None:
        warning = await context.log.confirm_clock()
        if warning is not None:
            context.audit.record(AuditEvent.CLOCK_CONFIRMED, caller, warning=warning)
        return warning

    warning = await context.audit.shielded.run(confirm())
    return json_response(models.ClockConfirmed("unchanged" if warning is None else "confirmed", warning))


@router.get("/stats", tags=["server"], dependencies=SECURITY, response_model=model_of(models.Stats))
async def stats(context: Context, caller: Caller) -> Response:
    """Return counters of the whole server, and of each topic and subscriber that you may see."""
    found, time_slices = await context.manager.stats(), context.manager.time_slices
    owners = {info.name: info.owner for info in await context.log.topics()}
    # Topics and subscribers are encoded one by one, with other work in between: there may be thousands.
    topics = {
        name: msgspec.Raw(encode(topic))
        async for name, topic in time_slices.iterate(found.topics.items())
        if may_see(caller, name, owners.get(name))
    }
    subscribers = [
        msgspec.Raw(encode(one))
        async for one in time_slices.iterate(found.subscribers)
        if _may_see_subscriber(caller, one.topic, owners)
    ]
    visible = {
        **msgspec.structs.asdict(found),
        "topics": topics,
        "subscribers": subscribers,
        "connections": context.connection_count,
        "kernels": context.kernel_count,
    }
    return json_response(models.Stats(**visible))


def _may_see_subscriber(caller: Principal, topic: str, owners: Mapping[str, str | None]) -> bool:
    """Return whether statistics show a subscriber of this topic or pattern.

    A caller who manages all topics sees all subscribers except those of the audit trail.
    """
    if matches(topic, AUDIT_TOPIC):
        return caller.may(Right.SUBSCRIBE, AUDIT_TOPIC)
    is_visible = not is_pattern(topic) and may_see(caller, topic, owners.get(topic))
    return is_visible or caller.may_all(Right.MANAGE)


@router.get(
    "/metrics",
    tags=["server"],
    dependencies=SECURITY,
    response_class=Response,
    responses={200: {"content": {"text/plain": {"example": "himalia_publishes_total 12.0\n"}}}},
)
async def metrics(context: Context, caller: Caller, request: Request) -> Response:
    """Return Prometheus metrics."""
    return Response(await context.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")
