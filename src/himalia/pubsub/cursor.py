"""A cursor: one subscriber's place in one topic, and the decision what a slow one may skip."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from himalia.pubsub.subscriber import Subscriber
    from himalia.pubsub.tail import View
    from himalia.pubsub.topic import Topic


class Cursor:
    """``next`` is the offset to send next. It only grows, so nothing is sent twice."""

    __slots__ = ("asked_until", "closed", "due", "next", "reading", "stalled", "subscriber", "topic", "view")

    def __init__(
        self, subscriber: Subscriber, topic: Topic, start: int, asked_until: int, view: View
    ) -> None:
        self.subscriber = subscriber
        self.topic = topic
        self.next = start
        # Records below this were asked for (last_n, from, since) and are never skipped.
        self.asked_until = asked_until
        self.view = view
        # Whether the transport was full when there was something to send: only then may records be skipped.
        self.stalled = False
        # Whether a read of the log is under way for this cursor.
        self.reading = False
        # Whether it is in line to be served.
        self.due = False
        self.closed = False

    @property
    def lag(self) -> int:
        return max(0, self.topic.end - self.next)

    def over_limit(self) -> bool:
        """Whether it has fallen further behind than its policy allows."""
        subscriber = self.subscriber
        return (
            subscriber.policy != "lossless"
            and self.next >= self.asked_until
            and self.topic.end - self.next > subscriber.limit
        )

    def skip(self) -> tuple[int, int]:
        """Move to the newest ``limit`` records; returns the first and last offset skipped."""
        first = self.next
        self.next = self.topic.end - self.subscriber.limit
        return first, self.next - 1
