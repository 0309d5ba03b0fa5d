"""Routes a kernel's IOPub messages to the requests that caused them, and to subscribers of all messages.

Each message goes to every global subscriber, and then by its parent's id to the request that is registered under it;
without one it is kept as an orphan for a while. Registering claims the orphans of the request, so it does not matter
which comes first, the message or the registration.

One lock guards the registry. It is not held while sinks and subscribers are called: what a batch has for each of them
is put into its queue under the lock, and a queue is emptied by one thread at a time. So each gets its messages in
order, whichever thread routes or registers meanwhile, and may call the broker back.
"""

from __future__ import annotations

import logging
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Generic, Protocol, TypeVar

import msgspec

from himalia.errors import BadRequest, ConfigurationError
from himalia.iopub.channels import Sink
from himalia.iopub.orphans import Orphan, OrphanBuffer
from himalia.jupyter.channels import CHANNELS, Channel
from himalia.jupyter.wire import KernelMessage

logger = logging.getLogger("himalia.iopub.broker")

T = TypeVar("T")

TRACE = 5
"""The logging level of single routing decisions."""

LATENCY_BOUNDS_S = (
    0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0,
)  # fmt: skip
"""Upper bounds of the buckets of the routing latency; one more bucket has none."""


class BrokerConfig(msgspec.Struct, frozen=True):
    """Limits of a broker; times are in seconds. Raises ``ConfigurationError`` if one is negative."""

    orphan_buffer_max: int = 1000
    """Orphans kept at most; 0 keeps none."""
    orphan_max_age: float | None = 60.0
    """How long an orphan is kept; None or 0 keeps it until newer ones need the room."""
    request_timeout: float | None = 300.0
    """How long a request may be silent before it is stale and removed; None or 0 lets it be silent for ever."""
    cleanup_interval: float = 30.0
    orphan_bytes_max: int = 64 << 20
    """Bytes of orphans kept at most; a single one may be larger."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if (getattr(self, name) or 0) < 0:
                raise ConfigurationError(f"{name} of the broker cannot be negative")


class Subscriber(Protocol):
    """Someone who watches every message. One that can be closed may have an attribute ``closed``, and one that
    drops messages an attribute ``dropped``, the number so far: cleanup and the statistics look at them.
    """

    def offer(self, messages: Sequence[KernelMessage]) -> bool:
        """Take these messages, in order; False says that nobody is there any more, and ends the subscription.

        Called in a thread that routes, one call at a time. It may not block, and may not keep the router waiting;
        if it raises, it is taken for dead. The sequence is shared with others and never changes.
        """


class LatencyHistogram(msgspec.Struct, frozen=True):
    """How long messages took from the router's hand to the last sink of their batch."""

    bounds_s: tuple[float, ...]
    counts: tuple[int, ...]
    """Messages per bucket (not cumulative); one more than there are bounds."""
    sum_s: float


class BrokerStats(msgspec.Struct, frozen=True):
    """A broker at one moment. All but the first four count since it was made."""

    active_requests: int
    orphan_messages: int
    orphan_bytes: int
    global_subscribers: int
    messages: int
    """Messages that were routed, to requests and to the orphans."""
    routed: dict[str, int]
    """Messages given to requests, by channel, claimed orphans among them."""
    orphaned: int
    """Messages that had no request when they came, or whose request was dead."""
    claimed: int
    """Orphans that found their request after all, or were asked for."""
    expired: int
    """Orphans dropped because of their age."""
    evicted: int
    """Orphans dropped because there was no room."""
    stale: int
    """Requests removed because they were silent."""
    dropped_by_requests: int
    """Messages that requests could not keep because nobody read them in time."""
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


class _Item(msgspec.Struct, frozen=True, gc=False):
    """Something for a request: a message with its channel and number, or, without one, the end."""

    message: KernelMessage | None
    channel: Channel
    sequence: int


_EXPIRED = _Item(None, Channel.STATUS, -1)


class _Lane(Generic[T]):
    """What waits to be handed to one sink or subscriber, by one thread at a time. Guarded by the broker's lock."""

    __slots__ = ("_busy", "_pending")

    def __init__(self) -> None:
        self._pending: list[T] = []
        # Whether a thread is handing things over. It goes on until nothing is left.
        self._busy = False

    def _begin(self) -> list[T]:
        """What to hand over now; nothing if another thread does it already."""
        return [] if self._busy else self._go_on()

    def _go_on(self) -> list[T]:
        """What came while this thread handed over; if nothing did, it is done."""
        items, self._pending = self._pending, []
        self._busy = bool(items)
        return items

    def _leave(self, items: Iterable[T] = ()) -> None:
        """Stop, with these not handed over."""
        self._pending[:0] = items
        self._busy = False


