"""How many messages each topic got in each of the last 60 seconds. Memory follows the topics that got any."""

from __future__ import annotations

import time
from collections.abc import Callable

SECONDS = 60


class Activity:
    """Counts by topic and second. A count costs the same however many messages a commit has."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._topics: dict[str, _Counts] = {}

    def count(self, topic: str, epoch: str, messages: int) -> None:
        second = int(self._clock())
        counts = self._topics.get(topic)
        if counts is None or counts.epoch != epoch:
            counts = self._topics[topic] = _Counts(epoch, second)
        counts.add(second, messages)

    def last_minute(self, topic: str, epoch: str) -> list[int]:
        """The counts of the last 60 whole seconds, oldest first; empty if there was nothing."""
        counts = self._topics.get(topic)
        if counts is None or counts.epoch != epoch:
            return []
        return counts.before(int(self._clock()))

    def forget_idle(self) -> None:
        """Let go of topics without a message in the last minute. Costs in proportion to those counted."""
        second = int(self._clock())
        idle = [topic for topic, counts in self._topics.items() if second - counts.latest > SECONDS]
        for topic in idle:
            del self._topics[topic]

    def __len__(self) -> int:
        return len(self._topics)


class _Counts:
    """A ring with a place for each of the last 60 whole seconds and for the one that runs."""

    __slots__ = ("_ring", "epoch", "latest")

    def __init__(self, epoch: str, second: int) -> None:
        self.epoch = epoch
        self.latest = second
        self._ring = [0] * (SECONDS + 1)

    def add(self, second: int, messages: int) -> None:
        if second != self.latest:
            self._move_to(second)
        self._ring[second % len(self._ring)] += messages

    def before(self, second: int) -> list[int]:
        ring, size, latest = self._ring, len(self._ring), self.latest
        found = [ring[at % size] if at <= latest else 0 for at in range(second - SECONDS, second)]
        return found if any(found) else []

    def _move_to(self, second: int) -> None:
        for passed in range(max(self.latest + 1, second - SECONDS), second + 1):
            self._ring[passed % len(self._ring)] = 0
        self.latest = second
