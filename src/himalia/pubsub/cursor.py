"""A cursor: one subscriber's place in one topic, and the decision what a slow one may skip."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from himalia.pubsub.subscriber import Subscriber
    from himalia.pubsub.tail import View
    from himalia.pubsub.topic import Topic


class Cursor(msgspec.Struct, gc=False, eq=False):
    """``next`` is the offset to send next. It only grows, so nothing is sent twice.

    Invisible to the garbage collector, which would stop the server for 0.1 s to walk through 250,000 of them:
    ``Topic.unfollow`` breaks every cycle that a cursor is part of.
    """

    subscriber: Subscriber
    topic: Topic
    next: int
    asked_until: int
    """Records below this were asked for (last_n, from, since) and are never skipped."""
    view: View
    stalled: bool = False
    """Whether the transport was full when there was something to send: only then may records be skipped."""
    held: bool = False
    """Not served: its subscription is not acknowledged yet, or a read of the log is under way for it."""
    due: bool = False
    """Whether it is in line to be served."""
    closed: bool = False

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
