"""The table ``kernel_health``: per kernel and five minutes, how much it ran, how often it failed, how long it took.

==================== =================================================================================
column
==================== =================================================================================
kernel_id            the kernel
window_start         the beginning of the five minutes
executions           closed executions that finished in them
failures             those of them that ended as error, died, timeout or stale
error_rate           failures by executions, 0 to 1; null if there were none
busy_ms              how much of the window the kernel ran code; an execution's time is shared out to the
                     windows it covers
busy_share           busy_ms by the window's length, 1 at most
run_ms_p50, run_ms_p95, run_ms_p99    percentiles of ``run_ms``, within 4.5%; null if none ran
histogram            the durations they come from: how many per bucket, see ``histogram``
hour                 ``2026-11-16T02`` of ``window_start``; the table is partitioned by it
==================== =================================================================================

From closed executions only: a long one shows, in all windows it covers, when it ends.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from himalia.spark.transforms import histogram
from himalia.spark.transforms.topic_activity import hour_of

WINDOW_US = 300_000_000
FAILURES = ("error", "died", "timeout", "stale")
PERCENTILES = {"run_ms_p50": 0.50, "run_ms_p95": 0.95, "run_ms_p99": 0.99}


def partial(executions: DataFrame) -> DataFrame:
    """What a batch of closed ``executions`` adds to the table; long ones add to hours long past."""
    return _summed(_finished(executions).unionByName(_busy(executions), allowMissingColumns=True))


def merged(existing: DataFrame, partial: DataFrame) -> DataFrame:
    """Rows of the table and of a batch, together."""
    rows = existing.unionByName(partial)
    counts = rows.select(
        "kernel_id",
        "window_start",
        "executions",
        "failures",
        F.round(F.col("busy_ms") * 1000).cast("bigint").alias("busy_us"),
    )
    buckets = rows.select("kernel_id", "window_start", F.explode("histogram").alias("bucket", "durations"))
    return _summed(counts.unionByName(buckets, allowMissingColumns=True))


def _finished(executions: DataFrame) -> DataFrame:
    bucket = histogram.bucket_of(F.col("run_ms"))
    return executions.select(
        "kernel_id",
        _window_of(F.unix_micros("finished")).alias("window_start"),
        F.lit(1).cast("bigint").alias("executions"),
        F.col("status").isin(*FAILURES).cast("bigint").alias("failures"),
        bucket.alias("bucket"),
        F.when(bucket.isNotNull(), 1).cast("bigint").alias("durations"),
    )


def _busy(executions: DataFrame) -> DataFrame:
    """The time of each execution, shared out to windows."""
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


def _summed(rows: DataFrame) -> DataFrame:
    """Buckets first, so that each comes once; times as whole microseconds, whose sums are exact."""
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
