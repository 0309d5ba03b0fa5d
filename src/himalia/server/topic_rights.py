"""Rights on one topic, where the topic's owner counts too: the log knows it."""

from __future__ import annotations

from himalia.errors import TopicNotFound
from himalia.log.api import Log
from himalia.server.identity import Principal, Right
from himalia.topics import is_reserved


async def has_right(log: Log, caller: Principal, right: Right, topic: str) -> bool:
    """Whether the caller has this right on the topic, by a pattern or because it owns the topic's kernel."""
    return caller.may(right, topic, await _owner(log, caller, right, topic))


async def require_right(log: Log, caller: Principal, right: Right, topic: str) -> None:
    """``Forbidden`` unless ``has_right``."""
    caller.require(right, topic, await _owner(log, caller, right, topic))


async def _owner(log: Log, caller: Principal, right: Right, topic: str) -> str | None:
    if not is_reserved(topic) or not caller.owns(right):
        return None  # it would not matter
    try:
        return (await log.info(topic)).owner
    except TopicNotFound:
        return None
