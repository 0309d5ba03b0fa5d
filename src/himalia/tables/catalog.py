"""The schemas of the pipeline's tables, declared once.

Name, type and meaning of a column are given here and nowhere else: the pipeline creates the Delta tables from it,
``GET /tables`` and ``himalia pipeline show`` describe tables with it, and ``python -m tests.docs.table_columns`` writes
the column tables of docs/tables.md from it.

A new table of sums declares its schema together with its transformation, in ``himalia.spark.transforms``, and describes
itself: its description and meanings are in Delta's metadata.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec


class Column(NamedTuple):
    name: str
    type: str
    """As Spark's SQL and Delta name it: ``bigint``, ``array<string>``."""
    meaning: str


class TableSchema(msgspec.Struct, frozen=True):
    """One table: its columns, how its files are partitioned, and how it is presented by default."""

    name: str
    description: str
    """What one row is."""
    columns: tuple[Column, ...]
    partition_by: tuple[str, ...]
    newest_first: str = ""
    """The ``ORDER BY`` that puts the newest row first. Only for tables in the catalog, as is ``shown``."""
    shown: tuple[str, ...] = ()
    """The columns that a terminal shows by default; JSON has all of them."""

    @property
    def ddl(self) -> str:
        """The columns as SQL declares them: ``topic string, offset bigint``."""
        return ", ".join(f"{column.name} {column.type}" for column in self.columns)

    @property
    def commented_ddl(self) -> str:
        """The same, with the meanings as comments, for a table that describes itself."""
        return ", ".join(f"{column.name} {column.type} comment {column.meaning!r}" for column in self.columns)

    @property
    def meanings(self) -> Mapping[str, str]:
        """The meaning of each column, by name."""
        return {column.name: column.meaning for column in self.columns}


_RECORD = (
    Column("topic", "string", "the topic"),
    Column(
        "epoch",
        "string",
        "created with the topic; a topic that was deleted and created again has another one",
    ),
    Column("offset", "bigint", "the position of the record: 0, 1, 2, ... within topic and epoch"),
    Column("ts", "timestamp", "when the log appended it; never decreases within a topic"),
    Column("id", "string", "the id of the message"),
)
_DATE = Column("date", "date", "the day of `ts`, UTC; partitions the table")
_HOUR = Column("hour", "string", 'the hour as text, such as "2026-11-16T02"; partitions the table')

MESSAGES = TableSchema(
    name="messages",
    description="every record of every topic, once",
    columns=(
        *_RECORD,
        Column(
            "publisher",
            "string",
            "who published it, as authenticated by the server; null for records of kernels",
        ),
        Column("headers", "map<string,string>", "all headers"),
        Column("payload", "string", "the payload, JSON as text"),
        Column("bytes", "bigint", "the size of id, headers and payload"),
        _DATE,
    ),
    partition_by=("date",),
    newest_first='"ts" DESC, "topic", "offset" DESC',
    shown=("ts", "topic", "offset", "publisher", "bytes", "payload"),
)

