"""What each caller uses at a time, over all its connections, and the caller's own limits on that.

A caller is identified by its qualified name: all connections, sessions and tokens of one caller share its limits. The
state of a caller is freed when it has no connection and has not published for as long as its rates need to recover.
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


class TokenBucket:
    """A token bucket with the capacity of one second. One may spend more than is left: the debt delays what follows.

    So a body or a message may be larger than the capacity, and the rate holds nevertheless.
    """

    __slots__ = ("_at_s", "_balance", "_rate")

    def __init__(self, rate: float, now_s: float) -> None:
        self._rate = rate
        self._balance = self.capacity
        self._at_s = now_s

    @property
    def capacity(self) -> float:
        """At least one, so that a rate below one per second admits one after a while."""
        return max(self._rate, 1.0) if self._rate else 0.0

    def set_rate(self, rate: float, now_s: float) -> None:
        self.refill(now_s)
        self._rate = rate
        self._balance = min(self._balance, self.capacity)

    def refill(self, now_s: float) -> None:
        self._balance = min(self.capacity, self._balance + (now_s - self._at_s) * self._rate)
        self._at_s = now_s

    def wait_s(self) -> float | None:
        """Return how long until one may spend: 0 for now, None for never."""
        if self._balance >= 1:
            return 0.0
        return (1 - self._balance) / self._rate if self._rate else None

    def spend(self, amount: float) -> None:
        self._balance -= amount

    @property
    def is_full(self) -> bool:
        return self._balance >= self.capacity


class ConnectionSlot:
    """One connection of a caller, WebSocket or event stream, from its admission to its end."""

    __slots__ = ("__weakref__", "_usage", "outlet")

    def __init__(self, usage: CallerUsage) -> None:
        self._usage: CallerUsage | None = usage
        self.outlet: Outlet | None = None
        """The outlet with its subscriptions; None until the connection can have some."""

    def release(self) -> None:
        """Called when the connection has ended. Idempotent."""
        usage, self._usage = self._usage, None
        if usage is not None:
            usage.slots.discard(self)


class CallerUsage:
    """What one caller uses now."""

    __slots__ = (
        "_bytes",
        "_clock",
        "_publishes",
        "_reserved",
        "limits",
        "limits_publishing",
        "name",
        "slots",
    )

    def __init__(self, name: str, limits: CallerLimits, clock: Clock) -> None:
        self.name = name
        self.limits = CallerLimits()
        # Weak, so that a connection whose end was missed does not count any longer than it exists.
        self.slots: WeakSet[ConnectionSlot] = WeakSet()
        self._reserved = 0
        self._clock = clock
        self._publishes: TokenBucket | None = None
        self._bytes: TokenBucket | None = None
        self.limits_publishing = False
        self.set_limits(limits)

    def set_limits(self, limits: CallerLimits) -> None:
        """Apply these limits from now on: a keys file may have changed, or a token may carry others."""
        if limits == self.limits:
            return
        self._publishes = self._bucket(self._publishes, limits.publishes_per_s)
        self._bytes = self._bucket(self._bytes, limits.bytes_per_s)
        self.limits_publishing = self._publishes is not None or self._bytes is not None
        self.limits = limits

    def _bucket(self, bucket: TokenBucket | None, rate: float | None) -> TokenBucket | None:
        if rate is None:
            return None
        if bucket is None:
            return TokenBucket(rate, self._clock())
        bucket.set_rate(rate, self._clock())
        return bucket

    @property
    def is_idle(self) -> bool:
        """Whether this can be dropped: it has no connection, and its rates have recovered."""
        if self.slots or self._reserved:
            return False
        now_s = self._clock()
        for bucket in (self._publishes, self._bytes):
            if bucket is not None:
                bucket.refill(now_s)
                if not bucket.is_full:
                    return False
        return True

    # Publishing

    def count_publish(self, count: int, size_bytes: int) -> None:
        """Count messages that are about to be stored; ``RateLimited`` if the caller has to wait first."""
        wait_s = self.publish_wait_s()
        if wait_s is None or wait_s > 0:
            raise self._rate_limited(wait_s)
        if self._publishes is not None:
            self._publishes.spend(count)
        if self._bytes is not None:
            self._bytes.spend(size_bytes)

    def publish_wait_s(self) -> float | None:
        """Return how long until the caller may publish again: 0 for now, None for never."""
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
            return RateLimited(f"{self.name!r} may not publish at all: its limit is {' and '.join(rates)}")
        return RateLimited(
            f"{self.name!r} may publish {' and '.join(rates)}; publish again in {max(wait_s, 0.001):.3g} s",
            retry_after_s=wait_s,
        )

    # Connections and subscriptions

    def open_slot(self) -> ConnectionSlot:
        """Count a connection until its slot is released; ``TooManyConnections`` beyond the limit."""
        limit = self.limits.connections
        if limit is not None and len(self.slots) >= limit:
            raise TooManyConnections(
                f"{self.name!r} has {len(self.slots)} connections open, its limit; close one first",
                limit=limit,
            )
        slot = ConnectionSlot(self)
        self.slots.add(slot)
        return slot

    @property
    def subscriptions(self) -> int:
        return sum(len(slot.outlet.subscribers) for slot in self.slots if slot.outlet is not None)

    @contextmanager
    def reserve_subscription(self, identity: tuple[str, str, str]) -> Iterator[None]:
        """Count a subscription while it is being made; ``TooManySubscriptions`` beyond the limit.

        A subscription with the identity of an existing one replaces it, so it is always admitted.
        """
        limit = self.limits.subscriptions
        if limit is not None and self.subscriptions + self._reserved >= limit and not self._has(identity):
            raise TooManySubscriptions(
                f"{self.name!r} has {limit} subscriptions, its limit, over all its connections; end one first",
                limit=limit,
            )
        self._reserved += 1
        try:
            yield
        finally:
            self._reserved -= 1

    def _has(self, identity: tuple[str, str, str]) -> bool:
        return any(
            subscriber.identity == identity
            for slot in self.slots
            if slot.outlet is not None
            for subscriber in slot.outlet.subscribers
        )


class CallerUsages:
    """The usage of all active callers. Belongs to the event loop."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._usages: dict[str, CallerUsage] = {}

    def __len__(self) -> int:
        return len(self._usages)

    def of(self, principal: Principal) -> CallerUsage:
        """Return the caller's usage, with the limits of this principal, the latest of the caller."""
        usage = self._usages.get(principal.name)
        if usage is None:
            usage = self._usages[principal.name] = CallerUsage(principal.name, principal.limits, self._clock)
        else:
            usage.set_limits(principal.limits)
        return usage

    def sweep(self) -> None:
        """Drop the usage of idle callers."""
        for name in [name for name, usage in self._usages.items() if usage.is_idle]:
            del self._usages[name]
