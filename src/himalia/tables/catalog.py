"""The pipeline's tables: what a row is, what each column means, and what people look at first."""

from __future__ import annotations

import msgspec


class TableSpec(msgspec.Struct, frozen=True):
    name: str
    description: str
    """What a row is."""
    newest_first: str
    """The ORDER BY that puts the newest row at the top."""
    shown: tuple[str, ...]
    """The columns that a person is shown, where a program gets all."""
    columns: dict[str, str]
    """What each column means, in the table's order."""


_RECORD = {
    "topic": "the topic",
    "epoch": "made when the topic was created; one that was deleted and created again has another",
    "offset": "the record's place: 0, 1, 2, ... within topic and epoch",
    "ts": "when the log stored it; never decreases within a topic",
    "id": "the message's id",
}
_DATE = {"date": "the day of `ts`, UTC; the table is partitioned by it"}
_HOUR = {"hour": 'the hour as text, such as "2026-11-16T02"; the table is partitioned by it'}

MESSAGES = TableSpec(
    "messages",
    "every record of every topic, once",
    '"ts" DESC, "topic", "offset" DESC',
    ("ts", "topic", "offset", "publisher", "bytes", "payload"),
    {
        **_RECORD,
        "publisher": "who published it, as the server says; null for kernels' records",
        "headers": "all headers",
        "payload": "the payload, JSON as text",
        "bytes": "the size of id, headers and payload",
        **_DATE,
    },
)

IOPUB = TableSpec(
    "iopub",
    "every record of a kernel's topic, decoded",
    '"ts" DESC, "topic", "offset" DESC',
    ("ts", "kernel_id", "channel", "msg_type", "parent_id", "text", "event"),
    {
        **_RECORD,
        "kernel_id": "the kernel",
        "channel": "`status`, `execution`, `stream`, `display`, `comm`: IOPub; `shell`, `stdin`, `control`: requests "
        "and replies; `kernel`: events",
        "msg_type": "the Jupyter message type, or `kernel_event`",
        "parent_id": "the request that caused it; empty if none did",
        "session": "the session of the message's own header",
        "username": "the user of the message's own header",
        "execution_state": "of a `status`: `busy`, `idle`, `starting`",
        "execution_count": "of input, result, reply and `request_closed`: the number in In[ ] and Out[ ]",
        "stream_name": "of a `stream`: `stdout` or `stderr`",
        "text": "of a `stream`: what was printed",
        "code": "of `execute_request`, `execute_input` and `request_queued`: the code",
        "ename": "of an error, or a reply that is one: its name",
        "evalue": "of an error: its message",
        "traceback": "of an error: its lines",
        "mime_types": "of a result or display: the MIME types it is offered in, sorted",
        "display_id": "of a display that can be updated: by what",
        "comm_id": "of a comm message: which comm",
        "event": "of a `kernel_event`: what happened, such as `started` or `request_closed`",
        "status": "of a reply, and of `request_closed`: how it ended",
        "reason": "of a reply or an event: why",
        "malformed": "whether the payload is not a Jupyter message; what could not be read is null then",
        "payload_bytes": "the size of the payload",
        **_DATE,
        "parent_session": "the session of the request that caused it",
        "parent_username": "the user of the request that caused it, as the kernel says",
        "header_ts": "the date in the message's own header: the kernel's clock",
    },
)

