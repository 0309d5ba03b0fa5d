"""The tables that grow: what they say, and that batches merge into the same rows as all of it at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from himalia.spark.transforms import errors, kernel_health, topic_activity
from tests.spark.transforms.fold_checks import interpreted

START = datetime(2026, 11, 16, 11, 57, tzinfo=UTC)
STATUSES = ("ok", "ok", "ok", "error", "died", "aborted")
EXECUTIONS = """
    kernel_id string, request_id string, status string, started timestamp, finished timestamp, run_ms double,
    ename string, evalue string
"""
MESSAGES = "topic string, ts timestamp, publisher string, bytes bigint"
Table = Callable[[DataFrame], DataFrame]


@pytest.fixture(autouse=True)
def small_batches(spark: SparkSession) -> Iterator[None]:
    with interpreted(spark):
        yield


def executions(count: int = 200) -> list[tuple[Any, ...]]:
    """Executions over some minutes around noon, a few of them long, two never started."""
    random = Random(4)
    rows = []
    for number in range(count):
        started = START + timedelta(microseconds=random.randrange(600_000_000))
        run_us = round(random.lognormvariate(10, 3))
        status = random.choice(STATUSES)
        ename = random.choice(("ValueError", "KeyError", None)) if status == "error" else None
        began = None if number < 2 else started
        run_ms = None if began is None else run_us / 1000
        finished = started + timedelta(microseconds=run_us)
        kernel_id = f"k{number % 3}"
        rows.append((kernel_id, f"r{number}", status, began, finished, run_ms, ename, f"no {number}"))
    return rows


def merged_by_parts(table: Any, rows: DataFrame, spark: SparkSession) -> list[str]:
    """The table after three batches, in an order that can be compared."""
    parts = rows.randomSplit([1.0, 1.0, 1.0], seed=7)
    result = table.new_rows(parts[0])
    for part in parts[1:]:
        # As the pipeline does: what is there was written, and is read back.
        written = spark.createDataFrame(result.toArrow(), result.schema)
        result = table.merge(written, table.new_rows(part))
    return sorted(map(str, result.collect()))


@pytest.mark.parametrize("table", [kernel_health, errors])
def test_executions_in_batches_merge_exactly(spark: SparkSession, table: Any) -> None:
    """To the last digit: nothing is a mean of means."""
    rows = spark.createDataFrame(executions(), EXECUTIONS)
    whole = table.new_rows(rows)
    assert merged_by_parts(table, rows, spark) == sorted(map(str, whole.collect()))


def test_messages_in_batches_merge_exactly(spark: SparkSession) -> None:
    random = Random(5)
    rows = spark.createDataFrame(
        [
            (
                random.choice("ab"),
                START + timedelta(seconds=random.randrange(180)),
                random.choice(("x", "y", None)),
                7,
            )
            for _ in range(100)
        ],
        MESSAGES,
    )
    whole = topic_activity.new_rows(rows)
    assert merged_by_parts(topic_activity, rows, spark) == sorted(map(str, whole.collect()))


def test_activity_is_per_topic_and_minute(spark: SparkSession) -> None:
    told = [("a", 0, "x", 10), ("a", 59, "y", 20), ("a", 60, "x", 30), ("a", 61, None, 40), ("b", 0, "x", 50)]
    rows = [(topic, START + timedelta(seconds=second), who, size) for topic, second, who, size in told]
    found = (
        topic_activity.new_rows(spark.createDataFrame(rows, MESSAGES)).orderBy("topic", "minute").collect()
    )
    assert [(row.topic, row.messages, row.bytes, row.publisher_names, row.hour) for row in found] == [
        ("a", 2, 30, ["x", "y"], "2026-11-16T11"),
        ("a", 2, 70, ["x"], "2026-11-16T11"),
        ("b", 1, 50, ["x"], "2026-11-16T11"),
    ]


def test_percentiles_are_within_their_bound(spark: SparkSession) -> None:
    """Beside those of all durations, sorted: 4.5% at most."""
    rows = [(*row[:4], START, row[5], *row[6:]) for row in executions(600)]
    found = kernel_health.new_rows(spark.createDataFrame(rows, EXECUTIONS)).where("executions > 0").collect()
    assert len(found) == 3
    for row in found:
        exact = sorted(each[5] for each in rows if each[0] == row.kernel_id and each[5] is not None)
        for name, share in kernel_health.PERCENTILES.items():
            wanted = exact[-(-len(exact) * round(share * 100) // 100) - 1]
            assert abs(row[name] / wanted - 1) < 0.045, (row.kernel_id, name)


def test_a_long_execution_keeps_every_window_busy(spark: SparkSession) -> None:
    """From 11:57 to 12:08 it is 3, 5 and 3 minutes of three windows, and counts where it ended."""
    row = ("k", "r", "error", START, START + timedelta(minutes=11), 660_000.0, "E", "")
    found = kernel_health.new_rows(spark.createDataFrame([row], EXECUTIONS)).orderBy("window_start").collect()
    assert [(each.busy_share, each.executions, each.error_rate) for each in found] == [
        (0.6, 0, None),
        (1.0, 0, None),
        (0.6, 1, 1.0),
    ]
    assert [each.hour for each in found] == ["2026-11-16T11", "2026-11-16T12", "2026-11-16T12"]


def test_errors_keep_the_last_example(spark: SparkSession) -> None:
    told = [
        ("k2", "r1", "ValueError", 1),
        ("k1", "r2", "ValueError", 5),
        ("k2", "r3", "ValueError", 3),
        ("k1", "r4", None, 2),
    ]
    rows = [
        (kernel, request, "error", START, START + timedelta(seconds=second), 1.0, ename, f"no {request}")
        for kernel, request, ename, second in told
    ]
    found = errors.new_rows(spark.createDataFrame(rows, EXECUTIONS)).orderBy("ename").collect()
    assert [
        (row.ename, row["count"], row.last_evalue, row.last_request_id, row.last_kernel_id, row.kernels)
        for row in found
    ] == [
        ("ValueError", 3, "no r2", "r2", "k1", ["k1", "k2"]),
        ("unknown", 1, "no r4", "r4", "k1", ["k1"]),
    ]
    assert [row.last_ts.astimezone(UTC) - START for row in found] == [
        timedelta(seconds=5),
        timedelta(seconds=2),
    ]
