"""REST: topics, health and statistics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Path, Request, Response

from himalia import __version__
from himalia.errors import Forbidden
from himalia.protocol import PROTOCOL_VERSION, encode
from himalia.record import TopicInfo, format_ts
from himalia.server.auth import SECURITY, Caller, MaybeCaller, TheBroker
from himalia.server.context import Broker
from himalia.server.identity import Principal, Right
from himalia.server.observe.audit import AuditEvent
from himalia.server.rest.models import (
    TOPIC_NAME,
    ConfirmClockResponse,
    CreateTopicRequest,
    CreateTopicResponse,
    DeleteTopicResponse,
    ErrorResponse,
    HealthResponse,
    StatsResponse,
    TopicList,
)
from himalia.topics import AUDIT_TOPIC, check_name, is_pattern, is_reserved, matches

ERRORS: dict[int | str, dict[str, Any]] = {
    401: {"model": ErrorResponse, "description": "No key, or an unknown one"},
    403: {"model": ErrorResponse, "description": "The key lacks the right, or the origin is foreign"},
    408: {"model": ErrorResponse, "description": "The body came too slowly"},
    422: {"model": ErrorResponse, "description": "Bad input"},
    503: {"model": ErrorResponse, "description": "The log cannot store now, or too much is received; retry"},
}
NOT_FOUND: dict[int | str, dict[str, Any]] = {404: {"model": ErrorResponse, "description": "No such topic"}}
TopicName = Path(description="The topic's name.", examples=["orders"], json_schema_extra=TOPIC_NAME)

router = APIRouter(responses=ERRORS)


@router.post(
    "/topics",
    status_code=201,
    tags=["topics"],
    dependencies=SECURITY,
    responses={
        409: {"model": ErrorResponse, "description": "It exists already"},
        429: {"model": ErrorResponse, "description": "Too many topics"},
    },
)
async def create_topic(body: CreateTopicRequest, broker: TheBroker, caller: Caller) -> CreateTopicResponse:
    """Make a topic, with its own retention if you like."""
    name = check_name(body.name, broker.settings.topic_length_max)
    _require_manage(caller, name)
    retention = body.retention.to_retention() if body.retention else None

    async def create() -> None:
        await broker.manager.create_topic(name, retention)
        broker.audit.record(AuditEvent.TOPIC_CREATED, caller, topic=name)

    await broker.audit.undivided.run(create())
    return CreateTopicResponse(topic=name)


@router.delete(
    "/topics/{name}",
    tags=["topics"],
    dependencies=SECURITY,
    responses={**NOT_FOUND, 409: {"model": ErrorResponse, "description": "A kernel that runs writes to it"}},
)
async def delete_topic(broker: TheBroker, caller: Caller, name: str = TopicName) -> DeleteTopicResponse:
    """Delete a topic and its records. Its subscribers are told and unsubscribed."""
    check_name(name, broker.settings.topic_length_max)
    caller.require(Right.MANAGE, name)
    if name == AUDIT_TOPIC:
        raise Forbidden(f"{name!r} is reserved: its retention alone removes records", topic=name)
    broker.kernels.check_deletable(name)

    async def delete() -> None:
        deleted = await broker.manager.delete_topic(name)
        records = deleted.end - deleted.first
        broker.audit.record(AuditEvent.TOPIC_DELETED, caller, topic=name, records=records)

    await broker.audit.undivided.run(delete())
    return DeleteTopicResponse(topic=name)


def _require_manage(caller: Principal, name: str) -> None:
    caller.require(Right.MANAGE, name)
    if is_reserved(name) and name.startswith("kernels"):
        raise Forbidden(f"{name!r} is reserved: kernels make their own topics", topic=name)
    if name == AUDIT_TOPIC:
        raise Forbidden(f"{name!r} is reserved: the server makes it", topic=name)


@router.get("/topics", tags=["topics"], dependencies=SECURITY, response_model=TopicList)
async def list_topics(broker: TheBroker, caller: Caller) -> Response:
    """The topics that you may read or publish to."""
    infos = await broker.log.topics()
    # Not by way of the model, which takes 20 µs a topic: there are thousands, and Spark asks again and again.
    topics = [
        encode(_summary(broker, info))
        async for info in broker.manager.turns.each(infos)
        if may_see(caller, info.name, info.owner)
    ]
    return Response(b'{"topics":[%b]}' % b",".join(topics), media_type="application/json")


def may_see(caller: Principal, topic: str, owner: str | None = None) -> bool:
    """Whether lists show a topic to this caller. They never show the audit trail, which is read by its name."""
    return topic != AUDIT_TOPIC and any(caller.may(right, topic, owner) for right in Right)


def _summary(broker: Broker, info: TopicInfo) -> dict[str, Any]:
    """A topic as the model ``TopicSummary`` describes it."""
    retention = info.retention
    return {
        "name": info.name,
        "subscribers": broker.manager.subscribers_of(info.name),
        "messages": info.end,
        "bytes": info.bytes,
        "first": info.first,
        "end": info.end,
        "epoch": info.epoch,
        "created": format_ts(info.created_us),
        "retention": {"age_s": retention.age_s, "bytes": retention.bytes, "count": retention.count},
    }


@router.get(
    "/health",
    tags=["server"],
    response_model_exclude_none=True,
    responses={
        503: {"model": HealthResponse, "description": "Something is wrong; `problem` says what to do"}
    },
)
async def health(broker: TheBroker, caller: MaybeCaller, response: Response) -> HealthResponse:
    """Whether the server is well; with a key, also how it is."""
    state = await broker.log.health()
    if not state.ok:
        response.status_code = 503
    status = "ok" if state.ok else "degraded"
    if caller is None:
        return HealthResponse(status=status)
    return HealthResponse(
        status=status,
        problem=state.problem,
        warnings=list(state.warnings) or None,
        uptime_sec=broker.manager.counters.uptime_s,
        topics=broker.manager.topic_count,
        subscribers=broker.manager.subscriber_count,
        connections=broker.connection_count,
        kernels=len(broker.kernels.kernels),
        version=__version__,
        protocol=PROTOCOL_VERSION,
        log=broker.log.url,
    )


@router.post("/clock/confirm", tags=["server"], dependencies=SECURITY)
async def confirm_clock(broker: TheBroker, caller: Caller) -> ConfirmClockResponse:
    """Say that the server's clock is right, after a warning that it jumped. Needs `manage` on `>`."""
    if not caller.may_all(Right.MANAGE):
        raise Forbidden(
            f"{caller.name!r} has no right to confirm the clock, by which all topics are kept: that is manage on '>'",
            right=Right.MANAGE,
        )

    async def confirm() -> str | None:
        warning = await broker.log.confirm_clock()
        if warning is not None:
            broker.audit.record(AuditEvent.CLOCK_CONFIRMED, caller, warning=warning)
        return warning

    warning = await broker.audit.undivided.run(confirm())
    if warning is None:
        return ConfirmClockResponse(status="unchanged")
    return ConfirmClockResponse(status="confirmed", warning=warning)


