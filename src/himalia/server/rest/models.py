"""The bodies of REST requests and answers, as Pydantic models: they make the OpenAPI document."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, NonNegativeInt

from himalia.record import Retention
from himalia.topics import NAME_LENGTH_MAX

# Tells what is allowed; himalia.topics checks it, and says more than a pattern could.
TOPIC_NAME: dict[str, Any] = {
    "pattern": r"^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$",
    "maxLength": NAME_LENGTH_MAX,
}


class RetentionBody(BaseModel):
    """How much of a topic is kept. Leave a field out for the server's default; 0 means without limit."""

    model_config = ConfigDict(extra="forbid")

    age_s: NonNegativeFloat | None = Field(None, le=1e12, examples=[86400])
    bytes: NonNegativeInt | None = Field(None, le=10**15, examples=[1_000_000_000])
    count: NonNegativeInt | None = Field(None, le=10**15, examples=[100_000])

    def to_retention(self) -> Retention:
        return Retention(self.age_s, self.bytes, self.count)


class CreateTopicRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str = Field(
        examples=["orders"],
        description="Segments of letters, digits, '_' and '-', joined by dots.",
        json_schema_extra=TOPIC_NAME,
    )
    retention: RetentionBody | None = None


class CreateTopicResponse(BaseModel):
    status: Literal["created"] = "created"
    topic: str = Field(examples=["orders"])


class DeleteTopicResponse(BaseModel):
    status: Literal["deleted"] = "deleted"
    topic: str = Field(examples=["orders"])


class TopicSummary(BaseModel):
    name: str = Field(examples=["orders"])
    subscribers: int
    messages: int = Field(description="Messages ever published: the offset of the next one.")
    bytes: int = Field(description="Bytes of the records that are kept.")
    first: int = Field(description="Offset of the oldest record that is kept.")
    end: int = Field(description="One past the newest offset.")
    epoch: str = Field(description="Changes when the topic is deleted and created again, or restored.")
    created: str = Field(examples=["2026-11-15T20:17:03.000123Z"])
    retention: RetentionBody


class TopicList(BaseModel):
    topics: list[TopicSummary]


class HealthResponse(BaseModel):
    """Without a key only ``status`` is told."""

    status: Literal["ok", "degraded"]
    problem: str | None = Field(None, description="What is wrong, and what to do.")
    warnings: list[str] | None = Field(
        None, description="What an operator should look at although the server works."
    )
    uptime_sec: float | None = None
    topics: int | None = None
    subscribers: int | None = None
    connections: int | None = None
    kernels: int | None = Field(None, description="Kernels that run.")
    version: str | None = None
    protocol: int | None = None
    log: str | None = None


class ConfirmClockResponse(BaseModel):
    status: Literal["confirmed", "unchanged"]
    warning: str | None = Field(None, description="What was doubted of the clock; null if nothing was.")


class TopicStatsBody(BaseModel):
    messages: int
    bytes: int
    first: int
    end: int
    epoch: str
    subscribers: int
    lag: int
    last_minute: list[int] = Field(
        description="Messages in each of the last 60 whole seconds, oldest first; empty if there were none."
    )


class SubscriberStatsBody(BaseModel):
    client_id: str
    topic: str
    policy: str
    sent: int
    dropped: int
    lag: int


class RatesBody(BaseModel):
    published: float
    delivered: float
    dropped: float


class LastMinuteBody(BaseModel):
    """Records in each of the last 60 seconds, oldest first; 0 before the server started."""

    published: list[int]
    delivered: list[int]
    dropped: list[int]


class StatsResponse(BaseModel):
    uptime_s: float
    topics: dict[str, TopicStatsBody]
    subscribers: list[SubscriberStatsBody]
    published: int
    duplicates: int
    delivered: int
    dropped: int
    rates: RatesBody
    last_minute: LastMinuteBody
    in_flight: int
    queue_bytes: int
    connections: int
    kernels: int = Field(description="Kernels that run.")


class PublishBody(BaseModel):
    """A message. Without an id it gets one, and a repeat of the request is then a new message."""

    id: str | None = Field(
        None,
        examples=["7d9f2c1e-0b7a-4c58-9d43-0f6c8a1f2b3c"],
        description="A UUID.",
        json_schema_extra={"anyOf": [{"type": "string", "format": "uuid"}, {"type": "null"}]},
    )
    payload: Any = Field(examples=[{"sku": "A-17", "quantity": 2}])
    headers: dict[str, str] | None = Field(None, examples=[{"source": "shop"}])


class PublishResponse(BaseModel):
    topic: str = Field(examples=["orders"])
    epoch: str
    count: int = Field(description="Messages of the request, repeats included.")
    duplicates: int = Field(description="How many of them were stored before.")
    offset: int | None = Field(None, description="Of the only message, if it was one.")
    offsets: list[int] | None = Field(None, description="Of each message, in order; not for NDJSON.")
    first: int | None = Field(None, description="Smallest offset of the request.")
    last: int | None = Field(None, description="Largest offset of the request.")


class StoredMessage(BaseModel):
    id: str
    payload: Any
    headers: dict[str, str]


class StoredRecord(BaseModel):
    offset: int
    ts: str
    message: StoredMessage


class FilterFailures(BaseModel):
    count: int = Field(description="Records on which the filter failed; they are left out.")
    offset: int = Field(description="The first of them.")
    message: str


class MessagesResponse(BaseModel):
    messages: list[StoredRecord]
    next: int = Field(description="Pass it as `from` to go on.")
    first: int = Field(description="The oldest offset that is kept.")
    end: int
    epoch: str
    failed: FilterFailures | None = Field(None, description="Only if the filter failed on records.")


class ErrorDetail(BaseModel):
    code: str = Field(examples=["TOPIC_NOT_FOUND"])
    message: str = Field(examples=["topic 'orders' does not exist; create it with POST /topics"])


class ErrorResponse(BaseModel):
    error: ErrorDetail


class SessionResponse(BaseModel):
    caller: str = Field(examples=["key:reports"])
    expires: str | None = Field(description="When what you showed ends; null if it does not by itself.")


class SignedOutResponse(BaseModel):
    status: Literal["signed out"] = "signed out"


class SessionSummary(BaseModel):
    id: str = Field(description="The public name of the session; not what its cookie holds.")
    caller: str = Field(examples=["key:reports"])
    created: str
    expires: str
    agent: str = Field(description="What the browser called itself.")


class SessionList(BaseModel):
    sessions: list[SessionSummary]


class RevokedResponse(BaseModel):
    status: Literal["revoked"] = "revoked"
    count: int


class ProofResponse(BaseModel):
    proof: str = Field(description="HMAC-SHA-256 of the nonce, by the hash of the key.")
