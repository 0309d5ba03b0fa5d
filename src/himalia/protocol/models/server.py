"""The server itself: errors, health, clock, statistics, sessions of browsers."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from himalia.protocol.messages import ErrorBody


class ErrorResponse(msgspec.Struct, frozen=True):
    error: ErrorBody


class Health(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Callers without a key get ``status`` only."""

    status: Annotated[str, Meta(extra_json_schema={"enum": ["ok", "degraded"]})]
    problem: Annotated[str | None, Meta(description="What is wrong and how to fix it.")] = None
    warnings: Annotated[
        list[str], Meta(description="What an operator should check although the server works.")
    ] = []
    uptime_sec: float | None = None
    topics: int | None = None
    subscribers: int | None = None
    connections: int | None = None
    kernels: Annotated[int | None, Meta(description="Running kernels.")] = None
    version: str | None = None
    protocol: int | None = None
    log: str | None = None


class ClockConfirmed(msgspec.Struct, frozen=True):
    status: Annotated[str, Meta(extra_json_schema={"enum": ["confirmed", "unchanged"]})]
    warning: Annotated[
        str | None, Meta(description="The warning that was cleared; null if there was none.")
    ] = None


class TopicStats(msgspec.Struct, frozen=True):
    messages: Annotated[int, Meta(description="Messages ever published: the offset of the next one.")]
    bytes: Annotated[int, Meta(description="Size of the stored records.")]
    first: int
    end: int
    epoch: str
    subscribers: int
    lag: Annotated[int, Meta(description="Records by which the slowest subscriber is behind.")]
    last_minute: Annotated[
        list[int],
        Meta(
            description="Messages in each of the last 60 whole seconds, oldest first; empty if there were none."
        ),
    ] = []


class SubscriberStats(msgspec.Struct, frozen=True):
    client_id: str
    topic: str
    policy: str
    sent: int
    dropped: int
    lag: int


class Rates(msgspec.Struct, frozen=True):
    """Records per second, averaged over at most the last ten seconds."""

    published: float
    delivered: float
    dropped: float


class LastMinute(msgspec.Struct, frozen=True):
    """Records in each of the last 60 seconds, oldest first; 0 before the server started."""

    published: list[int] = []
    delivered: list[int] = []
    dropped: list[int] = []


class PubSubStats(msgspec.Struct, frozen=True, kw_only=True):
    """Counters of publishing and delivery since the server started."""

    uptime_s: float
    topics: dict[str, TopicStats]
    subscribers: list[SubscriberStats]
    published: int
    duplicates: int
    delivered: int
    dropped: int
    rates: Rates
    last_minute: LastMinute = LastMinute()
    in_flight: Annotated[int, Meta(description="Publishes that wait for their commit.")]
    queue_bytes: Annotated[int, Meta(description="Bytes that peers have not read yet.")]


class Stats(PubSubStats, frozen=True, kw_only=True):
    """Counters of the whole server."""

    connections: int
    kernels: Annotated[int, Meta(description="Running kernels.")] = 0


class SessionResponse(msgspec.Struct, frozen=True):
    caller: Annotated[str, Meta(examples=["key:reports"])]
    expires: Annotated[
        str | None, Meta(description="When the credential expires; null if it does not expire.")
    ]


class SignedOutResponse(msgspec.Struct, frozen=True):
    status: Literal["signed out"] = "signed out"


class SessionSummary(msgspec.Struct, frozen=True):
    """A browser that is signed in."""

    id: Annotated[str, Meta(description="Public id of the session; not the secret in its cookie.")]
    caller: Annotated[str, Meta(examples=["key:reports"])]
    created: str
    expires: str
    agent: Annotated[str, Meta(description="The browser's User-Agent.")]


class SessionList(msgspec.Struct, frozen=True):
    sessions: list[SessionSummary]


class RevokedResponse(msgspec.Struct, frozen=True, kw_only=True):
    status: Literal["revoked"] = "revoked"
    count: int


class ProofResponse(msgspec.Struct, frozen=True):
    proof: Annotated[str, Meta(description="HMAC-SHA-256 of the nonce, keyed with the hash of the key.")]
