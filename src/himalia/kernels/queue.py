"""Requests that wait for their kernel: the highest priority first, else in the order they came."""

from __future__ import annotations

import heapq
from typing import Generic, TypeVar

T = TypeVar("T")


class PriorityQueue(Generic[T]):
    """Not safe for threads."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, T]] = []
        self._pushed = 0

    def __len__(self) -> int:
        return len(self._heap)

    def push(self, item: T, priority: int) -> None:
        self._pushed += 1
        # The number decides between equals, so that items are never compared.
        heapq.heappush(self._heap, (-priority, self._pushed, item))

    def peek(self) -> T:
        """The one that ``pop`` would take."""
        return self._heap[0][2]

    def pop(self) -> T:
        return heapq.heappop(self._heap)[2]

    def remove(self, item: T) -> bool:
        """Take one out of the middle; false if it is not there."""
        for at, entry in enumerate(self._heap):
            if entry[2] is item:
                self._heap[at] = self._heap[-1]
                self._heap.pop()
                heapq.heapify(self._heap)
                return True
        return False

    def clear(self) -> list[T]:
        """Take all out, in their order."""
        items = [entry[2] for entry in sorted(self._heap)]
        self._heap = []
        return items
