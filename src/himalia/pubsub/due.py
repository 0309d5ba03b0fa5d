"""Cursors that are to be served, in the order of their turn."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from heapq import heappop, heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from himalia.pubsub.cursor import Cursor


class DueCursors:
    """Those of higher priority first, else in the order they came. Adding and taking do not depend on the length."""

    def __init__(self) -> None:
        self._queues: dict[int, deque[Cursor]] = {}
        # The priorities of queues that are not empty, negated, as a heap.
        self._priorities: list[int] = []

    def __bool__(self) -> bool:
        return bool(self._priorities)

    def extend(self, cursors: Iterable[Cursor]) -> None:
        """Put those in line that are not there yet."""
        queues = self._queues
        for cursor in cursors:
            if not cursor.due:
                cursor.due = True
                queue = queues.get(cursor.subscriber.priority)
                if queue is None:
                    queue = self._add_queue(cursor.subscriber.priority)
                queue.append(cursor)

    def _add_queue(self, priority: int) -> deque[Cursor]:
        heappush(self._priorities, -priority)
        queue = self._queues[priority] = deque()
        return queue

    def take(self, count: int) -> list[Cursor]:
        """Up to ``count`` cursors, which are then no longer in line."""
        taken: list[Cursor] = []
        while self._priorities and len(taken) < count:
            priority = -self._priorities[0]
            queue = self._queues[priority]
            taken += [queue.popleft() for _ in range(min(len(queue), count - len(taken)))]
            if not queue:
                del self._queues[priority]
                heappop(self._priorities)
        for cursor in taken:
            cursor.due = False
        return taken