IOPUB = TableSchema(
    name="iopub",
    description="every record of a kernel's topic, decoded",
    columns=(
        *_RECORD,
        Column("kernel_id", "string", "the kernel"),
        Column(
            "channel",
            "string",
            "`status`, `execution`, `stream`, `display`, `comm`: IOPub; `shell`, `stdin`, `control`: requests and "
            "replies; `kernel`: events",
        ),
        Column("msg_type", "string", "the Jupyter message type, or `kernel_event`"),
        Column("parent_id", "string", "the request that caused it; empty if there is none"),
        Column("session", "string", "the session in the header of the message"),
        Column("username", "string", "the user in the header of the message"),
        Column("execution_state", "string", "of a `status`: `busy`, `idle`, `starting`"),
        Column(
            "execution_count",
            "bigint",
            "of input, result, reply and `request_closed`: the number in In[ ] and Out[ ]",
        ),
        Column("stream_name", "string", "of a `stream`: `stdout` or `stderr`"),
        Column("text", "string", "of a `stream`: the output"),
        Column("code", "string", "of `execute_request`, `execute_input` and `request_queued`: the code"),
        Column("ename", "string", "of an error, or an error reply: its name"),
        Column("evalue", "string", "of an error: its message"),
        Column("traceback", "array<string>", "of an error: its lines"),
        Column("mime_types", "array<string>", "of a result or display: its MIME types, sorted"),
        Column("display_id", "string", "of a display that can be updated: its id"),
        Column("comm_id", "string", "of a comm message: the id of the comm"),
        Column("event", "string", "of a `kernel_event`: its type, such as `started` or `request_closed`"),
        Column("status", "string", "of a reply, and of `request_closed`: how it ended"),
        Column("reason", "string", "of a reply or an event: why"),
        Column(
            "malformed",
            "boolean",
            "whether the payload is not a Jupyter message; fields that could not be read are null then",
        ),
        Column("payload_bytes", "bigint", "the size of the payload"),
        _DATE,
        Column("parent_session", "string", "the session of the request that caused it"),
        Column(
            "parent_username", "string", "the user of the request that caused it, as the kernel reports it"
        ),
        Column("header_ts", "timestamp", "the date in the header of the message: the kernel's clock"),
    ),
    partition_by=("date",),
    newest_first='"ts" DESC, "topic", "offset" DESC',
    shown=("ts", "kernel_id", "channel", "msg_type", "parent_id", "text", "event"),
)

EXECUTIONS = TableSchema(
    name="executions",
    description="a request to execute code, and its result",
    columns=(
        Column("kernel_id", "string", "the kernel"),
        Column("topic", "string", "its topic"),
        Column("epoch", "string", "the epoch of the topic"),
        Column("request_id", "string", "the request: its Jupyter `msg_id`"),
        Column("code", "string", "the code"),
        Column(
            "status",
            "string",
            "`ok`, `error`, `aborted`, `died`, `timeout`, `cancelled`, `stale`; `running` until it ends",
        ),
        Column("reason", "string", "why it ended with this status, where that is known"),
        Column("execution_count", "bigint", "the kernel's execution counter, in In[ ]"),
        Column(
            "queued",
            "timestamp",
            "when it was queued or, if it was not, sent; null if another client of the kernel sent it",
        ),
        Column("started", "timestamp", "when the kernel first reported that it is busy with it"),
        Column("finished", "timestamp", "when it ended: the time of the record that closed it"),
        Column("queue_ms", "double", "from queued to started"),
        Column(
            "run_ms",
            "double",
            "how long the kernel was busy with it, by the kernel's own clock; from started to finished where that "
            "clock is not plausible",
        ),
        Column("messages", "bigint", "IOPub messages that it caused, until it ended"),
        Column("status_messages", "bigint", "of these, on the channel `status`"),
        Column("execution_messages", "bigint", "on the channel `execution`"),
        Column("stream_messages", "bigint", "on the channel `stream`"),
        Column("display_messages", "bigint", "on the channel `display`"),
        Column("comm_messages", "bigint", "on the channel `comm`"),
        Column(
            "stdout", "string", "its output: all of it up to 64 KiB, else the beginning, a marker and the end"
        ),
        Column("stderr", "string", "the same for standard error"),
        Column("stdout_bytes", "bigint", "the size of all its output"),
        Column("stderr_bytes", "bigint", "the same for standard error"),
        Column("first_offset", "bigint", "its first record in the topic"),
        Column(
            "last_offset",
            "bigint",
            "its last record before it ended: the records between the two hold everything",
        ),
        Column("result_types", "array<string>", "the MIME types of its results and displays, sorted"),
        Column(
            "ename", "string", "the name of its error: of the last error published, else that of the reply"
        ),
        Column("evalue", "string", "the message of the error"),
        Column(
            "username",
            "string",
            "the caller: its qualified name (key:ann), or foreign: and the name that the kernel reports",
        ),
        Column("session", "string", "the session of the caller"),
        Column("is_foreign", "boolean", "whether a client other than Himalia sent it"),
        Column("is_running", "boolean", "whether it has not ended; partitions the table"),
        Column("date", "date", "the day of its first record, UTC; partitions the table"),
    ),
    partition_by=("is_running", "date"),
    newest_first='coalesce("queued", "started", "finished") DESC NULLS LAST, "topic", "first_offset" DESC',
    shown=("started", "kernel_id", "status", "run_ms", "code", "stdout", "ename"),
)

