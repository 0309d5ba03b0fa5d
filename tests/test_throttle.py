"""Complaints that come seldom, however often there is a reason."""

from __future__ import annotations

from himalia.throttle import LogThrottle


def test_the_first_time_and_then_after_a_while() -> None:
    """It is said at once, and again when enough time has passed since it was said."""
    now_s = 0.0
    throttle = LogThrottle(10.0, clock=lambda: now_s)
    said = []
    for now_s in (0.0, 1.0, 9.9, 10.0, 15.0, 19.9, 100.0, 100.1):  # noqa: B007 - the clock reads it
        said.append(throttle.allow())
    assert said == [True, False, False, True, False, False, True, False]
