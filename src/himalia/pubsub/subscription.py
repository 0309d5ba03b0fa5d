"""A subscription and its cursors: which topics, from where, and what a slow subscriber may skip."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

import msgspec

from himalia.pubsub.filters import Filter
from himalia.pubsub.outlet import Outlet
from himalia.topics import is_pattern

if TYPE_CHECKING:
    from himalia.pubsub.feed import View
    from himalia.pubsub.topic import Topic


Policy = Literal["drop_oldest", "disconnect", "lossless"]


class Start(msgspec.Struct, frozen=True):
    """Where delivery begins: one of the fields, or at the end of the topic if none is given.

    ``positions`` maps topics of a pattern to where each begins; a topic that it does not name begins at its end.
    """

    last_n: int | None = None
    offset: int | None = None
    epoch: str | None = None
    since_us: int | None = None
    positions: dict[str, tuple[int, str | None]] | None = None

    @property
    def is_live(self) -> bool:
        return self == Start() or self.last_n == 0


class Subscriber:
    """One subscription of one client. ``owner`` is the key's name: client ids of different keys never collide."""

    __slots__ = (
        "can_read",
        "client_id",
        "cursors",
        "dropped",
        "filter",
        "limit",
        "outlet",
        "owner",
        "pattern",
        "policy",
        "priority",
        "sent",
        "start",
    )

    def __init__(
        self,
        pattern: str,
        client_id: str,
        outlet: Outlet,
        *,
        owner: str = "",
        policy: Policy = "drop_oldest",
        limit: int = 100,
        filter: Filter | None = None,
        priority: int = 0,
        start: Start = Start(),
    ) -> None:
        self.pattern = pattern
        self.client_id = client_id
        self.outlet = outlet
        self.owner = owner
        self.policy = policy
        self.limit = limit
        self.filter = filter
        self.priority = priority
        self.start = start
        # Which topics, by name and owner, this subscriber has a right to; all unless the server says otherwise.
        self.can_read: Callable[[str, str | None], bool] = _anything
        self.cursors: dict[str, Cursor] = {}
        self.sent = 0
        self.dropped = 0

    @property
    def active(self) -> bool:
        return not self.outlet.closed

    @property
    def follows_pattern(self) -> bool:
        return is_pattern(self.pattern)

    @property
    def identity(self) -> tuple[str, str, str]:
        """Two subscriptions with the same identity are one: the newer replaces the older."""
        return (self.pattern, self.owner, self.client_id)


def _anything(topic: str, owner: str | None) -> bool:
    return True


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
