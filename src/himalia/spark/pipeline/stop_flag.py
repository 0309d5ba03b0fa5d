"""A request to stop, from another thread or a signal handler."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from typing import Literal


class StopFlag:
    """Set once to stop the work; waits end as soon as it is set.

    ``request`` takes no lock, so that a signal handler can call it wherever the thread was interrupted.
    """

    def __init__(self) -> None:
        self.is_requested = False
        self._wakes: SimpleQueue[None] = SimpleQueue()
        self._events: SimpleQueue[Literal["requested", "finished"]] = SimpleQueue()

    def request(self) -> None:
        self.is_requested = True
        self._wakes.put(None)
        self._events.put("requested")

    @contextmanager
    def deadline(self, grace_s: float, on_overdue: Callable[[], None]) -> Iterator[None]:
        """Call ``on_overdue`` if the block has not ended ``grace_s`` after the request, or at a second request.

        It is called in a thread of its own, at most once.
        """
        threading.Thread(
            target=self._watch, args=(grace_s, on_overdue), name="himalia-stopping", daemon=True
        ).start()
        try:
            yield
        finally:
            self._events.put("finished")

    def wait(self, seconds: float) -> None:
        """Wait until the time is over or a stop is requested."""
        if self.is_requested or seconds <= 0:
            return
        try:
            self._wakes.get(timeout=seconds)
        except Empty:
            pass

    def _watch(self, grace_s: float, on_overdue: Callable[[], None]) -> None:
        if self._events.get() == "finished":
            return
        try:
            is_finished = self._events.get(timeout=grace_s) == "finished"
        except Empty:
            is_finished = False
        if not is_finished:
            on_overdue()
