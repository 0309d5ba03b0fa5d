"""The table ``orphans``: IOPub messages whose request did not appear within 60 s of their topic's time.

Requests that Himalia itself sends to a kernel (``kernel_info_request``) are not in the topic, so their busy and idle
are orphans. A message without a parent is addressed to every client, and no orphan.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from himalia.spark.transforms import requests
from himalia.spark.transforms.iopub import kernel_of


def orphans(folded: DataFrame) -> DataFrame:
    """Return the messages that became orphans in this batch, from the rows of ``fold_requests``."""
    ts = F.timestamp_micros("message.us")
    return folded.where(F.col("outcome") == requests.ORPHAN).select(
        "topic",
        "epoch",
        "message.offset",
        ts.alias("ts"),
        "message.id",
        F.expr(kernel_of("topic")).alias("kernel_id"),
        "message.channel",
        "message.msg_type",
        F.col("request_id").alias("parent_id"),
        F.to_date(ts).alias("date"),
    )
