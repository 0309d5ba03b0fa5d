"""The seed's five channels of a request, which wait to be read, and a subscriber to all of a kernel's messages."""

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
"""Messages that wait in one channel, at most, unless another limit is asked for."""
BYTES_MAX = 64 << 20
"""Bytes that wait in one channel, at most; a single message may be larger."""


class Sink(Protocol):
    """What a request registers with the broker: where its messages go.

    Calls for one request come one after the other and in order, from whichever thread routes or registers; no
    lock of the broker is held, so the broker may be called back. Neither method may block. One that raises is
    taken for dead, like one that returns False. A sink that drops may have an attribute ``dropped``, the number
    so far, and one that can be closed an attribute ``closed``: the broker's statistics and its cleanup look at
    them, under the broker's lock.
    """

    def deliver(self, message: KernelMessage, channel: Channel, sequence: int) -> bool | None:
        """Take the next message; they are numbered 0, 1, 2, ... across all channels of the request.

        False says that nobody reads any more: the request is removed, and the message becomes an orphan.
        """

    def expire(self) -> None:
        """The request was silent for too long and has been removed; nothing comes any more."""


class Numbered(msgspec.Struct, frozen=True, gc=False):
    """A message with its place among all messages of its request."""

    sequence: int
    channel: Channel
    message: KernelMessage


class _Queue:
    """One channel: the oldest goes when it is full. Guarded by the lock of the RequestChannels it is part of."""

    __slots__ = ("dropped", "items", "size_bytes")

    def __init__(self) -> None:
        self.items: deque[Numbered] = deque()
        self.size_bytes = 0
        self.dropped = 0

    def put(self, item: Numbered, limit: int, bytes_max: int) -> int:
        """Returns how many messages were dropped for this one."""
        before = self.dropped
        self.items.append(item)
        self.size_bytes += item.message.size_bytes
        while len(self.items) > limit or (self.size_bytes > bytes_max and len(self.items) > 1):
            self.take()
            self.dropped += 1
        return self.dropped - before

    def take(self) -> Numbered:
        item = self.items.popleft()
        self.size_bytes -= item.message.size_bytes
        return item

    def remove(self, item: Numbered) -> bool:
        try:
            self.items.remove(item)
        except ValueError:
            return False
        self.size_bytes -= item.message.size_bytes
        return True

    def clear(self) -> list[Numbered]:
        items = list(self.items)
        self.items.clear()
        self.size_bytes = 0
        return items


class Sender:
    """The sending end of one channel."""

    __slots__ = ("_channel", "_channels")

    def __init__(self, channels: RequestChannels, channel: Channel) -> None:
        self._channels = channels
        self._channel = channel

    def send(self, message: KernelMessage) -> bool:
        """Put a message in behind all others of the request; False if nobody reads any more."""
        return self._channels.send(message, self._channel)


