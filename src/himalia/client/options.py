"""The options of ``subscribe``, and the request that they make."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import TypedDict, Unpack

from himalia.client.events import Notice
from himalia.errors import BadRequest
from himalia.protocol import ClientMessage, Policy, StartPosition
from himalia.record import Position
from himalia.topics import check_pattern, is_pattern

Start = int | Position | Mapping[str, int | Position]


class SubscribeOptions(TypedDict, total=False):
    """Options of ``subscribe``. Begin with at most one of ``last_n``, ``from_`` and ``since``; by default with what is
    published from now on."""

    last_n: int | None
    """Begin with the newest records, this many."""
    from_: Start | None
    """Begin at an offset (of ``epoch``), a ``Position``, or for a pattern a map of them, such as
    ``Subscription.positions``; topics that the map lacks begin at their first record. An offset beyond the end is
    waited for."""
    epoch: str | None
    since: str | float | None
    """Begin at a time, ISO 8601 or seconds since 1970."""
    policy: Policy | None
    """What the server does when you fall more than ``limit`` records behind: ``drop_oldest`` (the default when live or
    with ``last_n``), ``disconnect``, or ``lossless`` (the default with ``from_`` and ``since``). A reconnect does not
    change it."""
    limit: int | None
    filter: str | None
    """A CEL expression of ``topic``, ``offset``, ``headers`` and ``message.payload``."""
    priority: int
    client_id: str | None
    """Another subscription with the same id replaces this one; by default each has its own."""
    on_notice: Callable[[Notice], None] | None
    """Called with each notice, at its place among the events."""


def subscribe_request(topic: str, **options: Unpack[SubscribeOptions]) -> ClientMessage:
    """Make the ``subscribe`` message. Raises ``TypeError`` for an option that does not exist."""
    if unknown := options.keys() - SubscribeOptions.__annotations__.keys():
        raise TypeError(f"subscribe() got an unexpected option {min(unknown)!r}")
    check_pattern(topic)
    start, epoch = _start(topic, options.get("from_"), options.get("epoch"))
    return ClientMessage(
        "subscribe",
        topic=topic,
        client_id=options.get("client_id") or f"client-{uuid.uuid4()}",
        last_n=options.get("last_n"),
        start=start,
        epoch=epoch,
        since=options.get("since"),
        policy=options.get("policy"),
        limit=options.get("limit"),
        filter=options.get("filter"),
        priority=options.get("priority", 0),
    )


def _start(
    topic: str, from_: Start | None, epoch: str | None
) -> tuple[int | dict[str, int | StartPosition] | None, str | None]:
    """Translate ``from_`` and ``epoch`` to the protocol's ``from`` and ``epoch``."""
    if isinstance(from_, Mapping):
        if is_pattern(topic):
            return {name: _start_position(position) for name, position in from_.items()}, epoch
        if topic not in from_:
            raise BadRequest(f"`from_` has no position of {topic!r}", topic=topic)
        from_ = from_[topic]
    if isinstance(from_, Position):
        return from_.offset, from_.epoch or epoch
    return from_, epoch


def _start_position(at: int | Position) -> StartPosition:
    return StartPosition(at.offset, at.epoch or None) if isinstance(at, Position) else StartPosition(at)
