"""A subscription and its cursors: which topics, from where, and what a slow subscriber may skip."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from himalia.log.api import Log
from himalia.pubsub.filters import Filter
from himalia.pubsub.outlet import Outlet
from himalia.record import Policy, Position, TopicInfo
from himalia.topics import is_pattern, matches

if TYPE_CHECKING:
    from himalia.pubsub.tail import View
    from himalia.pubsub.topic import Topic


class Start(msgspec.Struct, frozen=True):
    """Where delivery begins: one of the fields, or the end of the topic if none is given.

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


class Gap(msgspec.Struct, frozen=True):
    """A start that cannot be honoured: delivery begins at ``first`` instead of ``requested``."""

    topic: str
    requested: int
    first: int
    end: int


class SubscribeResult(msgspec.Struct, frozen=True):
    """Where delivery begins, for each topic, and the gaps where that is not what was requested."""

    positions: dict[str, Position]
    gaps: list[Gap]


async def resolve_start(log: Log, start: Start, info: TopicInfo) -> tuple[int, Gap | None]:
    """Return the offset at which delivery begins in this topic, and the gap if that is not the requested one."""
    offset, epoch = start.offset, start.epoch
    if start.positions is not None and info.name in start.positions:
        offset, epoch = start.positions[info.name]
    if offset is not None:
        # An offset beyond the end is honoured too: the cursor waits until the log reaches it.
        if info.first <= offset and epoch in (None, info.epoch):
            return offset, None
        return info.first, Gap(info.name, offset, info.first, info.end)
    if start.since_us is not None:
        return await log.offset_at(info.name, start.since_us), None
    return max(info.first, info.end - (start.last_n or 0)), None


def _may_read_all(topic: str, owner: str | None) -> bool:
    return True


class SubscriptionOptions(msgspec.Struct, frozen=True):
    """How to deliver to a subscriber."""

    policy: Policy = "drop_oldest"
    limit: int = 100
    """Records it may lag behind before the policy applies."""
    filter: Filter | None = None
    priority: int = 0
    start: Start = Start()
    can_read: Callable[[str, str | None], bool] = _may_read_all
    """Whether the subscriber has the right to read a topic, given its name and owner."""


class Subscriber:
    """One subscription of one client. ``owner`` is the caller: client ids of different callers never collide."""

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
        options: SubscriptionOptions = SubscriptionOptions(),
    ) -> None:
        self.pattern = pattern
        self.client_id = client_id
        self.outlet = outlet
        self.owner = owner
        # Copied from the options: delivery reads them for every cursor.
        self.policy = options.policy
        self.limit = options.limit
        self.filter = options.filter
        self.priority = options.priority
        self.start = options.start
        self.can_read = options.can_read
        self.cursors: dict[str, Cursor] = {}
        """By topic."""
        self.sent = 0
        self.dropped = 0

    @property
    def follows_pattern(self) -> bool:
        return is_pattern(self.pattern)

    @property
    def identity(self) -> tuple[str, str, str]:
        """Two subscriptions with the same identity are one: the newer replaces the older."""
        return (self.pattern, self.owner, self.client_id)

    def covers(self, topic: str, owner: str | None) -> bool:
        """Whether this subscription to a pattern includes a topic."""
        return matches(self.pattern, topic) and self.can_read(topic, owner)


class Cursor(msgspec.Struct, gc=False, eq=False):
    """``next`` is the offset to send next. It only grows, so nothing is sent twice.

    Invisible to the garbage collector, which would stop the server for 0.1 s to walk through 250,000 of them:
    ``Topic.unfollow`` must break every reference cycle that a cursor is part of.
    """

    subscriber: Subscriber
    topic: Topic
    next: int
    replay_until: int
    """Records below this were requested (last_n, from, since) and are never skipped."""
    view: View
    stalled: bool = False
    """Whether the transport was full when there was something to send: only then may records be skipped."""
    held: bool = False
    """Not served: its subscription is not acknowledged yet, or the log is being read for it."""
    is_queued: bool = False
    """Whether it is queued to be served."""
    closed: bool = False

    @property
    def lag(self) -> int:
        return max(0, self.topic.end - self.next)

    def exceeds_limit(self) -> bool:
        """Whether it lags further behind than its policy allows."""
        subscriber = self.subscriber
        return (
            subscriber.policy != "lossless"
            and self.next >= self.replay_until
            and self.topic.end - self.next > subscriber.limit
        )

    def skip(self) -> tuple[int, int]:
        """Move to the newest ``limit`` records; return the first and last offset skipped."""
        first = self.next
        self.next = self.topic.end - self.subscriber.limit
        return first, self.next - 1
