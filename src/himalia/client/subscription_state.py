"""The state of a subscription, without I/O: server messages in, events and notices out.

The first request is the caller's. After a lost connection the request names, for each topic, the position after the
last event and its epoch, so that no event is lost or delivered twice.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from himalia.client.errors import make_error
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
from himalia.protocol import ClientMessage, NoticeKind, Policy, ServerMessage, StartPosition
from himalia.record import Position
from himalia.topics import is_pattern


class SubscriptionState:
    """The positions of one subscription, and how each message of the server changes them."""

    def __init__(self, first: ClientMessage) -> None:
        assert first.topic is not None
        self.topic = first.topic
        self.follows_pattern = is_pattern(first.topic)
        # The next offset, by topic.
        self.positions: dict[str, Position] = {}
        # Whether the positions are known: from an ack, or from the caller.
        self.joined = False
        # The topic was deleted, so no more events follow.
        self.ended = False
        # Topics that the ack of a resume named for the first time, requested again from their first record.
        self._created_while_disconnected: set[str] = set()
        self._first = first
        self._policy = first.policy or _choose_policy(first)
        if isinstance(first.start, dict):
            # A map of positions is a resume: topics that it lacks are new and begin at their first record.
            self.positions = {topic: _to_position(at) for topic, at in first.start.items()}
            self.joined = self.follows_pattern

    def request(self) -> ClientMessage:
        """Return the ``subscribe`` message to send now."""
        if not self.joined:
            return self._first
        # The server's default policy for a start by offset is lossless; a resume must not change the policy.
        resume = replace(self._first, last_n=None, since=None, epoch=None, policy=self._policy)
        if self.follows_pattern:
            resume.start = {
                topic: StartPosition(at.offset, at.epoch or None) for topic, at in self.positions.items()
            }
        else:
            at = self.positions[self.topic]
            resume.start, resume.epoch = at.offset, at.epoch or None
        return resume

    def on_ack(self, ack: ServerMessage) -> list[Notice] | None:
        """Adopt the positions of an ack. Returns the resulting notices, or None if ``request`` must be sent again.

        The server starts topics that were created while the client was disconnected at their end. The subscription
        covers them from their first record, so they are requested again; messages before the next ack are ignored.
        """
        acked = self._read_positions(ack)
        if self.joined and (unseen := self._find_unseen_topics(acked)):
            self.positions.update(unseen)
            self._created_while_disconnected.update(unseen)
            return None
        notices = self._find_changes(acked) if self.joined else []
        self.positions = acked
        self._created_while_disconnected.clear()
        self.joined = True
        self.ended = not acked and not self.follows_pattern
        if self.ended and not notices:
            notices = [TopicDeleted(self.topic)]
        return notices

    def _find_changes(self, acked: Mapping[str, Position]) -> list[Notice]:
        """Return a notice for each topic that was deleted or created since the last message."""
        known = self.positions.keys() - self._created_while_disconnected
        deleted: list[Notice] = [
            TopicDeleted(topic) for topic in self.positions if topic in known - acked.keys()
        ]
        return deleted + [TopicCreated(topic, at.epoch) for topic, at in acked.items() if topic not in known]

    def _read_positions(self, ack: ServerMessage) -> dict[str, Position]:
        if self.follows_pattern:
            return ack.topics or {}
        if ack.offset is None:
            return {}
        return {self.topic: Position(ack.offset, ack.epoch or "")}

    def _find_unseen_topics(self, acked: Mapping[str, Position]) -> dict[str, Position]:
        return {
            topic: Position(0, at.epoch)
            for topic, at in acked.items()
            if topic not in self.positions and at.offset > 0
        }

    def on_message(self, message: ServerMessage) -> Event | Notice | None:
        """Translate a message to an event or notice, if it is one. Raises an error that ends the subscription."""
        if message.type == "event":
            return self._to_event(message)
        if message.type == "info":
            return self._to_notice(message)
        if message.type == "error" and message.error is not None:
            if message.error.code == ErrorCode.FILTER_FAILED:
                return FilterFailure(message.topic or self.topic, message.error.message)
            raise make_error(message.error, topic=message.topic or self.topic)
        return None

    def _to_event(self, message: ServerMessage) -> Event | None:
        topic, offset, ts = message.topic, message.offset, message.ts
        assert topic is not None and offset is not None and ts is not None and message.message is not None
        at = self.positions.get(topic)
        if at is not None and offset < at.offset:
            return None
        self.positions[topic] = Position(offset + 1, at.epoch if at else "")
        return Event.of(topic, offset, ts, message.message)

    def _to_notice(self, message: ServerMessage) -> Notice | None:
        topic = message.topic or self.topic
        if message.msg == NoticeKind.DROPPED:
            first, last = message.first or 0, message.last or 0
            self._advance(topic, last + 1)
            return Dropped(topic, first, last, last - first + 1)
        if message.msg == NoticeKind.GAP:
            self._advance(topic, message.first or 0)
            return Gap(topic, message.requested or 0, message.first or 0, message.end or 0)
        if message.msg == NoticeKind.TOPIC_CREATED:
            self.positions[topic] = Position(message.offset or 0, message.epoch or "")
            return TopicCreated(topic, message.epoch or "")
        if message.msg == NoticeKind.TOPIC_DELETED:
            self.positions.pop(topic, None)
            self.ended = not self.follows_pattern
            return TopicDeleted(topic)
        if message.msg == NoticeKind.REPLACED:
            raise SubscriptionReplaced(
                f"another subscriber with client_id {self._first.client_id!r} has taken over {self.topic!r}",
                topic=self.topic,
                client_id=self._first.client_id,
            )
        return None

    def _advance(self, topic: str, offset: int) -> None:
        at = self.positions.get(topic)
        self.positions[topic] = Position(offset, at.epoch if at else "")


def _choose_policy(first: ClientMessage) -> Policy:
    """Return the policy that the server chooses by default."""
    return "drop_oldest" if first.start is None and first.since is None else "lossless"


def _to_position(at: int | StartPosition) -> Position:
    return Position(at.offset, at.epoch or "") if isinstance(at, StartPosition) else Position(at, "")
