"""A followed topic: its recent records and the cursors on it."""

from __future__ import annotations

from collections.abc import Iterable

from himalia.pubsub.subscription import Cursor, Subscriber
from himalia.pubsub.tail import Tail, View


class Topic:
    """Exists only while it has cursors, so memory grows with subscribers, not with topics."""

    __slots__ = (
        "_cursors",
        "_filtered",
        "_view_users",
        "epoch",
        "marked_while_refilling",
        "name",
        "refilling",
        "tail",
    )

    def __init__(self, name: str, epoch: str, end: int, tail_records: int) -> None:
        self.name = name
        self.epoch = epoch
        self.tail = Tail(end, tail_records)
        # Whether a task refills the tail from the log, because the newest records were not in memory.
        self.refilling = False
        self.marked_while_refilling = False
        self._cursors: dict[Cursor, None] = {}
        self._filtered: dict[Cursor, None] = {}
        self._view_users: dict[View, int] = {}

    @property
    def end(self) -> int:
        """One past the last committed record that subscribers may see."""
        return self.tail.end

    @property
    def cursors(self) -> list[Cursor]:
        """All cursors, in the order they were added."""
        return list(self._cursors)

    @property
    def filtered_cursors(self) -> Iterable[Cursor]:
        """The cursors with a filter."""
        return self._filtered

    def __len__(self) -> int:
        return len(self._cursors)

    def follow(self, subscriber: Subscriber, start: int, replay_until: int) -> Cursor:
        """Add a cursor for a subscriber."""
        view = self.tail.view(subscriber.outlet.codec, subscriber.filter, start)
        cursor = Cursor(subscriber, self, start, replay_until, view)
        self._cursors[cursor] = None
        if subscriber.filter is not None:
            self._filtered[cursor] = None
        self._view_users[view] = self._view_users.get(view, 0) + 1
        subscriber.cursors[self.name] = cursor
        return cursor

    def unfollow(self, cursor: Cursor) -> bool:
        """Remove a cursor; return False if it was removed before."""
        if cursor not in self._cursors:
            return False
        del self._cursors[cursor]
        self._filtered.pop(cursor, None)
        cursor.closed = True
        cursor.subscriber.cursors.pop(self.name, None)
        cursor.subscriber.outlet.remove(cursor)
        self._view_users[cursor.view] -= 1
        if not self._view_users[cursor.view]:
            del self._view_users[cursor.view]
            self.tail.remove_view(cursor.view)
        return True

    def lag(self) -> int:
        """Return how far the slowest cursor is behind."""
        return max((cursor.lag for cursor in self._cursors if not cursor.closed), default=0)
