"""The keeper's event loop: waits for ZeroMQ sockets and descriptors, and calls who waits for each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import zmq

TIMEOUT_MAX_MS = 3_600_000


class EventLoop:
    """Callbacks by what they wait for: a ZeroMQ socket or a descriptor. A callback gets the events of the poll."""

    def __init__(self) -> None:
        self._poller = zmq.Poller()
        self._callbacks: dict[Any, Callable[[int], None]] = {}

    def add(self, source: Any, callback: Callable[[int], None], events: int = zmq.POLLIN) -> None:
        """Wait for these events of a source from now on, in place of those before."""
        self._poller.register(source, events)
        self._callbacks[source] = callback

    def remove(self, source: Any) -> None:
        self._poller.unregister(source)
        del self._callbacks[source]

    def poll(self, timeout_s: float | None) -> None:
        """Wait for the first event, at most for this long, and call the callbacks of all that are ready."""
        for source, events in self._poller.poll(_milliseconds(timeout_s)):
            callback = self._callbacks.get(source)
            # A callback before it may have removed this one.
            if callback is not None:
                callback(events)


def _milliseconds(timeout_s: float | None) -> int:
    if timeout_s is None:
        return TIMEOUT_MAX_MS
    # Rounded up, so that waking does not come a moment early, again and again.
    return min(int(max(timeout_s, 0.0) * 1000) + 1, TIMEOUT_MAX_MS)
