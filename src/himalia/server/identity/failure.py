"""Why a caller was not let in."""

from __future__ import annotations

from enum import StrEnum


class Failure(StrEnum):
    """Label of the metric ``himalia_authentication_failures_total``."""

    NO_KEY = "no_key"
    WRONG_KEY = "wrong_key"
    EXPIRED = "expired"
    UNKNOWN_SESSION = "unknown_session"
    BAD_JWT = "bad_jwt"
