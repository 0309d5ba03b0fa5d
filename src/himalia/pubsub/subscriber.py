"""A subscription: who follows which topics, from where, and what happens when they are slow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec

from himalia.pubsub.cursor import Cursor
from himalia.pubsub.filters import Filter
from himalia.pubsub.outlet import Outlet
from himalia.topics import is_pattern

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
        "client_id",
        "cursors",
        "dropped",
        "filter",
        "limit",
        "may_follow",
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
        self.may_follow: Callable[[str, str | None], bool] = _anything
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
