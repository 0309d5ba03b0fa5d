"""What a broker counts, and how it reports that."""

from __future__ import annotations

from bisect import bisect_left

import msgspec

from himalia.jupyter.channels import Channel

LATENCY_BOUNDS_S = (
    0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0,
)  # fmt: skip
"""Upper bounds of the buckets of the routing latency; one more bucket has none."""


class LatencyHistogram(msgspec.Struct, frozen=True):
    """How long messages took from the call that routed them to the last sink of their batch."""

    bounds_s: tuple[float, ...]
    counts: tuple[int, ...]
    """Messages per bucket (not cumulative); one more than there are bounds."""
    sum_s: float


class BrokerStats(msgspec.Struct, frozen=True):
    """A broker at one moment. All but the first four count since it was created."""

    active_requests: int
    orphan_messages: int
    orphan_bytes: int
    global_subscribers: int
    messages: int
    """Messages that were routed, to requests and to the orphans."""
    routed: dict[str, int]
    """Messages delivered to requests, by channel, claimed orphans among them."""
    orphaned: int
    """Messages without a registered request when they came, or whose sink was dead."""
    claimed: int
    """Orphans that were delivered to their request later, or read by ``claim_orphans``."""
    expired: int
    """Orphans dropped because of their age."""
    evicted: int
    """Orphans dropped because there was no room."""
    stale: int
    """Requests removed because they were silent."""
    dropped_by_requests: int
    """Messages that requests could not keep because they were not read in time."""
    dropped_by_subscribers: int
    pruned_requests: int
    """Requests removed because their sink was dead."""
    pruned_subscribers: int
    latency: LatencyHistogram

    @property
    def dropped(self) -> int:
        return self.dropped_by_requests + self.dropped_by_subscribers


class Cleaned(msgspec.Struct, frozen=True):
    """What a cleanup removed, and what is left."""

    stale: tuple[str, ...]
    """Ids of the requests that were silent for too long."""
    expired: int
    pruned: int
    """Requests and subscribers that were closed."""
    active_requests: int
    orphan_messages: int
    global_subscribers: int


class BrokerCounts:
    """The counters of a broker. Guarded by its lock."""

    __slots__ = (
        "claimed",
        "dropped_by_requests",
        "evicted",
        "expired",
        "latency",
        "latency_sum_s",
        "messages",
        "orphaned",
        "pruned_requests",
        "routed",
        "stale",
    )

    def __init__(self) -> None:
        self.messages = self.orphaned = self.claimed = self.expired = self.evicted = self.stale = 0
        # By requests that were removed; what the others dropped is read when needed.
        self.dropped_by_requests = 0
        self.pruned_requests = 0
        self.routed: dict[Channel, int] = dict.fromkeys(Channel, 0)
        self.latency = [0] * (len(LATENCY_BOUNDS_S) + 1)
        self.latency_sum_s = 0.0

    def observe_latency(self, messages: int, seconds: float) -> None:
        """Count a routed batch: each of its messages waited for the whole batch, at most."""
        self.latency[bisect_left(LATENCY_BOUNDS_S, seconds)] += messages
        self.latency_sum_s += seconds * messages

    def latency_histogram(self) -> LatencyHistogram:
        return LatencyHistogram(LATENCY_BOUNDS_S, tuple(self.latency), self.latency_sum_s)
