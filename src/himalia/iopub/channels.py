"""Readers of a broker's messages: the five bounded channels of a request, and a subscriber to all messages."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import takewhile
from types import TracebackType
from typing import Protocol, TypeVar

import msgspec

from himalia.jupyter.channels import Channel, is_idle
from himalia.jupyter.wire import KernelMessage

T = TypeVar("T")

LIMIT = 10_000
"""The default number of messages that wait in one channel, at most."""
BYTES_MAX = 64 << 20
"""Bytes that wait in one channel, at most; a single message may be larger."""


class Sink(Protocol):
    """What a request registers with the broker: where its messages go.

    Calls for one request are made one after the other and in order, in any thread that routes or registers. The
    broker's lock is not held, so a sink may call the broker. Neither method may block. A sink that raises is removed,
    like one that returns False. A sink that drops messages may have an attribute ``dropped``, the number so far, and
    one that can be closed an attribute ``closed``: the broker's statistics and cleanup read them, under its lock.
    """

    def deliver(self, message: KernelMessage, channel: Channel, sequence: int) -> bool | None:
        """Get the next message; they are numbered 0, 1, 2, ... across all channels of the request.

        Returns False if the sink has no reader any more: the request is removed, and the message becomes an orphan.
        """

    def expire(self) -> None:
        """The request had no message for too long and was removed. No call follows."""


class Numbered(msgspec.Struct, frozen=True, gc=False):
    """A message with its number among all messages of its request."""

    sequence: int
    channel: Channel
    message: KernelMessage


class _Queue:
    """One channel. When it is full, the oldest message is dropped."""

    __slots__ = ("dropped", "items", "size_bytes")

    def __init__(self) -> None:
        self.items: deque[Numbered] = deque()
        self.size_bytes = 0
        self.dropped = 0

    def pop(self) -> Numbered:
        item = self.items.popleft()
        self.size_bytes -= item.message.size_bytes
        return item

    def remove(self, item: Numbered) -> bool:
        """Remove a message; return False if it is not there."""
        try:
            self.items.remove(item)
        except ValueError:
            return False
        self.size_bytes -= item.message.size_bytes
        return True

    def clear(self) -> list[Numbered]:
        """Remove all messages, and return them."""
        items = list(self.items)
        self.items.clear()
        self.size_bytes = 0
        return items


class _Queues:
    """The queues of one request by channel, created when first needed. Guarded by the lock of its RequestChannels."""

    __slots__ = ("_by_channel", "_bytes_max", "_limit", "dropped", "next_sequence")

    def __init__(self, limit: int, bytes_max: int) -> None:
        self._limit = limit
        self._bytes_max = bytes_max
        self._by_channel: dict[Channel, _Queue] = {}
        self.dropped = 0
        self.next_sequence = 0

    def put(self, sequence: int, channel: Channel, message: KernelMessage) -> None:
        queue = self._by_channel.get(channel)
        if queue is None:
            queue = self._by_channel[channel] = _Queue()
        queue.items.append(Numbered(sequence, channel, message))
        queue.size_bytes += message.size_bytes
        self.next_sequence = sequence + 1
        while len(queue.items) > self._limit or (queue.size_bytes > self._bytes_max and len(queue.items) > 1):
            queue.pop()
            queue.dropped += 1
            self.dropped += 1

    def pop(self, channel: Channel) -> Numbered | None:
        """Remove and return the oldest message of a channel."""
        queue = self._by_channel.get(channel)
        return queue.pop() if queue is not None and queue.items else None

    def remove(self, item: Numbered) -> bool:
        """Remove a message; return False if it was read or dropped already."""
        return self._by_channel[item.channel].remove(item)

    def clear(self, channel: Channel | None = None) -> list[Numbered]:
        """Remove and return all messages of one channel or of all, in no order."""
        queues = self._by_channel
        return [item for one in queues if channel in (None, one) for item in queues[one].clear()]

    def newer_than(self, sequence: int) -> list[Numbered]:
        """Return the messages with a higher number, in no order."""
        return [
            item
            for queue in self._by_channel.values()
            for item in takewhile(lambda item: item.sequence > sequence, reversed(queue.items))
        ]

    def count(self, channel: Channel | None = None) -> int:
        queues = self._by_channel
        return sum(len(queues[one].items) for one in queues if channel in (None, one))

    def dropped_by_channel(self) -> dict[Channel, int]:
        return {channel: queue.dropped for channel, queue in self._by_channel.items() if queue.dropped}


class Sender:
    """The sending end of one channel."""

    __slots__ = ("_channel", "_channels")

    def __init__(self, channels: RequestChannels, channel: Channel) -> None:
        self._channels = channels
        self._channel = channel

    def send(self, message: KernelMessage) -> bool:
        """Append a message behind all others of the request; return False if the channels are closed."""
        return self._channels.send(message, self._channel)


class SenderOf:
    """An attribute of ``RequestChannels``: the sending end of one channel."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def __get__(self, channels: RequestChannels, owner: type[RequestChannels]) -> Sender:
        return Sender(channels, self._channel)


