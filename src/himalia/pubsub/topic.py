"""A topic that somebody follows: its recent records and the cursors on it."""

from __future__ import annotations

from collections.abc import Iterable

from himalia.pubsub.feed import Tail, View
from himalia.pubsub.subscription import Cursor, Subscriber


class Topic:
    """Exists only while it has cursors, so that memory follows the subscribers and not the topics."""

    __slots__ = (
        "_cursors",
        "_filtered",
        "_view_users",
        "epoch",
        "marked_meanwhile",
        "name",
        "refreshing",
        "tail",
    )

    def __init__(self, name: str, epoch: str, end: int, tail_records: int) -> None:
        self.name = name
        self.epoch = epoch
        self.tail = Tail(end, tail_records)
        # Whether the tail is being filled from the log because its newest records were not at hand.
        self.refreshing = False
        self.marked_meanwhile = False
        self._cursors: dict[Cursor, None] = {}
        self._filtered: dict[Cursor, None] = {}
        self._view_users: dict[View, int] = {}

    @property
    def end(self) -> int:
        """One past the last committed record that subscribers may see."""
        return self.tail.end

    @property
    def cursors(self) -> list[Cursor]:
        """All cursors, in the order they came."""
        return list(self._cursors)

    @property
    def filtered_cursors(self) -> Iterable[Cursor]:
        """The cursors that wait for a filter's judgement on new records."""
        return self._filtered

    def __len__(self) -> int:
        return len(self._cursors)

    def follow(self, subscriber: Subscriber, start: int, asked_until: int) -> Cursor:
        view = self.tail.view(subscriber.outlet.codec, subscriber.filter, start)
        cursor = Cursor(subscriber, self, start, asked_until, view)
        self._cursors[cursor] = None
        if subscriber.filter is not None:
            self._filtered[cursor] = None
        self._view_users[view] = self._view_users.get(view, 0) + 1
        subscriber.cursors[self.name] = cursor
        return cursor

    def unfollow(self, cursor: Cursor) -> bool:
        """Take the cursor away; false if that was done before."""
        if self._cursors.pop(cursor, cursor) is cursor:
            return False
        self._filtered.pop(cursor, None)
        cursor.closed = True
        cursor.subscriber.cursors.pop(self.name, None)
        cursor.subscriber.outlet.forget(cursor)
        self._view_users[cursor.view] -= 1
        if not self._view_users[cursor.view]:
            del self._view_users[cursor.view]
            self.tail.forget_view(cursor.view)
        return True

    def lag(self) -> int:
        """How far the slowest cursor is behind."""
        return max((cursor.lag for cursor in self._cursors if not cursor.closed), default=0)
