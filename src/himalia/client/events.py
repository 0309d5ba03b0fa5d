"""Values that the client library returns: events, notices about a subscription, receipts of publishes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from functools import cached_property
from typing import Any

import msgspec

from himalia.protocol import Message
from himalia.protocol.models import StoredMessage


class Event(msgspec.Struct, frozen=True, dict=True):
    """A record of a topic. ``raw`` is its payload as JSON; ``payload`` is decoded on first use."""

    topic: str
    offset: int
    ts: str
    id: str
    headers: dict[str, str]
    raw: bytes

    @cached_property
    def payload(self) -> Any:
        try:
            return msgspec.json.decode(self.raw)
        except msgspec.MsgspecError:
            # The standard library accepts lone surrogates, which msgspec refuses.
            return json.loads(self.raw)

    @property
    def time(self) -> datetime:
        """``ts`` as an aware ``datetime``."""
        return datetime.fromisoformat(self.ts)

    @classmethod
    def of(cls, topic: str, offset: int, ts: str, message: Message | StoredMessage) -> Event:
        return cls(topic, offset, ts, message.id, message.headers or {}, bytes(message.payload))


class Dropped(msgspec.Struct, frozen=True):
    """The subscriber was too slow for its policy: the server dropped ``first`` to ``last``. ``read`` returns them."""

    topic: str
    first: int
    last: int
    count: int


class Gap(msgspec.Struct, frozen=True):
    """Delivery resumes at ``first`` instead of ``requested``: the records between are no longer stored, or the topic
    was deleted and created again (``requested`` may then be greater than ``first``)."""

    topic: str
    requested: int
    first: int
    end: int


class TopicCreated(msgspec.Struct, frozen=True):
    """A topic that matches the pattern was created; all of its events follow."""

    topic: str
    epoch: str


class TopicDeleted(msgspec.Struct, frozen=True):
    """The topic was deleted. A subscription to it ends; one to a pattern continues with the other topics."""

    topic: str


class FilterFailure(msgspec.Struct, frozen=True):
    """The content filter failed on a record, which was left out."""

    topic: str
    message: str


class Disconnected(msgspec.Struct, frozen=True):
    """The connection was lost. The subscription reconnects by itself and resumes after the last event."""

    reason: str


class Resumed(msgspec.Struct, frozen=True):
    """The subscription has reconnected. Events that were published meanwhile follow."""

    url: str


Notice = Dropped | Gap | TopicCreated | TopicDeleted | FilterFailure | Disconnected | Resumed


class Outgoing(msgspec.Struct, frozen=True):
    """A message to publish with its own id or headers."""

    payload: Any
    id: str | None = None
    headers: Mapping[str, str] | None = None


class Published(msgspec.Struct, frozen=True):
    """The receipt of a stored message, which survives a crash of the server.

    If a message with the same id was stored before, it has the offset of that one.
    """

    topic: str
    offset: int
    epoch: str
    ts: str
    id: str