ORPHANS = TableSchema(
    name="orphans",
    description="an IOPub message whose request did not appear within 60 s",
    columns=(
        *_RECORD,
        Column("kernel_id", "string", "the kernel"),
        Column("channel", "string", "the IOPub channel of the message"),
        Column("msg_type", "string", "the Jupyter message type"),
        Column("parent_id", "string", "the missing request"),
        _DATE,
    ),
    partition_by=("date",),
    newest_first='"ts" DESC, "topic", "offset" DESC',
    shown=("ts", "kernel_id", "channel", "msg_type", "parent_id", "offset"),
)

TOPIC_ACTIVITY = TableSchema(
    name="topic_activity",
    description="how much was published to a topic in one minute, and by whom",
    columns=(
        Column("topic", "string", "the topic"),
        Column("minute", "timestamp", "the beginning of the minute"),
        Column("messages", "bigint", "records appended in it"),
        Column("bytes", "bigint", "their size"),
        Column("publishers", "int", "the number of publishers"),
        Column(
            "publisher_names", "array<string>", "their names, sorted; records of kernels have no publisher"
        ),
        _HOUR,
    ),
    partition_by=("hour",),
    newest_first='"minute" DESC, "topic"',
    shown=("minute", "topic", "messages", "bytes", "publishers", "publisher_names"),
)

KERNEL_HEALTH = TableSchema(
    name="kernel_health",
    description="how much a kernel ran in five minutes, how often it failed, how long it took",
    columns=(
        Column("kernel_id", "string", "the kernel"),
        Column("window_start", "timestamp", "the beginning of the five minutes"),
        Column("executions", "bigint", "executions that ended in them"),
        Column("failures", "bigint", "of these, those that ended with `error`, `died`, `timeout` or `stale`"),
        Column("error_rate", "double", "failures divided by executions, 0 to 1; null if there were none"),
        Column(
            "busy_ms", "double", "how long it executed code; a long execution counts in each window it covers"
        ),
        Column("busy_share", "double", "busy_ms divided by five minutes, 1 at most"),
        Column("run_ms_p50", "double", "the median of `run_ms`, within 4.5%; null if none ran"),
        Column("run_ms_p95", "double", "the 95th percentile"),
        Column("run_ms_p99", "double", "the 99th percentile"),
        Column(
            "histogram",
            "map<int,bigint>",
            "executions by duration: bucket i is above 2^((i-1)/8) ms and up to 2^(i/8) ms",
        ),
        _HOUR,
    ),
    partition_by=("hour",),
    newest_first='"window_start" DESC, "kernel_id"',
    shown=(
        "window_start",
        "kernel_id",
        "executions",
        "error_rate",
        "busy_share",
        "run_ms_p50",
        "run_ms_p95",
        "run_ms_p99",
    ),
)

ERRORS = TableSchema(
    name="errors",
    description="how often an error ended an execution in one hour, and the last example",
    columns=(
        Column("ename", "string", "the name of the error; `unknown` where the kernel gave none"),
        Column("hour_start", "timestamp", "the beginning of the hour"),
        Column("count", "bigint", "executions that ended with it"),
        Column("last_evalue", "string", "the message of the latest"),
        Column("last_kernel_id", "string", "the kernel of the latest"),
        Column("last_request_id", "string", "the request of the latest"),
        Column("last_ts", "timestamp", "when the latest ended"),
        Column("kernels", "array<string>", "the kernels, sorted"),
        _HOUR,
    ),
    partition_by=("hour",),
    newest_first='"hour_start" DESC, "count" DESC, "ename"',
    shown=("hour_start", "ename", "count", "last_evalue", "last_kernel_id", "last_ts"),
)

CATALOG = {
    schema.name: schema
    for schema in (MESSAGES, IOPUB, EXECUTIONS, ORPHANS, TOPIC_ACTIVITY, KERNEL_HEALTH, ERRORS)
}
"""By name, in the order in which tables are listed."""

REQUESTS = "state/requests"
POSITIONS = "state/positions"
"""The pipeline's own state, from which its next batch continues: in directories of the warehouse next to the tables."""
