"""The table ``topic_activity``: per topic and minute, how much was published and by whom.

==================== =================================================================================
column
==================== =================================================================================
topic                the topic
minute               the beginning of the minute
messages, bytes      records, and their size as ``messages`` has it
publishers           how many published
publisher_names      who, sorted; records without a publisher (kernels') have none
hour                 ``2026-11-16T02``; the table is partitioned by it
==================== =================================================================================
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

HOUR = "yyyy-MM-dd'T'HH"


def partial(messages: DataFrame) -> DataFrame:
    """What a batch of ``messages`` adds to the table."""
    minute = F.date_trunc("minute", "ts")
    sums = messages.groupBy("topic", minute.alias("minute")).agg(
        F.count("*").alias("messages"),
        F.sum("bytes").alias("bytes"),
        F.collect_set("publisher").alias("publisher_names"),
    )
    return _rows(sums)


def merged(existing: DataFrame, partial: DataFrame) -> DataFrame:
    """Rows of the table and of a batch, together."""
    sums = (
        existing.unionByName(partial)
        .groupBy("topic", "minute")
        .agg(
            F.sum("messages").alias("messages"),
            F.sum("bytes").alias("bytes"),
            F.flatten(F.collect_list("publisher_names")).alias("publisher_names"),
        )
    )
    return _rows(sums)


def hour_of(ts: Column) -> Column:
    """The hour of a time, as tables are partitioned by it."""
    return F.date_format(ts, HOUR)


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
