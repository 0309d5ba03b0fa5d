"""The table ``errors``: how often each error ended an execution, per hour, and the last example."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from himalia.spark.transforms.aggregate import AggregateTable, hour_of
from himalia.tables.catalog import ERRORS


def new_rows(executions: DataFrame) -> DataFrame:
    """Return the rows that a batch of closed ``executions`` adds."""
    return _sum(
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


def merge(existing: DataFrame, added: DataFrame) -> DataFrame:
    """Merge rows of the table with those of a batch."""
    return _sum(existing.unionByName(added).drop("hour"))


def _sum(rows: DataFrame) -> DataFrame:
    # The maximum is the last error; the further fields break ties the same way in every batch.
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


TABLE = AggregateTable(ERRORS, ("ename", "hour_start"), "executions", new_rows, merge)
