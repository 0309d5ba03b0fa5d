"""Statistics of publish and subscribe, messages per topic and second, and the interface of tracing.

One frozen object feeds the REST call, the metrics, the CLI and the tests. No tracing library is imported here; the
server provides one.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Protocol

from himalia.log.api import Batch
from himalia.protocol.models import LastMinute, Rates, SubscriberStats, TopicStats
from himalia.record import Record, TopicInfo

if TYPE_CHECKING:
    from himalia.pubsub.subscription import Subscriber
    from himalia.pubsub.topic import Topic


RATE_SECONDS = 10


class Counters:
    """Totals since the start, and rates from one sample per second."""

    def __init__(self) -> None:
        self.started = time.monotonic()
        self.published = 0
        self.duplicates = 0
        self.delivered = 0
        self.dropped = 0
        self._samples: deque[tuple[float, int, int, int]] = deque(maxlen=SECONDS + 1)
        self.sample()

    @property
    def uptime_s(self) -> float:
        return time.monotonic() - self.started

    def sample(self) -> None:
        self._samples.append((time.monotonic(), self.published, self.delivered, self.dropped))

    def rates(self) -> Rates:
        then, published, delivered, dropped = self._samples[-min(len(self._samples), RATE_SECONDS + 1)]
        seconds = max(time.monotonic() - then, 1e-3)
        return Rates(
            (self.published - published) / seconds,
            (self.delivered - delivered) / seconds,
            (self.dropped - dropped) / seconds,
        )

    def last_minute(self) -> LastMinute:
        return LastMinute(self._by_second(1), self._by_second(2), self._by_second(3))

    def _by_second(self, column: int) -> list[int]:
        totals = [int(sample[column]) for sample in self._samples]
        grown = [after - before for before, after in pairwise(totals)]
        return [0] * (SECONDS - len(grown)) + grown


def topic_stats(info: TopicInfo, topic: Topic | None, activity: Activity) -> TopicStats:
    """Return the statistics of a topic; ``topic`` is None if it has no subscribers."""
    return TopicStats(
        messages=info.end,
        bytes=info.bytes,
        first=info.first,
        end=info.end,
        epoch=info.epoch,
        subscribers=0 if topic is None else len(topic),
        lag=0 if topic is None else topic.lag(),
        last_minute=activity.last_minute(info.name, info.epoch),
    )


def subscriber_stats(subscriber: Subscriber) -> SubscriberStats:
    return SubscriberStats(
        client_id=subscriber.client_id,
        topic=subscriber.pattern,
        policy=subscriber.policy,
        sent=subscriber.sent,
        dropped=subscriber.dropped,
        lag=max((cursor.lag for cursor in subscriber.cursors.values()), default=0),
    )


SECONDS = 60


class Activity:
    """Messages by topic and second. Counting costs the same however many messages a commit has."""

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
        """Return the counts of the last 60 whole seconds, oldest first; empty if all are 0."""
        counts = self._topics.get(topic)
        if counts is None or counts.epoch != epoch:
            return []
        return counts.before(int(self._clock()))

    def drop_idle(self) -> None:
        """Drop topics without a message in the last minute. The cost grows with the topics counted."""
        second = int(self._clock())
        idle = [topic for topic, counts in self._topics.items() if second - counts.latest > SECONDS]
        for topic in idle:
            del self._topics[topic]

    def __len__(self) -> int:
        return len(self._topics)


class _Counts:
    """A ring buffer of the last 60 whole seconds and the current one."""

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


class Tracing(Protocol):
    def start_publish(self, batch: Batch) -> tuple[Batch, Callable[[BaseException | None], None]]:
        """Return the batch with the trace's context in its headers, and a callback for its error or None at the end."""
        ...

    def record_delivery(self, topic: str, records: Sequence[Record], subscribers: int) -> None:
        """Note that these records are about to be sent to that many subscribers."""
