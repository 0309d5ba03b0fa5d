"""The table ``errors``: per error name and hour, how often it ended an execution, and the last example.

==================== =================================================================================
column
==================== =================================================================================
ename                the error's name; ``unknown`` where the kernel told none
hour_start           the beginning of the hour in which the executions finished
count                executions that ended with it
last_evalue, last_kernel_id, last_request_id, last_ts    the last of them
kernels              the kernels, sorted
hour                 ``2026-11-16T02``; the table is partitioned by it
==================== =================================================================================
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from himalia.spark.transforms.topic_activity import hour_of


def partial(executions: DataFrame) -> DataFrame:
    """What a batch of closed ``executions`` adds to the table."""
    return _summed(
        executions.where(F.col("status") == "error").select(
            F.coalesce("ename", F.lit("unknown")).alias("ename"),
            F.date_trunc("hour", "finished").alias("hour_start"),
            F.lit(1).cast("bigint").alias("count"),
            F.col("evalue").alias("last_evalue"),
            F.col("kernel_id").alias("last_kernel_id"),
            F.col("request_id").alias("last_request_id"),
            F.col("finished").alias("last_ts"),
            F.array("kernel_id").alias("kernels"),
        )
    )


def merged(existing: DataFrame, partial: DataFrame) -> DataFrame:
    """Rows of the table and of a batch, together."""
    return _summed(existing.unionByName(partial).drop("hour"))


def _summed(rows: DataFrame) -> DataFrame:
    # The greatest of these is the last; of two at one time it is always the same one.
    last = F.struct("last_ts", "last_kernel_id", "last_request_id", "last_evalue")
    return (
        rows.groupBy("ename", "hour_start")
        .agg(
            F.sum("count").alias("count"),
            F.max(last).alias("last"),
            F.sort_array(F.array_distinct(F.flatten(F.collect_list("kernels")))).alias("kernels"),
        )
        .select(
            "ename",
            "hour_start",
            "count",
            "last.last_evalue",
            "last.last_kernel_id",
            "last.last_request_id",
            "last.last_ts",
            "kernels",
            hour_of(F.col("hour_start")).alias("hour"),
        )
    )