class RequestChannels:
    """Five bounded channels between a router and one reader, and how the request ended. Thread-safe.

    A channel that is full drops its oldest message, and counts it; a jump in the numbers shows where. The request is
    complete when both the kernel's ``idle`` and the shell's reply have come, in either order, or when it was ended;
    later messages can still be read. ``ExecutionCollector`` is the reading side.

    Deadlines are times of ``time.monotonic``; without one a wait has no limit.
    """

    __slots__ = (
        "_changed",
        "_closed",
        "_ended",
        "_has_notified",
        "_has_notified_complete",
        "_idle",
        "_lock",
        "_queues",
        "_reply",
        "on_message",
    )

    status_tx = SenderOf(Channel.STATUS)
    execution_tx = SenderOf(Channel.EXECUTION)
    stream_tx = SenderOf(Channel.STREAM)
    display_tx = SenderOf(Channel.DISPLAY)
    comm_tx = SenderOf(Channel.COMM)

    def __init__(
        self,
        limit: int = LIMIT,
        *,
        bytes_max: int = BYTES_MAX,
        on_message: Callable[[], None] | None = None,
    ) -> None:
        """``limit`` and ``bytes_max`` are per channel.

        ``on_message`` is called, in the thread that delivers, when there is something to read or the request
        completes; then not again until something was read, so that a flood wakes an event loop once.
        """
        self.on_message = on_message
        self._lock = threading.Lock()
        # Created when first needed: most requests are read by an event loop and never waited for.
        self._changed: threading.Condition | None = None
        self._queues = _Queues(max(limit, 1), bytes_max)
        self._idle = False
        self._reply: KernelMessage | None = None
        self._ended: str | None = None
        self._closed = False
        self._has_notified = False
        self._has_notified_complete = False

    # The writing side

    def deliver(self, message: KernelMessage, channel: Channel, sequence: int) -> bool:
        """As ``Sink``."""
        with self._lock:
            if self._closed:
                return False
            self._queues.put(sequence, channel, message)
            notify = self._wake(message, channel)
        if notify is not None:
            notify()
        return True

    def send(self, message: KernelMessage, channel: Channel) -> bool:
        """Deliver a message behind all others: for tests, and for sources other than a broker."""
        with self._lock:
            if self._closed:
                return False
            self._queues.put(self._queues.next_sequence, channel, message)
            notify = self._wake(message, channel)
        if notify is not None:
            notify()
        return True

    def reply(self, message: KernelMessage) -> None:
        """Set the shell's reply. Only the first one counts."""
        with self._lock:
            if self._reply is None:
                self._reply = message
            notify = self._wake()
        if notify is not None:
            notify()

    def end(self, status: str) -> bool:
        """End the request without idle and reply (``died``, ``timeout``, ...); return False if it was complete."""
        with self._lock:
            if self.is_complete:
                return False
            self._ended = status
            notify = self._wake()
        if notify is not None:
            notify()
        return True

    def expire(self) -> None:
        """As ``Sink``: ends the request as ``stale``."""
        self.end("stale")

    def _wake(
        self, message: KernelMessage | None = None, channel: Channel | None = None
    ) -> Callable[[], None] | None:
        """Wake the waiting readers after a change; return what to call once the lock is released."""
        if channel is Channel.STATUS and message is not None and is_idle(message):
            self._idle = True
        if self._changed is not None:
            self._changed.notify_all()
        is_due = not self._has_notified
        self._has_notified = True
        if not self._has_notified_complete and self.is_complete:
            is_due = self._has_notified_complete = True
        return self.on_message if is_due else None

    # The reading side

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def is_idle(self) -> bool:
        """Whether the kernel's ``idle`` has come."""
        return self._idle

    @property
    def is_complete(self) -> bool:
        return self._ended is not None or (self._idle and self._reply is not None)

    @property
    def shell_reply(self) -> KernelMessage | None:
        return self._reply

    @property
    def ended(self) -> str | None:
        """How the request ended if not by idle and reply."""
        return self._ended

    @property
    def dropped(self) -> int:
        """Messages dropped because their channel was full, since the start."""
        return self._queues.dropped

    def dropped_by_channel(self) -> dict[Channel, int]:
        with self._lock:
            return self._queues.dropped_by_channel()

    def waiting(self, channel: Channel | None = None) -> int:
        """Return how many messages wait to be read, in one channel or in all."""
        with self._lock:
            return self._queues.count(channel)

    def pop(self, channel: Channel, deadline_s: float | None) -> Numbered | None:
        """Wait for the channel's next message.

        None when the deadline has passed, or the request is complete or closed and no message waits.
        """
        return self._wait(partial(self._queues.pop, channel), deadline_s)

    def pop_all(self, channel: Channel | None = None) -> list[Numbered]:
        """Return the messages that wait now, in one channel or in all, in order of arrival. Never waits."""
        with self._lock:
            self._has_notified = False
            items = self._queues.clear(channel)
        items.sort(key=_sequence)
        return items

    def wait_all(self, deadline_s: float | None) -> list[Numbered]:
        """Like ``pop_all``, but wait for the first message; empty when ``pop`` would return None."""
        items = self._wait(self._queues.clear, deadline_s) or []
        items.sort(key=_sequence)
        return items

    def pop_first(
        self, predicate: Callable[[KernelMessage], bool], deadline_s: float | None
    ) -> Numbered | None:
        """Wait for the first message in order of arrival for which this is true; the others can still be read."""
        last = -1
        # The predicate is called without the lock: however long it takes, routing continues.
        while items := self._wait(partial(self._queues.newer_than, last), deadline_s):
            items.sort(key=_sequence)
            last = items[-1].sequence
            for item in items:
                if predicate(item.message):
                    with self._lock:
                        if self._queues.remove(item):
                            return item
        return None

    def wait_complete(self, deadline_s: float | None) -> bool:
        """Wait until the request is complete; return False if the deadline passes or the channels are closed before."""
        self._wait(lambda: None, deadline_s)
        return self.is_complete

    def close(self) -> None:
        """Read no more: what waits is dropped, and the broker removes the request."""
        with self._lock:
            self._closed = True
            self._queues.clear()
            if self._changed is not None:
                self._changed.notify_all()

    def _wait(self, read: Callable[[], T | None], deadline_s: float | None) -> T | None:
        """Return what ``read`` returns, under the lock, as soon as that is true; None if no message will come."""
        with self._lock:
            while True:
                found = read()
                if found:
                    self._has_notified = False
                    return found
                if self.is_complete or self._closed:
                    return None
                left_s = None if deadline_s is None else deadline_s - time.monotonic()
                if left_s is not None and left_s <= 0:
                    return None
                if self._changed is None:
                    self._changed = threading.Condition(self._lock)
                self._changed.wait(left_s)


