"""Makes a subscription from a client's request: checks, limits, rights, and where it begins."""

from __future__ import annotations

from functools import partial

from himalia.errors import BadFilter, BadRequest, Forbidden
from himalia.protocol import ClientMessage, StartPosition
from himalia.pubsub import Outlet, Policy, Start, Subscriber, SubscriptionOptions
from himalia.pubsub.filters import Filter, compile_filter
from himalia.pubsub.time_slices import TimeSlices
from himalia.record import parse_ts
from himalia.server.identity import Principal, Right
from himalia.settings import Settings
from himalia.topics import AUDIT_TOPIC, check_name, check_pattern, is_pattern, is_reserved, matches

PRIORITY_MAX = 1_000_000
OFFSET_MAX = (1 << 63) - 1


async def make_subscriber(
    message: ClientMessage, settings: Settings, principal: Principal, outlet: Outlet, time_slices: TimeSlices
) -> Subscriber:
    """Return the subscription that a ``subscribe`` message requests, or raise the error that refuses it."""
    assert message.topic is not None and message.client_id is not None  # checked when it was decoded
    pattern = check_pattern(message.topic, settings.topic_length_max)
    start = await make_start(message, settings, time_slices)
    _check_rights(principal, pattern)
    compiled = (
        None
        if message.filter is None
        else await compile_limited_filter(message.filter, settings, time_slices)
    )
    if abs(message.priority) > PRIORITY_MAX:
        raise BadRequest(f"priority must be between -{PRIORITY_MAX} and {PRIORITY_MAX}")
    options = SubscriptionOptions(
        policy=message.policy or _default_policy(start),
        limit=_limit(message.limit, settings),
        filter=compiled,
        priority=message.priority,
        start=start,
        can_read=partial(principal.may, Right.SUBSCRIBE),
    )
    return Subscriber(pattern, message.client_id, outlet, owner=principal.name, options=options)


def _check_rights(principal: Principal, pattern: str) -> None:
    """Raise ``Forbidden`` for a topic that the caller may not read, or a pattern of which it may read none.

    Of another pattern the subscription delivers only the topics that the caller may read.
    """
    if not is_pattern(pattern):
        # The owner of a kernel's topic is in the log: it is checked when the topic is looked up.
        if not principal.owns(Right.SUBSCRIBE) or not is_reserved(pattern):
            principal.require(Right.SUBSCRIBE, pattern)
    elif not principal.may_some(Right.SUBSCRIBE) and not (
        matches(pattern, AUDIT_TOPIC) and principal.may(Right.SUBSCRIBE, AUDIT_TOPIC)
    ):
        raise Forbidden(f"{principal.name!r} has no right to subscribe", topic=pattern)


def _default_policy(start: Start) -> Policy:
    wants_all = start.offset is not None or start.since_us is not None or start.positions is not None
    return "lossless" if wants_all else "drop_oldest"


def _limit(limit: int | None, settings: Settings) -> int:
    if limit is None:
        return settings.subscriber_limit
    if not 1 <= limit <= settings.subscriber_limit_max:
        raise BadRequest(f"limit must be between 1 and {settings.subscriber_limit_max}")
    return limit


async def make_start(message: ClientMessage, settings: Settings, time_slices: TimeSlices) -> Start:
    """Return where a subscription begins: at most one of ``last_n``, ``from`` and ``since`` may be given."""
    given = [name for name in ("last_n", "start", "since") if getattr(message, name) is not None]
    if len(given) > 1:
        raise BadRequest("give at most one of last_n, from and since")
    if message.epoch is not None and not isinstance(message.start, int):
        raise BadRequest("epoch requires from to be an offset")
    if message.last_n is not None:
        if not 0 <= message.last_n <= settings.last_n_max:
            raise BadRequest(f"last_n must be between 0 and {settings.last_n_max}")
        return Start(last_n=message.last_n)
    if message.since is not None:
        return Start(since_us=_since(message.since))
    if isinstance(message.start, dict):
        positions = {
            topic: _position(topic, at) async for topic, at in time_slices.iterate(message.start.items())
        }
        return Start(positions=positions)
    if message.start is not None:
        return Start(offset=_offset(message.start), epoch=message.epoch)
    return Start()


def _since(text: str | float) -> int:
    try:
        return parse_ts(text)
    except (ValueError, OverflowError) as error:
        raise BadRequest(f"since must be ISO 8601 or seconds since 1970: {error}") from None


def _position(topic: str, at: int | StartPosition) -> tuple[int, str | None]:
    """Return the offset and epoch where a topic of a pattern begins."""
    check_name(topic)
    if isinstance(at, StartPosition):
        return _offset(at.offset), at.epoch
    return _offset(at), None


def _offset(value: int) -> int:
    if not 0 <= value <= OFFSET_MAX:
        raise BadRequest("from must be an offset: 0, 1, 2, ...")
    return value


async def compile_limited_filter(text: str, settings: Settings, time_slices: TimeSlices) -> Filter:
    """Return the filter of this text, or raise ``BadFilter``; new filters are compiled in turns."""
    if len(text) > settings.filter_length_max:
        raise BadFilter(f"a filter has at most {settings.filter_length_max} characters")
    await time_slices.checkpoint()
    return compile_filter(text)
