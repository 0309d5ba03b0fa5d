"""Credentials: valid until they end, which is reported to everything that was opened with them."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

from himalia.errors import Unauthorized

OnEnd = Callable[[Unauthorized], None]


class Credential:
    """Ends once: revoked, replaced or expired. Everything that was opened with it watches it, and ends with it.

    Belongs to the event loop. ``expires_us`` is a wall-clock time; the issuer of the credential calls ``end`` then.
    """

    __slots__ = ("__weakref__", "_watchers", "ended", "expires_us")

    def __init__(self, expires_us: int | None = None) -> None:
        self.expires_us = expires_us
        self.ended: Unauthorized | None = None
        self._watchers: dict[OnEnd, None] = {}

    def watch(self, on_end: OnEnd) -> None:
        """Call ``on_end`` once when this ends; at once if it has ended already."""
        if self.ended is not None:
            on_end(self.ended)
        else:
            self._watchers[on_end] = None

    def unwatch(self, on_end: OnEnd) -> None:
        self._watchers.pop(on_end, None)

    def end(self, why: str) -> None:
        """End it; ``why`` is a message for the client. Idempotent."""
        if self.ended is not None:
            return
        self.ended = Unauthorized(why)
        watchers, self._watchers = self._watchers, {}
        for on_end in watchers:
            on_end(self.ended)

    def has_expired(self, now_us: int) -> bool:
        return self.expires_us is not None and now_us >= self.expires_us


class Failure(StrEnum):
    """Label of the metric ``himalia_authentication_failures_total``."""

    NO_KEY = "no_key"
    WRONG_KEY = "wrong_key"
    EXPIRED = "expired"
    UNKNOWN_SESSION = "unknown_session"
    BAD_JWT = "bad_jwt"
