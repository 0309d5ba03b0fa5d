"""Cases of how long a request ran, for the three places that say it: REST and metrics, the tables, and the page."""

from __future__ import annotations

from typing import NamedTuple


class Case(NamedTuple):
    """Times in milliseconds after some moment. ``busy`` and ``idle`` are the kernel's dates, None for none."""

    name: str
    queued: int | None
    busy_stored: int | None
    closed: int
    busy: float | None
    idle: float | None
    ran: float | None


CASES = [
    Case("busy and idle in one commit", 0, 25, 25, 2, 24, 22),
    Case("less than a millisecond", 0, 25, 25, 2.25, 2.611, 0.361),
    Case("microseconds", 0, 40, 40, 2.999, 31.61, 28.611),
    Case("a long one", 0, 10, 65_020, 5, 65_005, 65_000),
    Case("of another client", None, 25, 26, 1, 23, 22),
    Case("stored long after it ran", 0, 600_000, 600_000, 10, 5_010, 5_000),
    Case("a clock an hour behind", 0, 5, 105, -3_600_000, -3_599_900, 100),
    Case("a clock an hour behind, of another client", None, 5, 105, -3_600_000, -3_599_970, 100),
    Case("a clock an hour ahead", 0, 5, 105, 3_600_000, 3_600_050, 100),
    Case("idle before busy", 0, 5, 105, 60, 50, 100),
    Case("no dates", 0, 5, 105, None, None, 100),
    Case("no idle: the kernel died", 0, 5, 2_005, 3, None, 2_000),
    Case("never started", 0, None, 100, None, None, None),
]