EXECUTIONS = TableSpec(
    "executions",
    "a request to run code, and what came of it",
    'coalesce("queued", "started", "finished") DESC NULLS LAST, "topic", "first_offset" DESC',
    ("started", "kernel_id", "status", "run_ms", "code", "stdout", "ename"),
    {
        "kernel_id": "the kernel",
        "topic": "its topic",
        "epoch": "which life of the topic",
        "request_id": "the request: its Jupyter `msg_id`",
        "code": "the code",
        "status": "`ok`, `error`, `aborted`, `died`, `timeout`, `cancelled`, `stale`; `running` until it ends",
        "reason": "why it ended so, where there is more to say",
        "execution_count": "the kernel's own number of it, in In[ ]",
        "queued": "when it was queued or, if it was not, sent; null if another client of the kernel made it",
        "started": "when the kernel first said that it is busy with it",
        "finished": "when it ended: the time of the record that closed it",
        "queue_ms": "from queued to started",
        "run_ms": "while the kernel was busy with it, by the kernel's own clock; "
        "from started to finished where that clock is not plausible",
        "messages": "messages of IOPub that it caused, until it ended",
        "status_messages": "of these, on the channel `status`",
        "execution_messages": "on the channel `execution`",
        "stream_messages": "on the channel `stream`",
        "display_messages": "on the channel `display`",
        "comm_messages": "on the channel `comm`",
        "stdout": "what it printed: all up to 64 KiB, else the beginning, a marker and the end",
        "stderr": "the same of standard error",
        "stdout_bytes": "how much it printed in all",
        "stderr_bytes": "the same of standard error",
        "first_offset": "its first record in the topic",
        "last_offset": "its last record before it ended: between the two, the topic has the whole",
        "result_types": "the MIME types of its results and displays, sorted",
        "ename": "the name of its error: the last it published, else the one it replied with",
        "evalue": "the error's message",
        "username": "who asked: the caller's qualified name (key:ann), or foreign: and the name that the kernel says",
        "session": "from which session",
        "is_foreign": "whether another client than Himalia made it",
        "is_running": "whether it has not ended; the table is partitioned by it",
        "date": "the day of its first record, UTC; the table is partitioned by it",
    },
)

ORPHANS = TableSpec(
    "orphans",
    "a message of IOPub whose request did not appear within 60 s",
    '"ts" DESC, "topic", "offset" DESC',
    ("ts", "kernel_id", "channel", "msg_type", "parent_id", "offset"),
    {
        **_RECORD,
        "kernel_id": "the kernel",
        "channel": "the IOPub channel it belongs to",
        "msg_type": "the Jupyter message type",
        "parent_id": "the request that is not there",
        **_DATE,
    },
)

TOPIC_ACTIVITY = TableSpec(
    "topic_activity",
    "how much was published to a topic in one minute, and by whom",
    '"minute" DESC, "topic"',
    ("minute", "topic", "messages", "bytes", "publishers", "publisher_names"),
    {
        "topic": "the topic",
        "minute": "when the minute begins",
        "messages": "records stored in it",
        "bytes": "their size",
        "publishers": "how many published",
        "publisher_names": "who, sorted; kernels' records have no publisher",
        **_HOUR,
    },
)

KERNEL_HEALTH = TableSpec(
    "kernel_health",
    "how much a kernel ran in five minutes, how often it failed, how long it took",
    '"window_start" DESC, "kernel_id"',
    (
        "window_start",
        "kernel_id",
        "executions",
        "error_rate",
        "busy_share",
        "run_ms_p50",
        "run_ms_p95",
        "run_ms_p99",
    ),
    {
        "kernel_id": "the kernel",
        "window_start": "when the five minutes begin",
        "executions": "executions that ended in them",
        "failures": "of these, those that ended as `error`, `died`, `timeout` or `stale`",
        "error_rate": "failures divided by executions, 0 to 1; null if there were none",
        "busy_ms": "how much of the time it ran code; a long execution counts in each window it covers",
        "busy_share": "busy_ms divided by five minutes, 1 at most",
        "run_ms_p50": "half of the executions took no longer, within 4.5%; null if none ran",
        "run_ms_p95": "95% took no longer",
        "run_ms_p99": "99% took no longer",
        "histogram": "how many took how long: bucket i is above 2^((i-1)/8) ms and up to 2^(i/8) ms",
        **_HOUR,
    },
)

ERRORS = TableSpec(
    "errors",
    "how often an error ended an execution in one hour, and the last example",
    '"hour_start" DESC, "count" DESC, "ename"',
    ("hour_start", "ename", "count", "last_evalue", "last_kernel_id", "last_ts"),
    {
        "ename": "the error's name; `unknown` where the kernel told none",
        "hour_start": "when the hour begins",
        "count": "executions that ended with it",
        "last_evalue": "the message of the latest",
        "last_kernel_id": "the kernel of the latest",
        "last_request_id": "the request of the latest",
        "last_ts": "when the latest ended",
        "kernels": "the kernels, sorted",
        **_HOUR,
    },
)

CATALOG = {
    spec.name: spec for spec in (MESSAGES, IOPUB, EXECUTIONS, ORPHANS, TOPIC_ACTIVITY, KERNEL_HEALTH, ERRORS)
}
"""By name, in the order in which they are listed."""
