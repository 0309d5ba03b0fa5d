"""Where a subscription stands. No I/O: server messages come in, events and notices come out.

What is asked for first is what the user asked for; after a lost connection it is every topic at the offset behind
the last one seen, with its epoch, so that nothing is lost and nothing comes twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from himalia.client.errors import error_from
from himalia.client.events import (
    Dropped,
    Event,
    FilterFailure,
    Gap,
    Notice,
    TopicCreated,
    TopicDeleted,
)
from himalia.errors import ErrorCode, SubscriptionReplaced
from himalia.protocol import ClientMessage, Policy, ServerMessage
from himalia.record import Position
from himalia.topics import is_pattern


class Progress:
    """The positions of one subscription, and what each message of the server does to them."""

    def __init__(self, first: ClientMessage) -> None:
        assert first.topic is not None
        self.topic = first.topic
        self.follows_pattern = is_pattern(first.topic)
        # For each topic the offset that comes next.
        self.positions: dict[str, Position] = {}
        # Whether the server has said yet where the topics stand.
        self.joined = False
        # The topic is gone, and nothing will come any more.
        self.ended = False
        # Topics that a resume found, and that are being asked for from their start.
        self._made_while_away: set[str] = set()
        self._first = first
        self._policy = first.policy or _default_policy(first)
        if isinstance(first.start, dict):
            # A map of positions is a resume already: topics it does not name are new and begin at their start.
            self.positions = {topic: _position(at) for topic, at in first.start.items()}
            self.joined = self.follows_pattern

    def request(self) -> ClientMessage:
        """What to ask the server for now."""
        if not self.joined:
            return self._first
        # The server's default for a start by offset is lossless; a resume must not change how the user is served.
        resume = replace(self._first, last_n=None, since=None, epoch=None, policy=self._policy)
        if self.follows_pattern:
            resume.start = {topic: _as_json(at) for topic, at in self.positions.items()}
        else:
            at = self.positions[self.topic]
            resume.start, resume.epoch = at.offset, at.epoch or None
        return resume

    def acknowledged(self, ack: ServerMessage) -> list[Notice] | None:
        """Take over the positions of an ack; returns what it tells, or ``None`` if it is not what we need.

        Topics that were made while we were away begin, for the server, at their end. They are ours from their
        first record on, so ``request`` has to be sent again; whatever comes before its answer is to be ignored.
        """
        given = self._given(ack)
        if self.joined and (missed := self._missed(given)):
            self.positions.update(missed)
            self._made_while_away.update(missed)
            return None
        told = self._changes(given) if self.joined else []
        self.positions = given
        self._made_while_away.clear()
        self.joined = True
        self.ended = not given and not self.follows_pattern
        if self.ended and not told:
            told = [TopicDeleted(self.topic)]
        return told

    def _changes(self, given: Mapping[str, Position]) -> list[Notice]:
        """Which topics went away and which are new, compared with what we knew."""
        known = self.positions.keys() - self._made_while_away
        gone: list[Notice] = [
            TopicDeleted(topic) for topic in self.positions if topic in known - given.keys()
        ]
        return gone + [TopicCreated(topic, at.epoch) for topic, at in given.items() if topic not in known]

    def _given(self, ack: ServerMessage) -> dict[str, Position]:
        if self.follows_pattern:
            return ack.topics or {}
        if ack.offset is None:
            return {}
        return {self.topic: Position(ack.offset, ack.epoch or "")}

    def _missed(self, given: Mapping[str, Position]) -> dict[str, Position]:
        return {
            topic: Position(0, at.epoch)
            for topic, at in given.items()
            if topic not in self.positions and at.offset > 0
        }

    def received(self, message: ServerMessage) -> Event | Notice | None:
        """What a message means to the user, if anything. Raises if it is the end of the subscription."""
        if message.type == "event":
            return self._event(message)
        if message.type == "info":
            return self._info(message)
        if message.type == "error" and message.error is not None:
            if message.error.code == ErrorCode.FILTER_FAILED:
                return FilterFailure(message.topic or self.topic, message.error.message)
            raise error_from(message.error, topic=message.topic or self.topic)
        return None

    def _event(self, message: ServerMessage) -> Event | None:
        topic, offset, ts = message.topic, message.offset, message.ts
        assert topic is not None and offset is not None and ts is not None and message.message is not None
        at = self.positions.get(topic)
        if at is not None and offset < at.offset:
            return None
        self.positions[topic] = Position(offset + 1, at.epoch if at else "")
        return Event.of(topic, offset, ts, message.message)

    def _info(self, message: ServerMessage) -> Notice | None:
        topic = message.topic or self.topic
        if message.msg == "dropped":
            first, last = message.first or 0, message.last or 0
            self._move(topic, last + 1)
            return Dropped(topic, first, last, last - first + 1)
        if message.msg == "gap":
            self._move(topic, message.first or 0)
            return Gap(topic, message.requested or 0, message.first or 0, message.end or 0)
        if message.msg == "topic_created":
            self.positions[topic] = Position(message.offset or 0, message.epoch or "")
            return TopicCreated(topic, message.epoch or "")
        if message.msg == "topic_deleted":
            self.positions.pop(topic, None)
            self.ended = not self.follows_pattern
            return TopicDeleted(topic)
        if message.msg == "replaced":
            raise SubscriptionReplaced(
                f"another subscriber with client_id {self._first.client_id!r} has taken over {self.topic!r}",
                topic=self.topic,
                client_id=self._first.client_id,
            )
        return None

    def _move(self, topic: str, offset: int) -> None:
        at = self.positions.get(topic)
        self.positions[topic] = Position(offset, at.epoch if at else "")


def _default_policy(first: ClientMessage) -> Policy:
    """What the server chooses where the user says nothing."""
    return "drop_oldest" if first.start is None and first.since is None else "lossless"


def _position(at: Any) -> Position:
    if isinstance(at, Mapping):
        return Position(at["offset"], at.get("epoch") or "")
    return Position(at, "")


def _as_json(at: Position) -> dict[str, Any]:
    return {"offset": at.offset, "epoch": at.epoch} if at.epoch else {"offset": at.offset}
