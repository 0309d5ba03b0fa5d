"""A toy table: records per topic and hour. It becomes ``himalia/spark/transforms/toy.py`` in a copy of the package."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from himalia.spark.transforms.aggregate import AggregateTable, hour_of
from himalia.tables.catalog import Column, TableSchema

SCHEMA = TableSchema(
    name="toy",
    description="how many records a topic got in an hour",
    columns=(
        Column("topic", "string", "the topic"),
        Column("records", "bigint", "the number of its records"),
        Column("hour", "string", "the hour as text"),
    ),
    partition_by=("hour",),
)


def new_rows(messages: DataFrame) -> DataFrame:
    return messages.groupBy("topic", hour_of(F.col("ts")).alias("hour")).agg(F.count("*").alias("records"))


def merge(existing: DataFrame, added: DataFrame) -> DataFrame:
    return existing.unionByName(added).groupBy("topic", "hour").agg(F.sum("records").alias("records"))


TABLE = AggregateTable(SCHEMA, ("topic", "hour"), "messages", new_rows, merge)
