"""The cursors that are due to be served."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from heapq import heappop, heappush

from himalia.pubsub.subscription import Cursor


class CursorQueue:
    """Higher priority first, then first come, first served. The cost of adding and popping is constant."""

    def __init__(self) -> None:
        self._queues: dict[int, deque[Cursor]] = {}
        # The priorities of queues that are not empty, negated, as a heap.
        self._priorities: list[int] = []

    def __bool__(self) -> bool:
        return bool(self._priorities)

    def add(self, cursors: Iterable[Cursor]) -> None:
        """Add those that are not queued yet."""
        queues = self._queues
        for cursor in cursors:
            if not cursor.is_queued:
                cursor.is_queued = True
                queue = queues.get(cursor.subscriber.priority)
                if queue is None:
                    queue = self._add_queue(cursor.subscriber.priority)
                queue.append(cursor)

    def _add_queue(self, priority: int) -> deque[Cursor]:
        heappush(self._priorities, -priority)
        queue = self._queues[priority] = deque()
        return queue

    def pop(self, count: int) -> list[Cursor]:
        """Remove and return up to ``count`` cursors."""
        popped: list[Cursor] = []
        while self._priorities and len(popped) < count:
            priority = -self._priorities[0]
            queue = self._queues[priority]
            popped += [queue.popleft() for _ in range(min(len(queue), count - len(popped)))]
            if not queue:
                del self._queues[priority]
                heappop(self._priorities)
        for cursor in popped:
            cursor.is_queued = False
        return popped
