"""The table ``iopub``: every record of a kernel's topic, decoded.

Besides IOPub messages these are the requests and replies that passed through Himalia, and its own events, because they
mark where a request begins and ends; the column ``channel`` distinguishes them.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from himalia.topics import KERNEL_TOPIC_PREFIX

IOPUB_CHANNELS = ("status", "execution", "stream", "display", "comm")

CHANNELS = {
    "status": ("status",),
    "stream": ("stream",),
    "display": ("display_data", "update_display_data", "clear_output"),
    "comm": ("comm_open", "comm_msg", "comm_close"),
    "shell": ("execute_request", "execute_reply"),
    "kernel": ("kernel_event",),
}
"""The channel of each message type; any other type is on the execution channel."""

_PAYLOAD = """
    header struct<msg_type: string, session: string, username: string, date: string>,
    parent_header struct<msg_id: string, session: string, username: string>,
    content struct<
        execution_state: string, execution_count: bigint, name: string, text: string, code: string,
        ename: string, evalue: string, traceback: array<string>, data: map<string, string>,
        transient: struct<display_id: string>, comm_id: string, event: string, status: string, reason: string
    >,
    malformed string
"""
_PARSING = {"columnNameOfCorruptRecord": "malformed", "maxStringLen": str(2**31 - 1)}
_WITH_DATA = ("execute_result", "display_data", "update_display_data")


def iopub(messages: DataFrame) -> DataFrame:
    """Return rows of ``iopub`` from rows of ``messages``; rows of other topics are ignored."""
    parsed = messages.where(F.col("topic").startswith(KERNEL_TOPIC_PREFIX)).withColumn(
        "message", F.from_json("payload", _PAYLOAD, _PARSING)
    )
    content = F.col("message.content")
    msg_type = F.coalesce(_header("msg_type"), F.col("message.header.msg_type"))
    return parsed.select(
        "topic",
        "epoch",
        "offset",
        "ts",
        "id",
        F.expr(kernel_of("topic")).alias("kernel_id"),
        F.coalesce(_header("channel"), channel_of(msg_type)).alias("channel"),
        msg_type.alias("msg_type"),
        F.coalesce(F.col("headers")["parent_id"], F.col("message.parent_header.msg_id"), F.lit("")).alias(
            "parent_id"
        ),
        F.coalesce(_header("session"), F.col("message.header.session")).alias("session"),
        F.coalesce(_header("username"), F.col("message.header.username")).alias("username"),
        content["execution_state"].alias("execution_state"),
        content["execution_count"].alias("execution_count"),
        F.when(msg_type == "stream", content["name"]).alias("stream_name"),
        F.when(msg_type == "stream", content["text"]).alias("text"),
        content["code"].alias("code"),
        content["ename"].alias("ename"),
        content["evalue"].alias("evalue"),
        content["traceback"].alias("traceback"),
        F.when(msg_type.isin(*_WITH_DATA), F.sort_array(F.map_keys(content["data"]))).alias("mime_types"),
        content["transient"]["display_id"].alias("display_id"),
        content["comm_id"].alias("comm_id"),
        F.when(msg_type == "kernel_event", content["event"]).alias("event"),
        content["status"].alias("status"),
        content["reason"].alias("reason"),
        (content.isNull() | F.col("message.malformed").isNotNull()).alias("malformed"),
        F.octet_length("payload").cast("bigint").alias("payload_bytes"),
        "date",
        F.col("message.parent_header.session").alias("parent_session"),
        F.col("message.parent_header.username").alias("parent_username"),
        F.expr("try_cast(message.header.date as timestamp)").alias("header_ts"),
    )


def kernel_of(topic: str) -> str:
    """Return an SQL expression for the id of the kernel that a topic belongs to."""
    return f"substring({topic}, {len(KERNEL_TOPIC_PREFIX) + 1})"


def channel_of(msg_type: Column) -> Column:
    """Return the channel that follows from the type alone, for a record without the header."""
    channel_name = F.when(F.lit(False), "")
    for channel, types in CHANNELS.items():
        channel_name = channel_name.when(msg_type.isin(*types), channel)
    return channel_name.otherwise("execution")


def _header(name: str) -> Column:
    """Return a header of the record; null if it is missing or empty."""
    return F.nullif(F.col("headers")[name], F.lit(""))
