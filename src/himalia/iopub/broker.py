"""Routes a kernel's IOPub messages to the requests that caused them, and to subscribers of all messages.

Each message goes to every global subscriber, and then by its parent's id to the request that is registered under it;
without one it is kept as an orphan for a while. Registering claims the orphans of the request, so it does not matter
which comes first, the message or the registration.

One lock guards the registry. It is not held while sinks and subscribers are called: a batch is appended to their queues
under the lock, and a queue is delivered by one thread at a time. So each gets its messages in order, whichever thread
routes or registers meanwhile, and may call the broker.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType

import msgspec

from himalia.errors import BadRequest, ConfigurationError
from himalia.iopub.broker_stats import (
    LATENCY_BOUNDS_S,
    BrokerCounts,
    BrokerStats,
    Cleaned,
    LatencyHistogram,
)
from himalia.iopub.channels import Sink
from himalia.iopub.delivery import (
    EXPIRED,
    GlobalSubscribers,
    RequestContext,
    RoutedMessage,
    Subscriber,
    dropped_by,
    is_closed,
)
from himalia.iopub.orphans import Orphan, OrphanBuffer
from himalia.jupyter.channels import CHANNELS, Channel
from himalia.jupyter.wire import KernelMessage

__all__ = [
    "LATENCY_BOUNDS_S",
    "BrokerConfig",
    "BrokerStats",
    "Cleaned",
    "ExecutionGuard",
    "IopubBroker",
    "LatencyHistogram",
    "RequestContext",
    "Subscriber",
]

logger = logging.getLogger("himalia.iopub.broker")

TRACE = 5
"""The logging level of single routing decisions."""


class BrokerConfig(msgspec.Struct, frozen=True):
    """Limits of a broker; times are in seconds. Raises ``ConfigurationError`` if one is negative."""

    orphan_buffer_max: int = 1000
    """The most orphans that are kept; 0 keeps none."""
    orphan_max_age: float | None = 60.0
    """How long an orphan is kept; None or 0 keeps it until there is no room for newer ones."""
    request_timeout: float | None = 300.0
    """How long a request may be silent before it is stale and removed; None or 0 for no limit."""
    cleanup_interval: float = 30.0
    orphan_bytes_max: int = 64 << 20
    """The most bytes of orphans that are kept; a single one may be larger."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if (getattr(self, name) or 0) < 0:
                raise ConfigurationError(f"{name} of the broker cannot be negative")


