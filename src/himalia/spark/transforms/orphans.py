"""The table ``orphans``: messages of IOPub whose request did not appear within 60 s of their topic's time.

============================ =========================================================================
column
============================ =========================================================================
topic, epoch, offset, ts, id    the message's record
kernel_id, channel, msg_type    as in ``iopub``
parent_id                    the request that is not there
date                         the day of ``ts``, UTC; the table is partitioned by it
============================ =========================================================================

What Himalia itself asks a kernel (``kernel_info_request``) has no request in the topic either, so that its busy and
idle are here. A message without a parent is for everybody and no orphan.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from himalia.spark.transforms import requests
from himalia.spark.transforms.iopub import kernel_of


def orphans(merged: DataFrame) -> DataFrame:
    """The rows of the messages that became orphans in this batch."""
    ts = F.timestamp_micros("message.us")
    return merged.where(F.col("verdict") == requests.ORPHAN).select(
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
