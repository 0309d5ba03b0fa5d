"""What retention leaves alone for a while, because somebody who has to read it is behind."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping

from himalia.log.transaction import TopicState
from himalia.record import Position, Retention

logger = logging.getLogger("himalia.log")

COMPLAIN_EVERY_S = 60.0


class Spared:
    """Which records are unread, and how long that counts. ``unread`` may be replaced from any thread.

    ``wait`` is how far beyond its limits a topic may go: 1 is twice as far. While ``is_paused``, nothing is cut.
    """

    def __init__(self, wait: float, *, is_paused: bool) -> None:
        self._factor = 1.0 + max(wait, 0.0)
        self._unread: Mapping[str, Position] = {}
        self.is_paused = is_paused
        self.waiting_topics = 0
        """Topics that were beyond their limits and left alone, when that was last counted."""
        self._waiting: set[str] = set()
        self._complained_s = -COMPLAIN_EVERY_S

    def replace(self, unread: Mapping[str, Position]) -> None:
        self._unread = unread
        self.is_paused = False

    def floor(self, state: TopicState) -> int | None:
        """The first offset of a topic that is unread; None if nobody waits for any of it."""
        position = self._unread.get(state.name)
        if position is None or position.epoch != state.epoch or position.offset >= state.end:
            return None
        return position.offset

    def widened(self, limits: Retention) -> Retention:
        """The limits beyond which unread records go too."""
        return limits.scaled(self._factor)

    def note(self, topic: str) -> None:
        """This topic is beyond its limits and was left alone."""
        self._waiting.add(topic)

    def count(self) -> set[str]:
        """Those noted since the last count, which are to be looked at again."""
        waiting, self._waiting = self._waiting, set()
        if waiting and not self.waiting_topics:
            logger.warning(
                "retention waits: %d topics, %r among them, are beyond their limits, but not read yet by the "
                "pipeline; they may grow to %g times their limits",
                len(waiting),
                next(iter(waiting)),
                self._factor,
            )
        self.waiting_topics = len(waiting)
        return waiting

    def complain(self, topic: str) -> None:
        """Unread records of this topic go: it has come to its widest limits."""
        now_s = time.monotonic()
        if now_s - self._complained_s >= COMPLAIN_EVERY_S:
            self._complained_s = now_s
            logger.warning(
                "records of %r go although the pipeline has not read them: it is too far behind. Run it, or raise "
                "retention_wait",
                topic,
            )
