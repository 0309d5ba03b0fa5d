"""What the broker says of itself: one frozen object for the REST call, the metrics, the CLI and the tests."""

from __future__ import annotations

import time
from collections import deque
from itertools import pairwise
from typing import TYPE_CHECKING

import msgspec

from himalia.pubsub.activity import SECONDS

if TYPE_CHECKING:
    from himalia.pubsub.subscriber import Subscriber

RATE_SECONDS = 10


class TopicStats(msgspec.Struct, frozen=True):
    messages: int
    """Messages ever published to the topic: the offset the next one gets."""
    bytes: int
    """Bytes of the records that are kept."""
    first: int
    end: int
    epoch: str
    subscribers: int
    lag: int
    """Records by which the slowest subscriber is behind."""
    last_minute: list[int]
    """Messages in each of the last 60 whole seconds, oldest first; empty if there were none."""


class SubscriberStats(msgspec.Struct, frozen=True):
    client_id: str
    topic: str
    policy: str
    sent: int
    dropped: int
    lag: int


class Rates(msgspec.Struct, frozen=True):
    """Per second, over the last ten seconds or less."""

    published: float
    delivered: float
    dropped: float


class LastMinute(msgspec.Struct, frozen=True):
    """Records in each of the last 60 seconds, oldest first; 0 before the server started."""

    published: list[int]
    delivered: list[int]
    dropped: list[int]


class PubSubStats(msgspec.Struct, frozen=True):
    uptime_s: float
    topics: dict[str, TopicStats]
    subscribers: list[SubscriberStats]
    published: int
    duplicates: int
    delivered: int
    dropped: int
    rates: Rates
    last_minute: LastMinute
    in_flight: int
    """Publishes that wait for their commit."""
    queue_bytes: int
    """Bytes that were given to transports and not taken by the peers yet."""


class Meter:
    """Totals since the start, and rates from one sample a second."""

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


def subscriber_stats(subscriber: Subscriber) -> SubscriberStats:
    return SubscriberStats(
        client_id=subscriber.client_id,
        topic=subscriber.pattern,
        policy=subscriber.policy,
        sent=subscriber.sent,
        dropped=subscriber.dropped,
        lag=max((cursor.lag for cursor in subscriber.cursors.values()), default=0),
    )
