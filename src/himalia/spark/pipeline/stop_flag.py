"""Being asked to stop, by another thread or by a signal handler."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue


class Stopping:
    """A wish to stop, which cuts waits short.

    ``ask`` takes no lock: a signal handler runs in the middle of anything. If the work has not ended ``grace_s`` after
    it, ``on_overdue`` is called, in a thread of its own.
    """

    def __init__(self, grace_s: float, on_overdue: Callable[[], None]) -> None:
        self.is_asked = False
        self._grace_s = grace_s
        self._on_overdue = on_overdue
        self._wakes: SimpleQueue[None] = SimpleQueue()
        self._news: SimpleQueue[str] = SimpleQueue()

    def watch(self) -> None:
        """From now on ``on_overdue`` may be called, until ``over``."""
        threading.Thread(target=self._watch, name="himalia-stopping", daemon=True).start()

    def ask(self) -> None:
        self.is_asked = True
        self._wakes.put(None)
        self._news.put("asked")

    def over(self) -> None:
        """The work has ended: nothing is overdue any more."""
        self._news.put("over")

    def wait(self, seconds: float) -> None:
        """Wait, but no longer than until somebody asks."""
        if self.is_asked or seconds <= 0:
            return
        try:
            self._wakes.get(timeout=seconds)
        except Empty:
            pass

    def _watch(self) -> None:
        if self._news.get() == "over":
            return
        try:
            # A second wish is an impatient one.
            told = self._news.get(timeout=self._grace_s)
        except Empty:
            told = "overdue"
        if told != "over":
            self._on_overdue()
