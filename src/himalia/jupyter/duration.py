"""The duration of a request: by the dates in the kernel's messages, where the log's times agree with them.

The log's times are those of commits, and a short request often has its ``busy`` and its ``idle`` in one commit. The
kernel stamps both when it sends them. Its dates count if they lie between the time the request was accepted here and
the time it was closed (or, if another client sent it, between the commits of its busy and its close, a second more
at either end); otherwise (no date, a kernel whose clock is wrong, a kernel that died) the log's times do. The
pipeline (``spark/transforms/executions.py``) and the page (``page/live/kernel_session.js``) have the same rule;
``tests/jupyter/duration_cases.py`` holds the cases that all three are tested with.
"""

from __future__ import annotations

from bisect import bisect_left

import msgspec

from himalia.jupyter.wire import KernelMessage
from himalia.record import parse_ts

TOLERANCE_US = 1_000_000
"""How far the kernel's dates may lie outside the log's times, which are taken a moment earlier or later."""


class _Header(msgspec.Struct, gc=False):
    date: str = ""


_decode_header = msgspec.json.Decoder(_Header).decode


def header_date_us(message: KernelMessage) -> int | None:
    """Decode the date of a message's header; None without a valid one."""
    try:
        return parse_ts(_decode_header(message.header).date)
    except (msgspec.MsgspecError, ValueError, OverflowError):
        return None


class StatusDates(msgspec.Struct, frozen=True, gc=False):
    """The kernel's dates of the first ``busy`` and the first ``idle`` of one request."""

    busy_us: int | None = None
    idle_us: int | None = None

    def with_busy(self, date_us: int | None) -> StatusDates:
        return StatusDates(_earlier(self.busy_us, date_us), self.idle_us)

    def with_idle(self, date_us: int | None) -> StatusDates:
        return StatusDates(self.busy_us, _earlier(self.idle_us, date_us))

    def run_us(self, asked_us: int | None, started_us: int | None, closed_us: int | None) -> int | None:
        """Return the duration of the request; None if it never started or is not closed.

        The arguments are times of the log: when the request was accepted (None if another client sent it), when its
        ``busy`` was stored, and when it was closed.
        """
        if started_us is None or closed_us is None:
            return None
        if self._is_plausible(started_us if asked_us is None else asked_us, closed_us):
            assert self.busy_us is not None and self.idle_us is not None
            return self.idle_us - self.busy_us
        return max(closed_us - started_us, 0)

    def _is_plausible(self, earliest_us: int, latest_us: int) -> bool:
        if self.busy_us is None or self.idle_us is None:
            return False
        return earliest_us - TOLERANCE_US <= self.busy_us <= self.idle_us <= latest_us + TOLERANCE_US


def _earlier(known_us: int | None, date_us: int | None) -> int | None:
    if known_us is None or date_us is None:
        return date_us if known_us is None else known_us
    return min(known_us, date_us)


RUN_BOUNDS_S = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0, 300.0, 1800.0, 3600.0)
"""Upper bounds of the buckets of ``himalia_kernel_execution_seconds``; one more bucket has none."""


class RunHistogram:
    """Durations of requests, counted per bucket (not cumulative)."""

    __slots__ = ("counts", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(RUN_BOUNDS_S) + 1)
        self.sum_s = 0.0

    def observe(self, run_us: int | None) -> None:
        """Count a request; one that never started has no duration and is left out."""
        if run_us is not None:
            self.counts[bisect_left(RUN_BOUNDS_S, run_us / 1_000_000)] += 1
            self.sum_s += run_us / 1_000_000

    def add(self, other: RunHistogram) -> None:
        self.counts = [one + more for one, more in zip(self.counts, other.counts, strict=True)]
        self.sum_s += other.sum_s
