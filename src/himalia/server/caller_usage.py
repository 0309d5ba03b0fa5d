"""What each caller uses at a time, over all its connections, and where its limits end that.

A caller is known by its qualified name: all connections, sessions and tokens of one caller share its limits. The state
of a caller is freed when it has no connection and has not published for as long as its rates need to recover.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from weakref import WeakSet

from himalia.errors import RateLimited, TooManyConnections, TooManySubscriptions
from himalia.pubsub import Outlet
from himalia.server.identity import CallerLimits, Principal

Clock = Callable[[], float]


class Bucket:
    """A token bucket that holds what a second brings. What is taken may exceed the rest: the debt delays what follows.

    So a body or a message may be larger than a second's worth, and the rate holds all the same.
    """

    __slots__ = ("_at_s", "_balance", "_rate")

    def __init__(self, rate: float, now_s: float) -> None:
        self._rate = rate
        self._balance = self.capacity
        self._at_s = now_s

    @property
    def capacity(self) -> float:
        """A rate below one a second still lets one through."""
        return max(self._rate, 1.0) if self._rate else 0.0

    def set_rate(self, rate: float, now_s: float) -> None:
        self.refill(now_s)
        self._rate = rate
        self._balance = min(self._balance, self.capacity)

    def refill(self, now_s: float) -> None:
        self._balance = min(self.capacity, self._balance + (now_s - self._at_s) * self._rate)
        self._at_s = now_s

    def wait_s(self) -> float | None:
        """How long until something may be taken: 0 for now, None for never."""
        if self._balance >= 1:
            return 0.0
        return (1 - self._balance) / self._rate if self._rate else None

    def take(self, amount: float) -> None:
        self._balance -= amount

    @property
    def is_full(self) -> bool:
        return self._balance >= self.capacity


class Place:
    """One connection of a caller, WebSocket or event stream, from its admission to its end."""

    __slots__ = ("__weakref__", "_usage", "outlet")

    def __init__(self, usage: CallerUsage) -> None:
        self._usage: CallerUsage | None = usage
        self.outlet: Outlet | None = None
        """Where its subscriptions are, as soon as it can have some."""

    def release(self) -> None:
        """The connection has ended. May be called more than once."""
        usage, self._usage = self._usage, None
        if usage is not None:
            usage.places.discard(self)


class CallerUsage:
    """What one caller uses now."""

    __slots__ = (
        "_bytes",
        "_clock",
        "_publishes",
        "_subscribing",
        "limits",
        "limits_publishing",
        "name",
        "places",
    )

    def __init__(self, name: str, limits: CallerLimits, clock: Clock) -> None:
        self.name = name
        self.limits = CallerLimits()
        # Weak, so that a connection which is gone without a word cannot count for ever.
        self.places: WeakSet[Place] = WeakSet()
        self._subscribing = 0
        self._clock = clock
        self._publishes: Bucket | None = None
        self._bytes: Bucket | None = None
        self.limits_publishing = False
        self.set_limits(limits)

    def set_limits(self, limits: CallerLimits) -> None:
        """The limits that count from now on: a keys file may have changed, or a token may carry others."""
        if limits == self.limits:
            return
        self._publishes = self._bucket(self._publishes, limits.publishes_per_s)
        self._bytes = self._bucket(self._bytes, limits.bytes_per_s)
        self.limits_publishing = self._publishes is not None or self._bytes is not None
        self.limits = limits

    def _bucket(self, bucket: Bucket | None, rate: float | None) -> Bucket | None:
        if rate is None:
            return None
        if bucket is None:
            return Bucket(rate, self._clock())
        bucket.set_rate(rate, self._clock())
        return bucket

    @property
    def is_idle(self) -> bool:
        """Whether nothing is lost if this is forgotten."""
        if self.places or self._subscribing:
            return False
        now_s = self._clock()
        for bucket in (self._publishes, self._bytes):
            if bucket is not None:
                bucket.refill(now_s)
                if not bucket.is_full:
                    return False
        return True

    # Publishing

    def publish(self, count: int, size_bytes: int) -> None:
        """Count messages that are about to be stored; ``RateLimited`` if the caller has to wait first."""
        wait_s = self.publish_wait_s()
        if wait_s is None or wait_s > 0:
            raise self._rate_limited(wait_s)
        if self._publishes is not None:
            self._publishes.take(count)
        if self._bytes is not None:
            self._bytes.take(size_bytes)

    def publish_wait_s(self) -> float | None:
        """How long until the caller may publish again: 0 for now, None for never."""
        now_s, longest_s = self._clock(), 0.0
        for bucket in (self._publishes, self._bytes):
            if bucket is not None:
                bucket.refill(now_s)
                wait_s = bucket.wait_s()
                if wait_s is None:
                    return None
                longest_s = max(longest_s, wait_s)
        return longest_s

    def _rate_limited(self, wait_s: float | None) -> RateLimited:
        limits = self.limits
        rates = [
            f"{rate:g} {unit} a second"
            for rate, unit in ((limits.publishes_per_s, "messages"), (limits.bytes_per_s, "bytes"))
            if rate is not None
        ]
        if wait_s is None:
            return RateLimited(f"{self.name!r} may publish nothing: its limit is {' and '.join(rates)}")
        return RateLimited(
            f"{self.name!r} may publish {' and '.join(rates)}; publish again in {max(wait_s, 0.001):.3g} s",
            retry_after_s=wait_s,
        )

    # Connections and subscriptions

    def enter(self) -> Place:
        limit = self.limits.connections
        if limit is not None and len(self.places) >= limit:
            raise TooManyConnections(
                f"{self.name!r} has {len(self.places)} connections open, its limit; close one first",
                limit=limit,
            )
        place = Place(self)
        self.places.add(place)
        return place

    @property
    def subscriptions(self) -> int:
        return sum(len(place.outlet.subscribers) for place in self.places if place.outlet is not None)

    @contextmanager
    def subscribing(self, identity: tuple[str, str, str]) -> Iterator[None]:
        """Around a subscription that is being made; ``TooManySubscriptions`` beyond the limit.

        One with the identity of another takes its place.
        """
        limit = self.limits.subscriptions
        if limit is not None and self.subscriptions + self._subscribing >= limit and not self._has(identity):
            raise TooManySubscriptions(
                f"{self.name!r} has {limit} subscriptions, its limit, over all its connections; end one first",
                limit=limit,
            )
        self._subscribing += 1
        try:
            yield
        finally:
            self._subscribing -= 1

    def _has(self, identity: tuple[str, str, str]) -> bool:
        return any(
            subscriber.identity == identity
            for place in self.places
            if place.outlet is not None
            for subscriber in place.outlet.subscribers
        )


class CallerUsages:
    """The usage of all callers that are at work. Lives on the event loop."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._usages: dict[str, CallerUsage] = {}

    def __len__(self) -> int:
        return len(self._usages)

    def of(self, principal: Principal) -> CallerUsage:
        """The caller's usage; the limits are those that it has shown last."""
        usage = self._usages.get(principal.name)
        if usage is None:
            usage = self._usages[principal.name] = CallerUsage(principal.name, principal.limits, self._clock)
        else:
            usage.set_limits(principal.limits)
        return usage

    def sweep(self) -> None:
        """Forget callers that have gone."""
        for name in [name for name, usage in self._usages.items() if usage.is_idle]:
            del self._usages[name]
