"""REST: the server itself: health, clock, statistics and metrics."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from fastapi import APIRouter, Request, Response

from himalia import __version__
from himalia.errors import Forbidden
from himalia.protocol import PROTOCOL_VERSION, encode, models
from himalia.server.auth import SECURITY, Caller, Context, MaybeCaller
from himalia.server.identity import Principal, Right
from himalia.server.observe.audit import AuditEvent
from himalia.server.rest.schema import (
    ERRORS,
    errors,
    json_response,
    model_of,
)
from himalia.server.rest.topics import may_see
from himalia.topics import AUDIT_TOPIC, is_pattern, matches

router = APIRouter(responses=ERRORS)


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
