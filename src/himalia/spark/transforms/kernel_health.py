"""The table ``kernel_health``: executions, failures and durations per kernel and window of five minutes.

It sums closed executions only: one that runs for long appears when it ends, in every window that it covers.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from himalia.spark.transforms import histogram
from himalia.spark.transforms.aggregate import AggregateTable, hour_of
from himalia.tables.catalog import KERNEL_HEALTH

WINDOW_US = 300_000_000
FAILURES = ("error", "died", "timeout", "stale")
PERCENTILES = {"run_ms_p50": 0.50, "run_ms_p95": 0.95, "run_ms_p99": 0.99}


def new_rows(executions: DataFrame) -> DataFrame:
    """Return the rows that a batch of closed ``executions`` adds; a long one also adds to earlier hours."""
    return _sum(
        _count_finished(executions).unionByName(_split_busy_time(executions), allowMissingColumns=True)
    )


def merge(existing: DataFrame, added: DataFrame) -> DataFrame:
    """Merge rows of the table with those of a batch."""
    rows = existing.unionByName(added)
    counts = rows.select(
        "kernel_id",
        "window_start",
        "executions",
        "failures",
        F.round(F.col("busy_ms") * 1000).cast("bigint").alias("busy_us"),
    )
    buckets = rows.select("kernel_id", "window_start", F.explode("histogram").alias("bucket", "durations"))
    return _sum(counts.unionByName(buckets, allowMissingColumns=True))


def _count_finished(executions: DataFrame) -> DataFrame:
    bucket = histogram.bucket_of(F.col("run_ms"))
    return executions.select(
        "kernel_id",
        _window_of(F.unix_micros("finished")).alias("window_start"),
        F.lit(1).cast("bigint").alias("executions"),
        F.col("status").isin(*FAILURES).cast("bigint").alias("failures"),
        bucket.alias("bucket"),
        F.when(bucket.isNotNull(), 1).cast("bigint").alias("durations"),
    )


def _split_busy_time(executions: DataFrame) -> DataFrame:
    """Split the time of each execution into the windows that it covers."""
    start, end = F.unix_micros("started"), F.unix_micros("finished")
    windows = F.sequence(F.floor(start / WINDOW_US), F.floor(end / WINDOW_US))
    shared = executions.where("started is not null").select(
        "kernel_id", start.alias("start"), end.alias("end"), F.explode(windows).alias("number")
    )
    first = F.col("number") * WINDOW_US
    overlap = F.least("end", first + WINDOW_US) - F.greatest("start", first)
    return shared.select(
        "kernel_id", F.timestamp_micros(first).alias("window_start"), overlap.alias("busy_us")
    )


def _window_of(us: Column) -> Column:
    return F.timestamp_micros(F.floor(us / WINDOW_US) * WINDOW_US)


def _sum(rows: DataFrame) -> DataFrame:
    """Sum buckets first, so that each occurs once; times are whole microseconds, whose sums are exact."""
    by_bucket = rows.groupBy("kernel_id", "window_start", "bucket").agg(
        *(F.sum(name).alias(name) for name in ("executions", "failures", "busy_us", "durations"))
    )
    counted = F.struct("bucket", "durations")
    sums = by_bucket.groupBy("kernel_id", "window_start").agg(
        *(F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in ("executions", "failures", "busy_us")),
        F.sort_array(F.collect_list(F.when(F.col("bucket").isNotNull(), counted))).alias("counted"),
    )
    return _rows(sums.withColumn("histogram", F.map_from_entries("counted").cast(histogram.HISTOGRAM)))


def _rows(sums: DataFrame) -> DataFrame:
    busy_ms = F.col("busy_us") / 1000
    return sums.select(
        "kernel_id",
        "window_start",
        "executions",
        "failures",
        F.try_divide("failures", "executions").alias("error_rate"),
        busy_ms.alias("busy_ms"),
        F.least(F.col("busy_us") / WINDOW_US, F.lit(1.0)).alias("busy_share"),
        *(histogram.percentile(F.col("histogram"), share).alias(name) for name, share in PERCENTILES.items()),
        "histogram",
        hour_of(F.col("window_start")).alias("hour"),
    )


TABLE = AggregateTable(KERNEL_HEALTH, ("kernel_id", "window_start"), "executions", new_rows, merge)