class RequestChannels:
    """Five bounded channels between the router and one reader, and how the request ended. Thread-safe.

    A channel that is full drops its oldest message, and counts it; the numbers show where. The request is complete
    when both the kernel's ``idle`` and the shell's reply have come, in either order, or when it was ended; messages
    that come later are still taken. ``ExecutionCollector`` is the reading side.
    """

    __slots__ = (
        "_changed",
        "_closed",
        "_dropped",
        "_ended",
        "_idle",
        "_lock",
        "_next",
        "_queues",
        "_reply",
        "_told",
        "_told_complete",
        "bytes_max",
        "limit",
        "on_message",
    )

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
        self.limit = max(limit, 1)
        self.bytes_max = bytes_max
        self.on_message = on_message
        self._lock = threading.Lock()
        # Made when first needed, like the queues: most requests are read by an event loop and never waited for.
        self._changed: threading.Condition | None = None
        self._queues: dict[Channel, _Queue] = {}
        self._next = 0
        self._dropped = 0
        self._idle = False
        self._reply: KernelMessage | None = None
        self._ended: str | None = None
        self._closed = False
        # Whether the reader was told that there is something, and that the request is complete.
        self._told = False
        self._told_complete = False

    # The seed's names

    @property
    def status_tx(self) -> Sender:
        return Sender(self, Channel.STATUS)

    @property
    def execution_tx(self) -> Sender:
        return Sender(self, Channel.EXECUTION)

    @property
    def stream_tx(self) -> Sender:
        return Sender(self, Channel.STREAM)

    @property
    def display_tx(self) -> Sender:
        return Sender(self, Channel.DISPLAY)

    @property
    def comm_tx(self) -> Sender:
        return Sender(self, Channel.COMM)

    # The writing side

    def deliver(self, message: KernelMessage, channel: Channel, sequence: int) -> bool:
        """As ``Sink`` has it."""
        with self._lock:
            if self._closed:
                return False
            self._put(Numbered(sequence, channel, message))
            tell = self._wake()
        if tell is not None:
            tell()
        return True

    def send(self, message: KernelMessage, channel: Channel) -> bool:
        """Deliver a message behind all others: for tests, and for sources other than a broker."""
        with self._lock:
            if self._closed:
                return False
            self._put(Numbered(self._next, channel, message))
            tell = self._wake()
        if tell is not None:
            tell()
        return True

    def reply(self, message: KernelMessage) -> None:
        """The shell has answered. Only the first answer counts."""
        with self._lock:
            if self._reply is None:
                self._reply = message
            tell = self._wake()
        if tell is not None:
            tell()

    def end(self, status: str) -> bool:
        """The request is over without idle and reply (``died``, ``timeout``, ...). False if it was over before."""
        with self._lock:
            if self._is_complete():
                return False
            self._ended = status
            tell = self._wake()
        if tell is not None:
            tell()
        return True

    def expire(self) -> None:
        """As ``Sink`` has it: ends the request as ``stale``."""
        self.end("stale")

    def _put(self, item: Numbered) -> None:
        queue = self._queues.get(item.channel)
        if queue is None:
            queue = self._queues[item.channel] = _Queue()
        self._dropped += queue.put(item, self.limit, self.bytes_max)
        self._next = item.sequence + 1
        if item.channel is Channel.STATUS and is_idle(item.message):
            self._idle = True

    def _wake(self) -> Callable[[], None] | None:
        """Wake the waiting readers; returns whom to call once the lock is free."""
        if self._changed is not None:
            self._changed.notify_all()
        is_news = not self._told
        self._told = True
        if not self._told_complete and self._is_complete():
            is_news = self._told_complete = True
        return self.on_message if is_news else None

    # The reading side

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def is_idle(self) -> bool:
        """Whether the kernel has said that it is done with the request."""
        return self._idle

    @property
    def is_complete(self) -> bool:
        return self._is_complete()

    @property
    def shell_reply(self) -> KernelMessage | None:
        return self._reply

    @property
    def ended(self) -> str | None:
        """How the request ended if not by idle and reply."""
        return self._ended

    @property
    def dropped(self) -> int:
        """Messages that came while their channel was full, or pushed others out, since the start."""
        return self._dropped

    def dropped_by_channel(self) -> dict[Channel, int]:
        with self._lock:
            return {channel: queue.dropped for channel, queue in self._queues.items() if queue.dropped}

    def waiting(self, channel: Channel | None = None) -> int:
        """Messages that wait to be read, in one channel or in all."""
        with self._lock:
            queues = self._queues
            return sum(len(queues[one].items) for one in queues if channel in (None, one))

    def take_next(self, channel: Channel, deadline_s: float | None) -> Numbered | None:
        """The channel's next message. None when the deadline has passed, or the request is complete or closed
        and nothing waits. Deadlines are times of ``time.monotonic``; without one the wait has no end.
        """

        def next_one() -> Numbered | None:
            queue = self._queues.get(channel)
            return queue.take() if queue is not None and queue.items else None

        return self._wait(next_one, deadline_s)

    def take_all(self, channel: Channel | None = None) -> list[Numbered]:
        """Whatever waits now, in one channel or in all, in order of arrival. Never waits."""
        with self._lock:
            self._told = False
            taken = self._clear(channel)
        taken.sort(key=_sequence)
        return taken

    def take_some(self, deadline_s: float | None) -> list[Numbered]:
        """Like ``take_all``, but waits until there is something; empty when ``take_next`` would give None."""
        taken = self._wait(lambda: self._clear(None) or None, deadline_s) or []
        taken.sort(key=_sequence)
        return taken

    def take_first(
        self, wanted: Callable[[KernelMessage], bool], deadline_s: float | None
    ) -> Numbered | None:
        """The first message in order of arrival that is wanted; the others stay where they are."""
        seen = -1
        # The question is put without the lock: however long it takes, routing goes on.
        while new := self._wait(partial(self._newer, seen), deadline_s):
            new.sort(key=_sequence)
            seen = new[-1].sequence
            for item in new:
                if wanted(item.message) and self._remove(item):
                    return item
        return None

    def wait_complete(self, deadline_s: float | None) -> bool:
        """Wait until the request is complete; False if the deadline passes before, or the channels are closed."""
        self._wait(lambda: None, deadline_s)
        return self._is_complete()

    def close(self) -> None:
        """Nobody reads any more: what waits is forgotten, and the broker removes the request."""
        with self._lock:
            self._closed = True
            for queue in self._queues.values():
                queue.clear()
            if self._changed is not None:
                self._changed.notify_all()

    def _is_complete(self) -> bool:
        return self._ended is not None or (self._idle and self._reply is not None)

    def _clear(self, channel: Channel | None) -> list[Numbered]:
        queues = self._queues
        return [item for one in queues if channel in (None, one) for item in queues[one].clear()]

    def _newer(self, seen: int) -> list[Numbered] | None:
        """What came after this number and waits still, in no order; None if nothing did."""
        return [
            item
            for queue in self._queues.values()
            for item in takewhile(lambda item: item.sequence > seen, reversed(queue.items))
        ] or None

    def _remove(self, item: Numbered) -> bool:
        """False if it was read or dropped meanwhile."""
        with self._lock:
            return self._queues[item.channel].remove(item)

    def _wait(self, take: Callable[[], T | None], deadline_s: float | None) -> T | None:
        """What ``take`` gives, under the lock, as soon as it gives something; None if nothing will come."""
        with self._lock:
            while True:
                taken = take()
                if taken is not None:
                    self._told = False
                    return taken
                if self._is_complete() or self._closed:
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

    When it is full the oldest go, and are counted. Used in a ``with`` block it is closed at the end of it.
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
        """As ``Subscriber`` has it."""
        with self._changed:
            if self._closed:
                return False
            for message in messages:
                self._messages.append(message)
                self._size_bytes += message.size_bytes
            while len(self._messages) > self._limit or (
                self._size_bytes > self._bytes_max and len(self._messages) > 1
            ):
                self._take()
                self._dropped += 1
            self._changed.notify_all()
            return True

    def recv(self, timeout_s: float | None = None) -> KernelMessage | None:
        """The next message; None if none comes in time, or if this is closed and none is left."""
        with self._changed:
            self._changed.wait_for(lambda: self._messages or self._closed, timeout_s)
            return self._take() if self._messages else None

    def close(self) -> None:
        """Take no more messages. What was taken can still be read; the broker forgets this when it notices."""
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
        """Messages as they come, until this is closed."""
        while (message := self.recv()) is not None:
            yield message

    def __enter__(self) -> GlobalSubscriber:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _take(self) -> KernelMessage:
        message = self._messages.popleft()
        self._size_bytes -= message.size_bytes
        return message
