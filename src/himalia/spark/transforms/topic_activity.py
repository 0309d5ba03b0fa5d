"""The table ``topic_activity``: how much was published per topic and minute, and by whom."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from himalia.spark.transforms.aggregate import AggregateTable, hour_of
from himalia.tables.catalog import TOPIC_ACTIVITY


def new_rows(messages: DataFrame) -> DataFrame:
    """Return the rows that a batch of ``messages`` adds."""
    minute = F.date_trunc("minute", "ts")
    sums = messages.groupBy("topic", minute.alias("minute")).agg(
        F.count("*").alias("messages"),
        F.sum("bytes").alias("bytes"),
        F.collect_set("publisher").alias("publisher_names"),
    )
    return _rows(sums)


def merge(existing: DataFrame, added: DataFrame) -> DataFrame:
    """Merge rows of the table with those of a batch."""
    sums = (
        existing.unionByName(added)
        .groupBy("topic", "minute")
        .agg(
            F.sum("messages").alias("messages"),
            F.sum("bytes").alias("bytes"),
            F.flatten(F.collect_list("publisher_names")).alias("publisher_names"),
        )
    )
    return _rows(sums)


def _rows(sums: DataFrame) -> DataFrame:
    names = F.sort_array(F.array_distinct("publisher_names"))
    return sums.select(
        "topic",
        "minute",
        "messages",
        "bytes",
        F.size(names).alias("publishers"),
        names.alias("publisher_names"),
        hour_of(F.col("minute")).alias("hour"),
    )


TABLE = AggregateTable(TOPIC_ACTIVITY, ("topic", "minute"), "messages", new_rows, merge)