class RequestContext(_Lane[_Item]):
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
        """Messages it was given so far; also the number of the next one."""
        self.claimed = 0
        """How many of them had come before it was registered."""


class _Watcher(_Lane[Sequence[KernelMessage]]):
    """A global subscriber, as the broker sees it."""

    __slots__ = ("subscriber",)

    def __init__(self, subscriber: Subscriber) -> None:
        super().__init__()
        self.subscriber = subscriber


class _Counts:
    """What a broker counts. Guarded by its lock."""

    __slots__ = (
        "claimed",
        "dropped_by_requests",
        "dropped_by_subscribers",
        "evicted",
        "expired",
        "latency",
        "latency_sum_s",
        "messages",
        "orphaned",
        "pruned_requests",
        "pruned_subscribers",
        "routed",
        "stale",
    )

    def __init__(self) -> None:
        self.messages = self.orphaned = self.claimed = self.expired = self.evicted = self.stale = 0
        # Of requests and subscribers that are gone; those of the others are asked for when needed.
        self.dropped_by_requests = self.dropped_by_subscribers = 0
        self.pruned_requests = self.pruned_subscribers = 0
        self.routed: dict[Channel, int] = dict.fromkeys(Channel, 0)
        self.latency = [0] * (len(LATENCY_BOUNDS_S) + 1)
        self.latency_sum_s = 0.0


