"""Watching all of a kernel's messages: the newest are kept until somebody reads them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from types import TracebackType

from himalia.kernels.wire import KernelMessage


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
