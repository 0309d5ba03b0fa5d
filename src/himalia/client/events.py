"""What a client gets: events, notices of what happened to its subscription, receipts of what it published."""

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
    """A record of a topic. ``raw`` is its payload as JSON; ``payload`` is decoded when first asked for."""

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
            # Lone surrogates and the like, which the standard library lets pass.
            return json.loads(self.raw)

    @property
    def time(self) -> datetime:
        """``ts`` as an aware ``datetime``."""
        return datetime.fromisoformat(self.ts)

    @classmethod
    def of(cls, topic: str, offset: int, ts: str, message: Message | StoredMessage) -> Event:
        return cls(topic, offset, ts, message.id, message.headers or {}, bytes(message.payload))


class Dropped(msgspec.Struct, frozen=True):
    """This subscriber was too slow for its policy: offsets ``first`` to ``last`` were skipped. ``read`` has them."""

    topic: str
    first: int
    last: int
    count: int


class Gap(msgspec.Struct, frozen=True):
    """Delivery goes on at ``first`` and not at ``requested``: the records between are not kept any more, or the
    topic was deleted and created again (then ``requested`` may be behind ``first``)."""

    topic: str
    requested: int
    first: int
    end: int


class TopicCreated(msgspec.Struct, frozen=True):
    """A topic that matches the pattern was made; its events follow from its first one on."""

    topic: str
    epoch: str


class TopicDeleted(msgspec.Struct, frozen=True):
    """The topic is gone. A subscription to just this topic ends here; one to a pattern goes on with the others."""

    topic: str


class FilterFailure(msgspec.Struct, frozen=True):
    """The content filter failed on a record (not on all: then it would not have been taken). It was left out."""

    topic: str
    message: str


class Disconnected(msgspec.Struct, frozen=True):
    """The connection was lost. The subscription reconnects by itself and goes on where it was."""

    reason: str


class Resumed(msgspec.Struct, frozen=True):
    """Connected again. What was published meanwhile follows."""

    url: str


Notice = Dropped | Gap | TopicCreated | TopicDeleted | FilterFailure | Disconnected | Resumed


class Outgoing(msgspec.Struct, frozen=True):
    """A message to publish, where the payload alone does not say it all."""

    payload: Any
    id: str | None = None
    headers: Mapping[str, str] | None = None


class Published(msgspec.Struct, frozen=True):
    """A message that is stored: a crash of the server cannot take it back.

    One that was published before with the same id has the offset that it got then.
    """

    topic: str
    offset: int
    epoch: str
    ts: str
    id: str