@router.get("/stats", tags=["server"], dependencies=SECURITY, response_model=StatsResponse)
async def stats(broker: TheBroker, caller: Caller) -> Response:
    """Counters of the whole server, of each topic and of each subscriber that you may see."""
    found, turns = await broker.manager.stats(), broker.manager.turns
    owners = {info.name: info.owner for info in await broker.log.topics()}
    topics = [
        b"%b:%b" % (encode(name), encode(topic))
        async for name, topic in turns.each(found.topics.items())
        if may_see(caller, name, owners.get(name))
    ]
    subscribers = [
        encode(one)
        async for one in turns.each(found.subscribers)
        if _may_see_subscriber(caller, one.topic, owners)
    ]
    totals = {name: getattr(found, name) for name in StatsResponse.model_fields if hasattr(found, name)}
    del totals["topics"], totals["subscribers"]
    totals |= {"connections": broker.connection_count, "kernels": len(broker.kernels.kernels)}
    body = b'{"topics":{%b},"subscribers":[%b],%b' % (
        b",".join(topics),
        b",".join(subscribers),
        encode(totals)[1:],
    )
    return Response(body, media_type="application/json")


def _may_see_subscriber(caller: Principal, topic: str, owners: Mapping[str, str | None]) -> bool:
    """Whoever manages all topics sees all subscribers, but for those of the audit trail."""
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
async def metrics(broker: TheBroker, caller: Caller, request: Request) -> Response:
    """Prometheus metrics."""
    return Response(await broker.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")
