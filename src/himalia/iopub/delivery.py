"""Delivery of routed messages to sinks and subscribers: for each of them in order, and in one thread at a time.

The router appends to a ``DeliveryQueue`` under the broker's lock, and delivers it without the lock. A thread that finds
a queue in delivery leaves what it appended to the thread that delivers it, which continues until the queue is empty.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from threading import Lock
from typing import Generic, Protocol, TypeVar

import msgspec

from himalia.iopub.channels import Sink
from himalia.jupyter.channels import Channel
from himalia.jupyter.wire import KernelMessage

logger = logging.getLogger("himalia.iopub.broker")

T = TypeVar("T")


class Subscriber(Protocol):
    """Gets every message. One that can be closed may have an attribute ``closed``, and one that drops messages an
    attribute ``dropped``, the number so far: the broker's cleanup and statistics read them.
    """

    def offer(self, messages: Sequence[KernelMessage]) -> bool:
        """Get these messages, in order; return False to end the subscription.

        Called in a thread that routes, one call at a time. It may not block, and may not keep the router waiting;
        a subscriber that raises is removed. The sequence is shared with others and never changes.
        """


class RoutedMessage(msgspec.Struct, frozen=True, gc=False):
    """An item for a request: a message with its channel and number or, without one, the end by silence."""

    message: KernelMessage | None
    channel: Channel
    sequence: int


EXPIRED = RoutedMessage(None, Channel.STATUS, -1)


class DeliveryQueue(Generic[T]):
    """What waits for one sink or subscriber. Guarded by the broker's lock."""

    __slots__ = ("busy", "pending")

    def __init__(self) -> None:
        self.pending: list[T] = []
        self.busy = False
        """Whether a thread delivers. It continues until ``pending`` is empty."""

    def begin(self) -> list[T]:
        """Return what to deliver now; nothing if another thread delivers already."""
        return [] if self.busy else self.next()

    def next(self) -> list[T]:
        """Return what was appended while this thread delivered; it is done if that is empty."""
        items, self.pending = self.pending, []
        self.busy = bool(items)
        return items

    def stop(self, items: Iterable[T] = ()) -> None:
        """Stop delivering; these were not delivered, and the next thread continues with them."""
        self.pending[:0] = items
        self.busy = False


class RequestContext(DeliveryQueue[RoutedMessage]):
    """A registered request, as the broker sees it. Attributes are for reading."""

    __slots__ = ("channels", "claimed", "last_active_s", "messages", "request_id", "started_s")

    def __init__(self, request_id: str, channels: Sink, now_s: float) -> None:
        super().__init__()
        self.request_id = request_id
        self.channels = channels
        self.started_s = now_s
        """When it was registered, by the broker's clock."""
        self.last_active_s = now_s
        """When it last had a message, or a touch."""
        self.messages = 0
        """Messages that were routed to it so far; also the number of the next one."""
        self.claimed = 0
        """How many of them had come before it was registered."""

    def deliver_pending(self, lock: Lock) -> list[RoutedMessage] | None:
        """Deliver until nothing is left, unless another thread does.

        Returns what the sink did not get if it turned out to be dead; the queue is still in delivery then. Else None.
        """
        with lock:
            items = self.begin()
        while items:
            left = self._deliver(items, lock)
            if left is not None:
                return left
            with lock:
                items = self.next()
        return None

    def _deliver(self, items: Sequence[RoutedMessage], lock: Lock) -> list[RoutedMessage] | None:
        sink = self.channels
        left = iter(items)
        item = items[0]
        try:
            for item in left:
                if item.message is None:
                    sink.expire()
                elif sink.deliver(item.message, item.channel, item.sequence) is False:
                    return [item, *left]
        except Exception:
            logger.exception("the sink of request %s failed and is removed", self.request_id)
            return [item, *left]
        except BaseException:
            # An interrupt of this thread, not of the request: the next thread continues where this one stopped.
            with lock:
                self.stop(left)
            raise
        return None


class SubscriberQueue(DeliveryQueue[Sequence[KernelMessage]]):
    """A global subscriber, as the broker sees it."""

    __slots__ = ("subscriber",)

    def __init__(self, subscriber: Subscriber) -> None:
        super().__init__()
        self.subscriber = subscriber

    def deliver_pending(self, lock: Lock) -> bool:
        """Deliver until nothing is left, unless another thread does; return False if the subscriber is dead."""
        with lock:
            batches = self.begin()
        while batches:
            if not self._offer(batches, lock):
                return False
            with lock:
                batches = self.next()
        return True

    def _offer(self, batches: Sequence[Sequence[KernelMessage]], lock: Lock) -> bool:
        left = iter(batches)
        try:
            return all(self.subscriber.offer(batch) is not False for batch in left)
        except Exception:
            logger.exception("a global subscriber failed and is removed")
            return False
        except BaseException:
            with lock:
                self.stop(left)
            raise


class GlobalSubscribers:
    """The global subscribers of a broker. Guarded by the broker's lock; ``deliver`` acquires it."""

    def __init__(self, lock: Lock) -> None:
        self._lock = lock
        self._all: list[SubscriberQueue] = []
        self.dropped_before = 0
        """Messages dropped by subscribers that were removed."""
        self.pruned = 0
        """Subscribers removed because they were dead."""

    def __len__(self) -> int:
        return len(self._all)

    def add(self, subscriber: Subscriber) -> None:
        """Add a subscriber, unless it is there already."""
        if all(one.subscriber is not subscriber for one in self._all):
            self._all.append(SubscriberQueue(subscriber))

    def remove(self, subscriber: Subscriber) -> bool:
        return any(self._remove(one) for one in self._all if one.subscriber is subscriber)

    def remove_closed(self) -> int:
        """Remove the subscribers that were closed; return how many."""
        closed = [one for one in self._all if is_closed(one.subscriber)]
        for one in closed:
            self._remove(one)
        self.pruned += len(closed)
        return len(closed)

    @property
    def dropped(self) -> int:
        """Messages dropped by subscribers, removed ones included."""
        return self.dropped_before + sum(dropped_by(one.subscriber) for one in self._all)

    def append(self, batch: Sequence[KernelMessage], only: Subscriber | None = None) -> list[SubscriberQueue]:
        """Append a batch for every subscriber, or for one; return the subscriptions that no thread delivers yet."""
        due = self._all if only is None else [one for one in self._all if one.subscriber is only]
        for one in due:
            one.pending.append(batch)
        return [one for one in due if not one.busy]

    def has(self, subscriber: Subscriber) -> bool:
        return any(one.subscriber is subscriber for one in self._all)

    def deliver(self, due: Sequence[SubscriberQueue]) -> None:
        """Deliver to these subscribers. Called without the lock."""
        for one in due:
            if not one.deliver_pending(self._lock):
                self._prune(one)

    def _prune(self, one: SubscriberQueue) -> None:
        with self._lock:
            one.next()
            one.stop()
            if self._remove(one):
                self.pruned += 1

    def _remove(self, one: SubscriberQueue) -> bool:
        if one not in self._all:
            return False
        # A new list: ``deliver`` may be iterating over the old one.
        self._all = [other for other in self._all if other is not one]
        self.dropped_before += dropped_by(one.subscriber)
        return True


def dropped_by(receiver: Sink | Subscriber) -> int:
    """Return what a sink or subscriber dropped so far, if it counts that."""
    return int(getattr(receiver, "dropped", 0))


def is_closed(receiver: Sink | Subscriber) -> bool:
    # Only if it is True: a sink may have another attribute of that name, such as a future.
    return getattr(receiver, "closed", False) is True