class IopubBroker:
    """Routes messages; see the module's docstring. Thread-safe; routing one message is O(1)."""

    def __init__(
        self, config: BrokerConfig | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """``clock`` gives seconds that never go back; ages and silence are measured by it."""
        self.config = config or BrokerConfig()
        self._clock = clock
        self._lock = threading.Lock()
        self._requests: dict[str, RequestContext] = {}
        self._watchers: list[_Watcher] = []
        self._orphans = OrphanBuffer(self.config.orphan_buffer_max, self.config.orphan_bytes_max)
        self._counts = _Counts()
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
            watchers = self._watch(batch, self._watchers)
            contexts = self._sort(batch)
        if is_traced:
            _log_routing(batch, known)
        for watcher in watchers:
            self._empty_watcher(watcher)
        for context in contexts:
            self._empty_request(context)
        seconds = time.perf_counter() - started_s
        counts = self._counts
        with self._lock:
            # Each message waited for its batch, at most.
            counts.latency[bisect_left(LATENCY_BOUNDS_S, seconds)] += len(batch)
            counts.latency_sum_s += seconds * len(batch)

    def _watch(self, batch: Sequence[KernelMessage], watchers: Sequence[_Watcher]) -> list[_Watcher]:
        """Put the batch into the lane of each of these; returns the lanes that nobody empties yet."""
        for watcher in watchers:
            watcher._pending.append(batch)
        return [watcher for watcher in watchers if not watcher._busy]

    def _sort(self, batch: Sequence[KernelMessage]) -> Iterable[RequestContext]:
        """Put each message into its request's lane, or among the orphans; returns as ``_watch`` does."""
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
            context._pending.append(_Item(message, channel, context.messages))
            context.messages += 1
            context.last_active_s = now_s
            if not context._busy:
                due[context] = None
        return due

    # Emptying lanes: one thread at a time does it, until there is nothing in it

    def _empty_request(self, context: RequestContext) -> None:
        with self._lock:
            items = context._begin()
        while items:
            if not self._deliver(context, items):
                return
            with self._lock:
                items = context._go_on()

    def _deliver(self, context: RequestContext, items: Sequence[_Item]) -> bool:
        """Give these to the sink; false if it turned out to be dead."""
        sink = context.channels
        left = iter(items)
        item = items[0]
        try:
            for item in left:
                if item.message is None:
                    sink.expire()
                elif sink.deliver(item.message, item.channel, item.sequence) is False:
                    self._prune_request(context, [item, *left])
                    return False
        except Exception:
            logger.exception("the sink of request %s failed and is removed", context.request_id)
            self._prune_request(context, [item, *left])
            return False
        except BaseException:
            # An interrupt of this thread, not of the request: whoever comes next goes on where this one stopped.
            with self._lock:
                context._leave(left)
            raise
        return True

    def _empty_watcher(self, watcher: _Watcher) -> None:
        with self._lock:
            batches = watcher._begin()
        while batches:
            if not self._offer(watcher, batches):
                return
            with self._lock:
                batches = watcher._go_on()

    def _offer(self, watcher: _Watcher, batches: Sequence[Sequence[KernelMessage]]) -> bool:
        """Give these to the subscriber; false if it turned out to be dead."""
        left = iter(batches)
        try:
            if all(watcher.subscriber.offer(batch) is not False for batch in left):
                return True
        except Exception:
            logger.exception("a global subscriber failed and is removed")
        except BaseException:
            with self._lock:
                watcher._leave(left)
            raise
        self._prune_watcher(watcher)
        return False

    def _prune_request(self, context: RequestContext, items: list[_Item]) -> None:
        """The sink is dead. What it did not take is routed anew: to the orphans, or to who has its id by now."""
        with self._lock:
            items += context._go_on()
            context._leave()
            if self._forget(context):
                self._counts.pruned_requests += 1
            for item in items:
                if item.message is not None:
                    self._counts.routed[item.channel] -= 1
            due = self._sort([item.message for item in items if item.message is not None])
        for other in due:
            self._empty_request(other)

    def _prune_watcher(self, watcher: _Watcher) -> None:
        with self._lock:
            watcher._go_on()
            watcher._leave()
            if self._unwatch(watcher):
                self._counts.pruned_subscribers += 1

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
            self._give_orphans(context)
        if context.claimed:
            self._empty_request(context)
        return context

    def _give_orphans(self, context: RequestContext) -> None:
        claimed = self._orphans.claim(context.request_id)
        for sequence, message in enumerate(claimed):
            channel = CHANNELS.get(message.msg_type, Channel.EXECUTION)
            self._counts.routed[channel] += 1
            context._pending.append(_Item(message, channel, sequence))
        context.messages = context.claimed = len(claimed)
        self._counts.claimed += len(claimed)

    def unregister_request(self, request_id: str) -> bool:
        """Route no more messages to this request; False if it is not registered.

        A message that another thread is delivering at this moment may still arrive.
        """
        with self._lock:
            context = self._requests.get(request_id)
            return context is not None and self._forget(context)

    def guard(self, request_id: str, channels: Sink) -> ExecutionGuard:
        """``with broker.guard(id, channels):`` registers, and unregisters whatever happens inside."""
        return ExecutionGuard(self, request_id, channels)

    def touch(self, request_id: str) -> bool:
        """The request is known to be alive though silent: its time begins anew. False if it is not registered."""
        with self._lock:
            context = self._requests.get(request_id)
            if context is None:
                return False
            context.last_active_s = self._clock()
            return True

    def _forget(self, context: RequestContext) -> bool:
        """Take the request out of the books, unless its id belongs to another one by now."""
        if self._requests.get(context.request_id) is not context:
            return False
        del self._requests[context.request_id]
        self._counts.dropped_by_requests += _dropped(context.channels)
        return True

    # Global subscribers

    def add_global_subscriber(self, subscriber: Subscriber) -> None:
        """Offer every message routed from now on to ``subscriber``. One that is there already is not added again."""
        with self._lock:
            if all(watcher.subscriber is not subscriber for watcher in self._watchers):
                self._watchers.append(_Watcher(subscriber))

    def remove_global_subscriber(self, subscriber: Subscriber) -> bool:
        """Offer it nothing more; False if it is not there. What was routed before may still arrive."""
        with self._lock:
            return any(
                self._unwatch(watcher) for watcher in self._watchers if watcher.subscriber is subscriber
            )

    def _unwatch(self, watcher: _Watcher) -> bool:
        if watcher not in self._watchers:
            return False
        self._watchers = [other for other in self._watchers if other is not watcher]
        self._counts.dropped_by_subscribers += _dropped(watcher.subscriber)
        return True

    # Orphans

    def orphans(self) -> list[Orphan]:
        """The orphans kept now, oldest first."""
        with self._lock:
            return self._orphans.kept(self._clock())

    def claim_orphans(self, parent_id: str) -> list[KernelMessage]:
        """Take out the orphans of a parent, oldest first; "" for those that have none."""
        with self._lock:
            claimed = self._orphans.claim(parent_id)
            self._counts.claimed += len(claimed)
            return claimed

    def replay_orphans(self, subscriber: Subscriber | None = None) -> int:
        """Offer all orphans again, oldest first, to one subscriber (it need not be added) or to all of them.

        They stay where they are: no request waits for them, or it would have claimed them. Returns their number.
        """
        with self._lock:
            batch = tuple(orphan.message for orphan in self._orphans.kept(self._clock()))
            if not batch:
                return 0
            targets = [one for one in self._watchers if subscriber is None or one.subscriber is subscriber]
            watchers = self._watch(batch, targets)
        if subscriber is not None and not targets:
            subscriber.offer(batch)
        for watcher in watchers:
            self._empty_watcher(watcher)
        return len(batch)

    # Cleanup

    def cleanup_if_due(self) -> Cleaned | None:
        """Clean up if that was not done for ``cleanup_interval``. Cheap enough to be called all the time."""
        return self.cleanup() if self._clock() >= self._next_cleanup_s else None

    def cleanup(self) -> Cleaned:
        """Remove stale requests, old orphans, and requests and subscribers that were closed."""
        with self._lock:
            now_s = self._clock()
            self._next_cleanup_s = now_s + self.config.cleanup_interval
            pruned = self._remove_closed()
            stale = self._remove_stale(now_s)
            for context in stale:
                # Behind whatever the lane holds still.
                context._pending.append(_EXPIRED)
            age_s = self.config.orphan_max_age
            expired = self._orphans.expire(now_s - age_s) if age_s else []
            self._counts.expired += len(expired)
            cleaned = Cleaned(
                tuple(context.request_id for context in stale),
                len(expired),
                pruned,
                len(self._requests),
                len(self._orphans),
                len(self._watchers),
            )
        for context in stale:
            self._empty_request(context)
        _log_cleanup(cleaned, stale, expired, now_s)
        return cleaned

    def _remove_stale(self, now_s: float) -> list[RequestContext]:
        timeout_s = self.config.request_timeout
        if not timeout_s:
            return []
        stale = [context for context in self._requests.values() if now_s - context.last_active_s > timeout_s]
        for context in stale:
            self._forget(context)
        self._counts.stale += len(stale)
        return stale

    def _remove_closed(self) -> int:
        """Whoever is closed while nothing is routed would otherwise stay for ever."""
        contexts = [context for context in self._requests.values() if _is_closed(context.channels)]
        watchers = [watcher for watcher in self._watchers if _is_closed(watcher.subscriber)]
        for context in contexts:
            self._forget(context)
        for watcher in watchers:
            self._unwatch(watcher)
        self._counts.pruned_requests += len(contexts)
        self._counts.pruned_subscribers += len(watchers)
        return len(contexts) + len(watchers)

    # Statistics

    def stats(self) -> BrokerStats:
        with self._lock:
            counts = self._counts
            return BrokerStats(
                active_requests=len(self._requests),
                orphan_messages=len(self._orphans),
                orphan_bytes=self._orphans.size_bytes,
                global_subscribers=len(self._watchers),
                messages=counts.messages,
                routed={channel.value: number for channel, number in counts.routed.items()},
                orphaned=counts.orphaned,
                claimed=counts.claimed,
                expired=counts.expired,
                evicted=counts.evicted,
                stale=counts.stale,
                dropped_by_requests=counts.dropped_by_requests
                + sum(_dropped(context.channels) for context in self._requests.values()),
                dropped_by_subscribers=counts.dropped_by_subscribers
                + sum(_dropped(watcher.subscriber) for watcher in self._watchers),
                pruned_requests=counts.pruned_requests,
                pruned_subscribers=counts.pruned_subscribers,
                latency=LatencyHistogram(LATENCY_BOUNDS_S, tuple(counts.latency), counts.latency_sum_s),
            )


def _dropped(taker: Sink | Subscriber) -> int:
    """What a sink or subscriber lost so far, if it counts that."""
    return int(getattr(taker, "dropped", 0))


def _is_closed(taker: Sink | Subscriber) -> bool:
    # Only if it says so: a sink may have something else under that name, such as a future.
    return getattr(taker, "closed", False) is True


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
