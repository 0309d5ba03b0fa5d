"""A warehouse as the pipeline would have filled it an hour ago until now, written without Spark."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from tests.tables.sample import execution, message, write_table

KERNELS = ("2f1c9a07-5a56-4c0c-8f5a-0d9c1f6f7b11", "b81e02d4-0c3f-4a7e-9d11-7a5e3c2f4d90")
FAILURES = (
    ("ValueError", "could not convert string to float: 'n/a'", 14),
    ("KeyError", "'customer_id'", 9),
    ("ZeroDivisionError", "division by zero", 4),
    ("MemoryError", "Unable to allocate 7.45 GiB for an array", 1),
)
CODES = (
    "df = load_orders('2026-11')\ndf.describe()",
    "model.fit(train, epochs=3)",
    "plot_losses(history)",
    "df.groupby('sku').total.sum().nlargest(10)",
    "export(report, 'weekly.html')",
)


def write_busy_hour(warehouse: Path, now: datetime | None = None) -> None:
    """Every table with an hour of traffic that looks like traffic. The same for the same time."""
    chance = random.Random(7)
    now = (now or datetime.now(UTC)).replace(second=0, microsecond=0)
    write_table(warehouse, "messages", [message(n, ts=now, date=now.date()) for n in range(400)])
    write_table(warehouse, "topic_activity", list(_activity(now, chance)))
    write_table(warehouse, "executions", list(_executions(now, chance)))
    write_table(warehouse, "kernel_health", list(_health(now, chance)))
    write_table(warehouse, "errors", list(_errors(now)))


def _activity(now: datetime, chance: random.Random) -> Any:
    for topic, most in (("orders", 420), (f"kernels.{KERNELS[0]}", 260), ("clicks", 180), ("refunds", 35)):
        for ago in range(60):
            minute = now - timedelta(minutes=ago)
            wave = 0.55 + 0.35 * (1 if 20 < ago < 35 else 0) + chance.random() * 0.25
            row = {
                "topic": topic,
                "minute": minute,
                "messages": int(most * wave),
                "bytes": int(most * wave) * 180,
            }
            yield {
                **row,
                "publishers": 2,
                "publisher_names": ["shop", "web"],
                "hour": f"{minute:%Y-%m-%dT%H}",
            }


def _executions(now: datetime, chance: random.Random) -> Any:
    for number in range(160):
        started = now - timedelta(seconds=20 * number)
        took = timedelta(milliseconds=chance.lognormvariate(4.5, 1.4))
        row: dict[str, Any] = {
            "kernel_id": KERNELS[number % 2],
            "topic": f"kernels.{KERNELS[number % 2]}",
            "request_id": f"request-{number}",
            "code": CODES[number % len(CODES)],
            "queued": started,
            "started": started,
            "finished": started + took,
            "run_ms": took.total_seconds() * 1000,
            "date": started.date(),
        }
        if number == 0:
            row |= {"status": "running", "finished": None, "run_ms": None, "is_running": True}
        elif number % 9 == 4:
            ename, evalue, _ = FAILURES[number % len(FAILURES)]
            row |= {"status": "error", "ename": ename, "evalue": evalue}
        yield execution(number, **row)


def _health(now: datetime, chance: random.Random) -> Any:
    for kernel, slowness in zip(KERNELS, (44, 60), strict=True):
        for ago in range(12):
            start = now - timedelta(minutes=5 * ago + now.minute % 5)
            runs = chance.randint(4, 14)
            histogram: dict[int, int] = {}
            for _ in range(runs):
                bucket = int(chance.gauss(slowness, 9))
                histogram[bucket] = histogram.get(bucket, 0) + 1
            row = {
                "kernel_id": kernel,
                "window_start": start,
                "executions": runs,
                "failures": chance.randint(0, 2),
            }
            yield {
                **row,
                "busy_ms": 9000.0,
                "histogram": sorted(histogram.items()),
                "hour": f"{start:%Y-%m-%dT%H}",
            }


def _errors(now: datetime) -> Any:
    hour = now.replace(minute=0)
    for ename, evalue, count in FAILURES:
        last = {
            "last_evalue": evalue,
            "last_kernel_id": KERNELS[0],
            "last_request_id": "request-4",
            "last_ts": now,
        }
        yield {
            "ename": ename,
            "hour_start": hour,
            "count": count,
            **last,
            "kernels": list(KERNELS),
            "hour": f"{hour:%Y-%m-%dT%H}",
        }
