"""Prometheus metrics at ``/metrics``, collected from the counters of the server's parts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from himalia.errors import ErrorCode
from himalia.log.api import LogStats
from himalia.server.http.admission import Refusal
from himalia.server.identity.credential import Failure

if TYPE_CHECKING:
    from himalia.kernels.kernel import Kernel
    from himalia.server.context import ServerContext

COMMIT_BUCKETS_S = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5)


class Metrics(Collector):
    """The metrics of one server, in a registry of its own."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context
        self._errors: Counter[ErrorCode] = Counter()
        self._healthy = True
        self._warnings = 0
        self._lag = 0
        self._log_stats = LogStats(0, 0, 0, 0, (), 0)
        self._registry = CollectorRegistry()
        self._commit_s = Histogram(
            "himalia_commit_seconds",
            "Time of a commit of the log",
            buckets=COMMIT_BUCKETS_S,
            registry=self._registry,
        )
        self._registry.register(self)

    def count_error(self, code: ErrorCode) -> None:
        self._errors[code] += 1

    async def text(self) -> bytes:
        health = await self._context.log.health()
        self._healthy, self._warnings = health.ok, len(health.warnings)
        self._lag = await self._context.manager.lag()
        self._log_stats = self._context.log.stats()
        for seconds in self._log_stats.commit_seconds:
            self._commit_s.observe(seconds)
        return generate_latest(self._registry)

    def describe(self) -> list[Metric]:
        return []  # there is nothing to collect before the context is open

    def collect(self) -> Iterator[Metric]:
        yield from self._counters()
        yield from self._gauges()
        errors = CounterMetricFamily("himalia_errors", "Errors sent to clients", labels=["code"])
        for code, count in self._errors.items():
            errors.add_metric([code], count)
        yield errors
        yield _by(
            "himalia_connections_refused",
            "Connections not taken, or closed for others",
            "reason",
            Refusal,
            self._context.admission.refused,
        )
        yield _by(
            "himalia_authentication_failures",
            "Requests whose caller was not known",
            "reason",
            Failure,
            {str(reason): count for reason, count in self._context.identity.failures.items()},
        )
        if self._context.kernel_host is not None:
            yield from self._of_kernels(list(self._context.kernel_host.kernels.values()))

    def _counters(self) -> Iterator[Metric]:
        counters = self._context.manager.counters
        yield CounterMetricFamily("himalia_publishes", "Records stored", counters.published)
        yield CounterMetricFamily(
            "himalia_duplicates", "Publishes recognised as repeats", counters.duplicates
        )
        yield CounterMetricFamily("himalia_commits", "Commits of the log", self._log_stats.commits)
        yield CounterMetricFamily("himalia_log_failures", "Commits that failed", self._log_stats.failures)
        dropped = self._context.audit.dropped
        yield CounterMetricFamily("himalia_audit_drops", "Audit records that were lost", dropped)
        yield CounterMetricFamily("himalia_deliveries", "Records given to subscribers", counters.delivered)
        yield CounterMetricFamily("himalia_drops", "Records that slow subscribers skipped", counters.dropped)

    def _gauges(self) -> Iterator[Metric]:
        context, manager = self._context, self._context.manager
        gauges = {
            "himalia_connections": ("WebSocket and SSE connections", context.connection_count),
            "himalia_sockets": ("TCP connections, known and anonymous", context.admission.count),
            "himalia_receiving_bytes": ("Bytes of request bodies being received", context.bodies.used_bytes),
            "himalia_subscribers": ("Subscriptions", manager.subscriber_count),
            "himalia_topics": ("Topics", manager.topic_count),
            "himalia_lag_records": ("Records by which the slowest subscriber is behind", self._lag),
            "himalia_queue_bytes": (
                "Bytes that peers have not taken yet",
                sum(outlet.unsent_bytes for outlet in manager.outlets()),
            ),
            "himalia_in_flight_publishes": ("Publishes that wait for their commit", manager.in_flight),
            "himalia_log_bytes": ("Size of the log on disk", self._log_stats.disk_bytes),
            "himalia_retention_waiting_topics": (
                "Topics beyond their limits that wait for the pipeline",
                self._log_stats.held_topics,
            ),
            "himalia_log_healthy": ("1 while the log can store", int(self._healthy)),
            "himalia_log_warnings": ("Warnings of the log in /health", self._warnings),
            "himalia_uptime_seconds": ("Time since the start", manager.counters.uptime_s),
        }
        for name, (help, value) in gauges.items():
            yield GaugeMetricFamily(name, help, value)

    def _of_kernels(self, kernels: list[Kernel]) -> Iterator[Metric]:
        from himalia.iopub.broker import LATENCY_BOUNDS_S
        from himalia.jupyter.channels import Channel
        from himalia.jupyter.duration import RUN_BOUNDS_S
        from himalia.jupyter.wire import FaultKind
        from himalia.kernels.model import KernelState
        from himalia.protocol.models import ExecutionStatus

        counts = self._context.kernel_observer.counts.plus(kernels)
        states = GaugeMetricFamily("himalia_kernels", "Kernels that run", labels=["state"])
        now = Counter(kernel.state for kernel in kernels)
        for state in KernelState:
            states.add_metric([state], now[state])
        yield states
        ended = [status for status in ExecutionStatus if status.is_final]
        yield _by("himalia_kernel_messages", "Messages routed to requests", "channel", Channel, counts.routed)
        yield _by("himalia_kernel_requests", "Requests that ended", "status", ended, counts.requests)
        yield _by("himalia_kernel_faults", "Messages of kernels refused", "kind", FaultKind, counts.faults)
        for name, help, count in (
            ("orphans", "Messages that came without a known request", counts.orphaned),
            ("orphans_claimed", "Orphans that found their request", counts.claimed),
            ("orphans_lost", "Orphans dropped for their age or for want of room", counts.lost),
            ("stale_requests", "Requests given up because nothing was heard of them", counts.stale),
            ("drops", "Messages that readers in this process did not take in time", counts.dropped),
        ):
            yield CounterMetricFamily(f"himalia_kernel_{name}", help, count)
        for name, help, value in (
            (
                "queued_requests",
                "Requests that wait for their kernel",
                sum(k.scheduler.queued for k in kernels),
            ),
            (
                "buffered_bytes",
                "Bytes of kernels that wait for the log",
                sum(k.output.topic_writer.buffered_bytes for k in kernels),
            ),
        ):
            yield GaugeMetricFamily(f"himalia_kernel_{name}", help, value)
        yield HistogramMetricFamily(
            "himalia_kernel_routing_seconds",
            "Time to route a message",
            buckets=_buckets(LATENCY_BOUNDS_S, counts.latency),
            sum_value=counts.latency_sum_s,
        )
        yield HistogramMetricFamily(
            "himalia_kernel_execution_seconds",
            "Time that code ran, by the kernel's own clock",
            buckets=_buckets(RUN_BOUNDS_S, counts.runs.counts if counts.runs else []),
            sum_value=counts.runs.sum_s if counts.runs else 0.0,
        )


def _by(name: str, help: str, label: str, values: Iterable[str], counts: Mapping[str, int]) -> Metric:
    """Return a counter by label, with 0 for values that were never counted."""
    family = CounterMetricFamily(name, help, labels=[label])
    for value in values:
        family.add_metric([value], counts.get(value, 0))
    return family


def _buckets(bounds_s: tuple[float, ...], counts: list[int]) -> list[tuple[str, float]]:
    """Return cumulative buckets, as Prometheus requires."""
    names = [*(str(bound) for bound in bounds_s), "+Inf"]
    return list(zip(names, accumulate(counts or [0] * len(names)), strict=True))
