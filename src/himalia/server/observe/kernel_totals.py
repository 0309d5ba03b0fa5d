"""Totals of the counters of all kernels, including those that have ended, so that they never decrease."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from himalia.jupyter.duration import RunHistogram
    from himalia.kernels.kernel import Kernel


class KernelCounts:
    """Sums of kernels' counters. ``add`` adds the current counters of one kernel."""

    def __init__(self) -> None:
        self.routed: Counter[str] = Counter()
        self.requests: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.orphaned = self.claimed = self.lost = self.stale = self.dropped = 0
        # Made when needed: a server without kernels does not import histograms.
        self.runs: RunHistogram | None = None
        self.latency: list[int] = []
        self.latency_sum_s = 0.0

    def add(self, kernel: Kernel) -> None:
        stats = kernel.output.broker.stats()
        self.routed.update(stats.routed)
        self.requests.update({str(status): count for status, count in kernel.scheduler.closed.items()})
        self.faults.update(kernel.connector.faults)
        self.orphaned += stats.orphaned
        self.claimed += stats.claimed
        self.lost += stats.expired + stats.evicted
        self.stale += stats.stale
        self.dropped += stats.dropped
        self._add_runs(kernel.scheduler.runs)
        known = self.latency or [0] * len(stats.latency.counts)
        self.latency = [one + other for one, other in zip(known, stats.latency.counts, strict=True)]
        self.latency_sum_s += stats.latency.sum_s

    def _add_runs(self, runs: RunHistogram | None) -> None:
        from himalia.jupyter.duration import RunHistogram

        if runs is not None:
            self.runs = self.runs or RunHistogram()
            self.runs.add(runs)

    def plus(self, kernels: Iterable[Kernel]) -> KernelCounts:
        """Return these sums plus the counters of the given kernels."""
        total = KernelCounts()
        total.routed.update(self.routed)
        total.requests.update(self.requests)
        total.faults.update(self.faults)
        total.orphaned, total.claimed, total.lost = self.orphaned, self.claimed, self.lost
        total.stale, total.dropped = self.stale, self.dropped
        total._add_runs(self.runs)
        total.latency, total.latency_sum_s = list(self.latency), self.latency_sum_s
        for kernel in kernels:
            total.add(kernel)
        return total
