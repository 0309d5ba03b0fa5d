"""The table ``messages``: every record of every topic, exactly once.

=========== =========================================================================================
column
=========== =========================================================================================
topic       the topic
epoch       made when the topic was created; a topic that was deleted and created again has another
offset      0, 1, 2, ... within topic and epoch
ts          when the log took the record; never decreases within a topic
id          the record's id: the publisher's, or one that the server made
publisher   who published it, as the server stamped it; null for kernels' records
headers     all headers
payload     the payload, as JSON text
bytes       what the record counts for in limits and statistics: id, headers and payload
date        the day of ``ts``, UTC; the table is partitioned by it
=========== =========================================================================================
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F


def messages(records: DataFrame) -> DataFrame:
    """Rows of ``messages``, of records as the connector gives them, with the column ``epoch`` beside."""
    return records.select(
        "topic",
        "epoch",
        "offset",
        F.col("timestamp").alias("ts"),
        "id",
        F.col("headers")["publisher"].alias("publisher"),
        "headers",
        F.col("value").alias("payload"),
        _size_bytes().alias("bytes"),
        F.to_date("timestamp").alias("date"),
    )


def _size_bytes() -> Column:
    """As ``himalia.record.size_bytes`` counts; the headers as they are when written without spaces."""
    headers = F.octet_length(F.to_json("headers"))
    return (F.char_length("id") + headers + F.octet_length("value")).cast("bigint")
