"""REST: topics."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Body, Response

from himalia.errors import Forbidden
from himalia.protocol import encode, models
from himalia.record import TopicInfo, format_ts
from himalia.server.auth import SECURITY, Caller, Context
from himalia.server.context import ServerContext
from himalia.server.identity import Principal, Right
from himalia.server.observe.audit import AuditEvent
from himalia.server.rest.schema import (
    ERRORS,
    JSON,
    NOT_FOUND,
    JsonBody,
    TopicName,
    errors,
    json_response,
    model_of,
)
from himalia.topics import AUDIT_TOPIC, check_name, is_reserved

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
        encode(_summarize(context, info))
        async for info in context.manager.time_slices.iterate(infos)
        if may_see(caller, info.name, info.owner)
    ]
    return Response(b'{"topics":[%b]}' % b",".join(topics), media_type=JSON)


def may_see(caller: Principal, topic: str, owner: str | None = None) -> bool:
    """Return whether lists show a topic to this caller. They never show the audit trail, which is read by name."""
    return topic != AUDIT_TOPIC and any(caller.may(right, topic, owner) for right in Right)


def _summarize(context: ServerContext, info: TopicInfo) -> models.TopicSummary:
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
