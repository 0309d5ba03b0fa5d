"""What is where in a warehouse. Each name is a directory with one Delta table in it."""

from __future__ import annotations

import msgspec


class Layout(msgspec.Struct, frozen=True):
    """A table's columns, as SQL declares them, and those by which it is partitioned."""

    columns: str
    partition_by: tuple[str, ...] = ()


KERNEL_TOPICS = "kernels."
"""How the name of a kernel's topic begins; the rest is the kernel's id."""

TABLES = {
    "messages": Layout(
        """
        topic string, epoch string, offset bigint, ts timestamp, id string, publisher string,
        headers map<string,string>, payload string, bytes bigint, date date
        """,
        ("date",),
    ),
    "iopub": Layout(
        """
        topic string, epoch string, offset bigint, ts timestamp, id string, kernel_id string, channel string,
        msg_type string, parent_id string, session string, username string, execution_state string,
        execution_count bigint, stream_name string, text string, code string, ename string, evalue string,
        traceback array<string>, mime_types array<string>, display_id string, comm_id string, event string,
        status string, reason string, malformed boolean, payload_bytes bigint, date date,
        parent_session string, parent_username string, header_ts timestamp
        """,
        ("date",),
    ),
    "executions": Layout(
        """
        kernel_id string, topic string, epoch string, request_id string, code string, status string,
        reason string, execution_count bigint, queued timestamp, started timestamp, finished timestamp,
        queue_ms double, run_ms double, messages bigint, status_messages bigint, execution_messages bigint,
        stream_messages bigint, display_messages bigint, comm_messages bigint, stdout string, stderr string,
        stdout_bytes bigint, stderr_bytes bigint, first_offset bigint, last_offset bigint,
        result_types array<string>, ename string, evalue string, username string, session string,
        is_foreign boolean, is_running boolean, date date
        """,
        ("is_running", "date"),
    ),
    "orphans": Layout(
        """
        topic string, epoch string, offset bigint, ts timestamp, id string, kernel_id string, channel string,
        msg_type string, parent_id string, date date
        """,
        ("date",),
    ),
    "topic_activity": Layout(
        """
        topic string, minute timestamp, messages bigint, bytes bigint, publishers int,
        publisher_names array<string>, hour string
        """,
        ("hour",),
    ),
    "kernel_health": Layout(
        """
        kernel_id string, window_start timestamp, executions bigint, failures bigint, error_rate double,
        busy_ms double, busy_share double, run_ms_p50 double, run_ms_p95 double, run_ms_p99 double,
        histogram map<int,bigint>, hour string
        """,
        ("hour",),
    ),
    "errors": Layout(
        """
        ename string, hour_start timestamp, count bigint, last_evalue string, last_kernel_id string,
        last_request_id string, last_ts timestamp, kernels array<string>, hour string
        """,
        ("hour",),
    ),
}
"""The tables that people read."""

REQUESTS = "state/requests"
POSITIONS = "state/positions"
"""What the pipeline itself goes on from."""
