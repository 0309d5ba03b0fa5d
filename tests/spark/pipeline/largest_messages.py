"""A toy table in one file, as ``himalia.spark.transforms`` has them: the largest message of each topic, per hour."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from himalia.spark.transforms.aggregate import AggregateTable, hour_of
from himalia.tables.catalog import Column, TableSchema

SCHEMA = TableSchema(
    name="largest_messages",
    description="the size of the largest message of a topic in one hour",
    columns=(
        Column("topic", "string", "the topic"),
        Column("hour_start", "timestamp", "the beginning of the hour"),
        Column("bytes", "bigint", "the size of its largest message"),
        Column("hour", "string", "the hour as text; partitions the table"),
    ),
    partition_by=("hour",),
)


def new_rows(messages: DataFrame) -> DataFrame:
    """Return the rows that a batch of ``messages`` adds."""
    return _largest(messages.select("topic", F.date_trunc("hour", "ts").alias("hour_start"), "bytes"))


def merge(existing: DataFrame, added: DataFrame) -> DataFrame:
    """Merge rows of the table with those of a batch."""
    return _largest(existing.unionByName(added))


def _largest(rows: DataFrame) -> DataFrame:
    largest = rows.groupBy("topic", "hour_start").agg(F.max("bytes").alias("bytes"))
    return largest.withColumn("hour", hour_of(F.col("hour_start")))


TABLE = AggregateTable(SCHEMA, ("topic", "hour_start"), "messages", new_rows, merge)