def _sequence(item: Numbered) -> int:
    return item.sequence


class GlobalSubscriber:
    """A global subscriber for monitoring: keeps the newest messages until they are read. Thread-safe.

    When it is full it drops the oldest messages, and counts them. A ``with`` block closes it at its end.
    """

    def __init__(self, limit: int = 10_000, *, bytes_max: int = 64 << 20) -> None:
        """Keeps ``limit`` messages and ``bytes_max`` bytes at most; a single message may be larger."""
        self._limit = max(limit, 1)
        self._bytes_max = bytes_max
        self._changed = threading.Condition(threading.Lock())
        self._messages: deque[KernelMessage] = deque()
        self._size_bytes = 0
        self._dropped = 0
        self._closed = False

    def offer(self, messages: Sequence[KernelMessage]) -> bool:
        """As ``Subscriber``."""
        with self._changed:
            if self._closed:
                return False
            for message in messages:
                self._messages.append(message)
                self._size_bytes += message.size_bytes
            while len(self._messages) > self._limit or (
                self._size_bytes > self._bytes_max and len(self._messages) > 1
            ):
                self._pop()
                self._dropped += 1
            self._changed.notify_all()
            return True

    def recv(self, timeout_s: float | None = None) -> KernelMessage | None:
        """Wait for the next message; None if none comes in time, or if this is closed and none is left."""
        with self._changed:
            self._changed.wait_for(lambda: self._messages or self._closed, timeout_s)
            return self._pop() if self._messages else None

    def close(self) -> None:
        """Accept no more messages. Those that wait can still be read; the broker removes this when it notices."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def dropped(self) -> int:
        """Messages that were not read in time, since the start."""
        return self._dropped

    def __len__(self) -> int:
        return len(self._messages)

    def __iter__(self) -> Iterator[KernelMessage]:
        """Iterate over messages as they come, until this is closed."""
        while (message := self.recv()) is not None:
            yield message

    def __enter__(self) -> GlobalSubscriber:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _pop(self) -> KernelMessage:
        message = self._messages.popleft()
        self._size_bytes -= message.size_bytes
        return message
