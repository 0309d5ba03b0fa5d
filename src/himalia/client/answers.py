"""What the server tells about itself. Fields that a newer server adds are ignored."""

from __future__ import annotations

import msgspec

from himalia.record import Retention


class TopicSummary(msgspec.Struct, frozen=True):
    """A topic. Records kept are ``first`` to ``end - 1``; ``messages`` counts all that were ever published."""

    name: str
    subscribers: int
    messages: int
    bytes: int
    first: int
    end: int
    epoch: str
    created: str
    retention: Retention


class TopicStats(msgspec.Struct, frozen=True):
    messages: int
    bytes: int
    first: int
    end: int
    epoch: str
    subscribers: int
    lag: int
    """Records by which the slowest subscriber is behind."""


class SubscriberStats(msgspec.Struct, frozen=True):
    client_id: str
    topic: str
    policy: str
    sent: int
    dropped: int
    lag: int


class Rates(msgspec.Struct, frozen=True):
    """Per second, over the last ten seconds or less."""

    published: float
    delivered: float
    dropped: float


class Stats(msgspec.Struct, frozen=True):
    uptime_s: float
    topics: dict[str, TopicStats]
    subscribers: list[SubscriberStats]
    published: int
    duplicates: int
    delivered: int
    dropped: int
    rates: Rates
    in_flight: int
    queue_bytes: int
    connections: int


class Health(msgspec.Struct, frozen=True):
    """``status`` is ``ok`` or ``degraded``, and ``problem`` then says what to do. The rest is told with a key only."""

    status: str
    problem: str | None = None
    uptime_sec: float | None = None
    topics: int | None = None
    subscribers: int | None = None
    connections: int | None = None
    version: str | None = None
    protocol: int | None = None
    log: str | None = None
