"""Unread records that retention leaves alone for a while, because the pipeline has not read them yet."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from himalia.log.api import LogOptions
from himalia.log.topic_state import TopicState
from himalia.record import Position, Retention
from himalia.throttle import LogThrottle

logger = logging.getLogger("himalia.log")

WARN_EVERY_S = 60.0


class RetentionHold:
    """Which records are unread, and up to which size of their topic they are kept.

    Belongs to the thread that enforces retention. Other threads may call ``replace``, which stores one reference, and
    read ``held_topics``.
    """

    def __init__(self, options: LogOptions) -> None:
        self._factor = 1.0 + max(options.settings.retention_wait, 0.0)
        self._unread: Mapping[str, Position] = {}
        self.is_paused = options.retention_paused
        """Whether nothing is deleted at all, until the first call of ``replace``."""
        self.held_topics = 0
        """Topics that were beyond their limits and left alone, when they were last counted."""
        self._held: set[str] = set()
        self._throttle = LogThrottle(WARN_EVERY_S)

    def replace(self, unread: Mapping[str, Position]) -> None:
        """Set the first unread position of each topic. Called from any thread."""
        self._unread = unread
        self.is_paused = False

    def first_unread(self, state: TopicState) -> int | None:
        """Return the first unread offset of a topic; None if nothing of it is held."""
        position = self._unread.get(state.name)
        if position is None or position.epoch != state.epoch or position.offset >= state.end:
            return None
        return position.offset

    def hard_limits(self, limits: Retention) -> Retention:
        """Return the limits beyond which unread records are deleted too."""
        return limits.scale(self._factor)

    def mark_held(self, topic: str) -> None:
        """Note that this topic is beyond its limits and was left alone."""
        self._held.add(topic)

    def drain_held(self) -> set[str]:
        """Return the topics marked since the last call, so that they are checked again, and count them."""
        held, self._held = self._held, set()
        if held and not self.held_topics:
            logger.warning(
                "retention is on hold for %d topics (such as %r) until the pipeline has read them; they may grow to "
                "%g times their limits",
                len(held),
                next(iter(held)),
                self._factor,
            )
        self.held_topics = len(held)
        return held

    def warn_unread_deleted(self, topic: str) -> None:
        """Log, at most once a minute, that unread records of this topic are deleted: it has reached its hard limits."""
        if self._throttle.allow():
            logger.warning(
                "deleting unread records of %r: the pipeline is too far behind; run it, or raise retention_wait",
                topic,
            )