class IopubBroker:
    """Routes messages, as the module describes. Thread-safe; routing one message is O(1)."""

    def __init__(
        self, config: BrokerConfig | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """``clock`` returns monotonic seconds, by which ages and silence are measured."""
        self.config = config or BrokerConfig()
        self._clock = clock
        self._lock = threading.Lock()
        self._requests: dict[str, RequestContext] = {}
        self._subscriptions = GlobalSubscribers(self._lock)
        self._orphans = OrphanBuffer(self.config.orphan_buffer_max, self.config.orphan_bytes_max)
        self._counts = BrokerCounts()
        self._next_cleanup_s = clock() + self.config.cleanup_interval

    # Routing

    def route_message(self, message: KernelMessage) -> None:
        self.route_messages((message,))

    def route_messages(self, batch: Sequence[KernelMessage]) -> None:
        """Route these in order. Never blocks on, and never fails because of, a request or a subscriber."""
        if not batch:
            return
        started_s = time.perf_counter()
        batch = tuple(batch)
        is_traced = logger.isEnabledFor(TRACE)
        with self._lock:
            self._counts.messages += len(batch)
            known = [message.parent_id in self._requests for message in batch] if is_traced else ()
            subscriptions = self._subscriptions.append(batch)
            contexts = self._append(batch)
        if is_traced:
            _log_routing(batch, known)
        self._subscriptions.deliver(subscriptions)
        for context in contexts:
            self._deliver(context)
        seconds = time.perf_counter() - started_s
        with self._lock:
            self._counts.observe_latency(len(batch), seconds)

    def _append(self, batch: Sequence[KernelMessage]) -> Iterable[RequestContext]:
        """Append each message to its request's queue, or to the orphans; return the queues that no thread delivers."""
        now_s = self._clock()
        requests, counts, routed = self._requests, self._counts, self._counts.routed
        due: dict[RequestContext, None] = {}
        for message in batch:
            context = requests.get(message.parent_id)
            if context is None:
                counts.orphaned += 1
                counts.evicted += self._orphans.add(message, now_s)
                continue
            channel = CHANNELS.get(message.msg_type, Channel.EXECUTION)
            routed[channel] += 1
            context.pending.append(RoutedMessage(message, channel, context.messages))
            context.messages += 1
            context.last_active_s = now_s
            if not context.busy:
                due[context] = None
        return due

    def _deliver(self, context: RequestContext) -> None:
        """Deliver what waits for a request. If its sink is dead, remove the request and route the rest again."""
        items = context.deliver_pending(self._lock)
        if items is None:
            return
        with self._lock:
            items += context.next()
            context.stop()
            if self._remove(context):
                self._counts.pruned_requests += 1
            for item in items:
                if item.message is not None:
                    self._counts.routed[item.channel] -= 1
            # To the orphans, or to the request that has its id by now.
            due = self._append([item.message for item in items if item.message is not None])
        for other in due:
            self._deliver(other)

    # Requests

    def register_request(self, request_id: str, channels: Sink) -> RequestContext:
        """Route messages with this parent to ``channels`` from now on; best called before the request is sent.

        Orphans of the request are delivered first, in order. Raises ``BadRequest`` if the id is empty or is
        registered already.
        """
        if not request_id:
            raise BadRequest("a request needs an id")
        with self._lock:
            if request_id in self._requests:
                raise BadRequest(f"request {request_id!r} is registered already", request_id=request_id)
            context = RequestContext(request_id, channels, self._clock())
            self._requests[request_id] = context
            self._append_orphans(context)
        if context.claimed:
            self._deliver(context)
        return context

    def _append_orphans(self, context: RequestContext) -> None:
        claimed = self._orphans.claim(context.request_id)
        for sequence, message in enumerate(claimed):
            channel = CHANNELS.get(message.msg_type, Channel.EXECUTION)
            self._counts.routed[channel] += 1
            context.pending.append(RoutedMessage(message, channel, sequence))
        context.messages = context.claimed = len(claimed)
        self._counts.claimed += len(claimed)

    def unregister_request(self, request_id: str) -> bool:
        """Route no more messages to this request; return False if it is not registered.

        A message that another thread is delivering at this moment may still arrive.
        """
        with self._lock:
            context = self._requests.get(request_id)
            return context is not None and self._remove(context)

    def guard(self, request_id: str, channels: Sink) -> ExecutionGuard:
        """Register a request for a ``with`` block: ``with broker.guard(id, channels):``."""
        return ExecutionGuard(self, request_id, channels)

    def touch(self, request_id: str) -> bool:
        """Restart the timeout of a request that is silent but alive; return False if it is not registered."""
        with self._lock:
            context = self._requests.get(request_id)
            if context is None:
                return False
            context.last_active_s = self._clock()
            return True

    def _remove(self, context: RequestContext) -> bool:
        """Remove the request, unless its id belongs to another one by now."""
        if self._requests.get(context.request_id) is not context:
            return False
        del self._requests[context.request_id]
        self._counts.dropped_by_requests += dropped_by(context.channels)
        return True

    # Global subscribers

    def add_global_subscriber(self, subscriber: Subscriber) -> None:
        """Offer every message routed from now on to ``subscriber``. Adding it twice changes nothing."""
        with self._lock:
            self._subscriptions.add(subscriber)

    def remove_global_subscriber(self, subscriber: Subscriber) -> bool:
        """Offer it no more messages; return False if it was not added. What was routed before may still arrive."""
        with self._lock:
            return self._subscriptions.remove(subscriber)

    # Orphans

    def orphans(self) -> list[Orphan]:
        """Return the orphans kept now, oldest first."""
        with self._lock:
            return self._orphans.snapshot(self._clock())

    def claim_orphans(self, parent_id: str) -> list[KernelMessage]:
        """Remove and return the orphans of a parent, oldest first; "" for those that have none."""
        with self._lock:
            claimed = self._orphans.claim(parent_id)
            self._counts.claimed += len(claimed)
            return claimed

    def replay_orphans(self, subscriber: Subscriber | None = None) -> int:
        """Offer all orphans again, oldest first, to one subscriber (it need not be added) or to all of them.

        They remain orphans: they have no registered request, which would have claimed them. Returns their number.
        """
        with self._lock:
            batch = tuple(orphan.message for orphan in self._orphans.snapshot(self._clock()))
            if not batch:
                return 0
            is_added = subscriber is None or self._subscriptions.has(subscriber)
            due = self._subscriptions.append(batch, subscriber)
        if subscriber is not None and not is_added:
            subscriber.offer(batch)
        self._subscriptions.deliver(due)
        return len(batch)

    # Cleanup

    def cleanup_if_due(self) -> Cleaned | None:
        """Clean up if ``cleanup_interval`` has passed since the last time. Cheap enough for every turn of a loop."""
        return self.cleanup() if self._clock() >= self._next_cleanup_s else None

    def cleanup(self) -> Cleaned:
        """Remove stale requests, old orphans, and requests and subscribers that were closed."""
        with self._lock:
            now_s = self._clock()
            self._next_cleanup_s = now_s + self.config.cleanup_interval
            pruned = self._remove_closed()
            stale = self._remove_stale(now_s)
            for context in stale:
                # Behind what still waits for it.
                context.pending.append(EXPIRED)
            age_s = self.config.orphan_max_age
            expired = self._orphans.expire(now_s - age_s) if age_s else []
            self._counts.expired += len(expired)
            cleaned = Cleaned(
                tuple(context.request_id for context in stale),
                len(expired),
                pruned,
                len(self._requests),
                len(self._orphans),
                len(self._subscriptions),
            )
        for context in stale:
            self._deliver(context)
        _log_cleanup(cleaned, stale, expired, now_s)
        return cleaned

    def _remove_stale(self, now_s: float) -> list[RequestContext]:
        timeout_s = self.config.request_timeout
        if not timeout_s:
            return []
        stale = [context for context in self._requests.values() if now_s - context.last_active_s > timeout_s]
        for context in stale:
            self._remove(context)
        self._counts.stale += len(stale)
        return stale

    def _remove_closed(self) -> int:
        """Remove what was closed while nothing was routed to it; return how many."""
        contexts = [context for context in self._requests.values() if is_closed(context.channels)]
        for context in contexts:
            self._remove(context)
        self._counts.pruned_requests += len(contexts)
        return len(contexts) + self._subscriptions.remove_closed()

    # Statistics

    def stats(self) -> BrokerStats:
        with self._lock:
            counts = self._counts
            return BrokerStats(
                active_requests=len(self._requests),
                orphan_messages=len(self._orphans),
                orphan_bytes=self._orphans.size_bytes,
                global_subscribers=len(self._subscriptions),
                messages=counts.messages,
                routed={channel.value: number for channel, number in counts.routed.items()},
                orphaned=counts.orphaned,
                claimed=counts.claimed,
                expired=counts.expired,
                evicted=counts.evicted,
                stale=counts.stale,
                dropped_by_requests=counts.dropped_by_requests
                + sum(dropped_by(context.channels) for context in self._requests.values()),
                dropped_by_subscribers=self._subscriptions.dropped,
                pruned_requests=counts.pruned_requests,
                pruned_subscribers=self._subscriptions.pruned,
                latency=counts.latency_histogram(),
            )


def _log_routing(batch: Sequence[KernelMessage], known: Sequence[bool]) -> None:
    for message, is_known in zip(batch, known, strict=True):
        channel = CHANNELS.get(message.msg_type, Channel.EXECUTION)
        target = f"{channel} of request {message.parent_id}" if is_known else "the orphans"
        logger.log(TRACE, "%s %s goes to %s", message.msg_type, message.msg_id, target)


def _log_cleanup(
    cleaned: Cleaned, stale: Sequence[RequestContext], expired: Sequence[KernelMessage], now_s: float
) -> None:
    for context in stale:
        silent_s = now_s - context.last_active_s
        logger.warning("request %s was silent for %.0f s and is removed", context.request_id, silent_s)
    if logger.isEnabledFor(TRACE):
        for message in expired:
            logger.log(TRACE, "orphan %s of %r expired", message.msg_id, message.parent_id)
    did_something = bool(cleaned.stale or cleaned.expired or cleaned.pruned)
    logger.log(
        logging.INFO if did_something else logging.DEBUG,
        "active requests: %d, orphan messages: %d, global subscribers: %d",
        cleaned.active_requests,
        cleaned.orphan_messages,
        cleaned.global_subscribers,
    )


class ExecutionGuard:
    """Keeps a request registered for the length of a ``with`` block. The block gets the ``RequestContext``."""

    __slots__ = ("_broker", "_channels", "request_id")

    def __init__(self, broker: IopubBroker, request_id: str, channels: Sink) -> None:
        self._broker = broker
        self._channels = channels
        self.request_id = request_id

    def __enter__(self) -> RequestContext:
        return self._broker.register_request(self.request_id, self._channels)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._broker.unregister_request(self.request_id)
