"""A small warehouse with every table, written without Spark: the shapes are the pipeline's, the rows are made up."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import write_deltalake

from himalia.spark.pipeline.warehouse import TABLES

START = datetime(2026, 11, 16, 2, 3, 4, 123456, tzinfo=UTC)
KERNEL = "2f1c9a07-5a56-4c0c-8f5a-0d9c1f6f7b11"

_TYPES: dict[str, pa.DataType] = {
    "string": pa.string(),
    "bigint": pa.int64(),
    "int": pa.int32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "date": pa.date32(),
    "array<string>": pa.list_(pa.string()),
    "map<string,string>": pa.map_(pa.string(), pa.string()),
    "map<int,bigint>": pa.map_(pa.int32(), pa.int64()),
}


def columns_of(name: str) -> dict[str, str]:
    """The columns of a table and their types, as the pipeline declares them."""
    return {column.name: column.type for column in TABLES[name].columns}


def schema_of(name: str) -> pa.Schema:
    return pa.schema([(column, _TYPES[kind]) for column, kind in columns_of(name).items()])


def write_table(warehouse: Path, name: str, rows: list[dict[str, Any]], *, mode: str = "append") -> None:
    """Write rows of one of the pipeline's tables; what a row leaves out is null."""
    table = pa.Table.from_pylist(rows, schema=schema_of(name))
    write_deltalake(warehouse / name, table, mode=mode, partition_by=list(TABLES[name].partition_by))


def message(number: int, **fields: Any) -> dict[str, Any]:
    ts = START + timedelta(seconds=number)
    return {
        "topic": "orders",
        "epoch": "0123456789abcdef",
        "offset": number,
        "ts": ts,
        "id": f"00000000-0000-4000-8000-{number:012x}",
        "publisher": "shop",
        "headers": [("publisher", "shop"), ("n", str(number))],
        "payload": f'{{"n": {number}}}',
        "bytes": 64,
        "date": ts.date(),
        **fields,
    }


def execution(number: int, **fields: Any) -> dict[str, Any]:
    started = START + timedelta(seconds=10 * number)
    return {
        "kernel_id": KERNEL,
        "topic": f"kernels.{KERNEL}",
        "epoch": "0123456789abcdef",
        "request_id": f"request-{number}",
        "code": f"print({number})",
        "status": "ok",
        "reason": "",
        "execution_count": number,
        "queued": started - timedelta(milliseconds=2),
        "started": started,
        "finished": started + timedelta(milliseconds=12.5 * number),
        "queue_ms": 2.0,
        "run_ms": 12.5 * number,
        "messages": 4,
        "status_messages": 2,
        "execution_messages": 1,
        "stream_messages": 1,
        "display_messages": 0,
        "comm_messages": 0,
        "stdout": f"{number}\n",
        "stderr": "",
        "stdout_bytes": 2,
        "stderr_bytes": 0,
        "first_offset": 10 * number,
        "last_offset": 10 * number + 7,
        "result_types": [],
        "username": "ada",
        "session": "s",
        "is_foreign": False,
        "is_running": False,
        "date": started.date(),
        **fields,
    }


def write_sample(warehouse: Path) -> None:
    """Every table of the pipeline, with a few rows."""
    hour = START.replace(minute=0, second=0, microsecond=0)
    name_of_hour = f"{hour:%Y-%m-%dT%H}"
    record = {"topic": f"kernels.{KERNEL}", "epoch": "0123456789abcdef", "offset": 5, "ts": START, "id": "m5"}
    write_table(warehouse, "messages", [message(number) for number in range(30)])
    iopub = {"channel": "stream", "msg_type": "stream", "parent_id": "request-1", "text": "1\n"}
    write_table(
        warehouse,
        "iopub",
        [{**record, **iopub, "kernel_id": KERNEL, "malformed": False, "date": date(2026, 11, 16)}],
    )
    failed = {"status": "error", "ename": "ValueError", "evalue": "no\nsuch thing", "stdout": ""}
    running = {"status": "running", "finished": None, "run_ms": None, "is_running": True}
    write_table(
        warehouse,
        "executions",
        [*(execution(number) for number in range(1, 6)), execution(6, **failed), execution(7, **running)],
    )
    orphan = {"channel": "status", "msg_type": "status", "parent_id": "nobody", "kernel_id": KERNEL}
    write_table(warehouse, "orphans", [{**record, **orphan, "date": date(2026, 11, 16)}])
    minute = START.replace(second=0, microsecond=0)
    activity = {"minute": minute, "messages": 30, "bytes": 1920, "publishers": 1, "publisher_names": ["shop"]}
    write_table(warehouse, "topic_activity", [{"topic": "orders", **activity, "hour": name_of_hour}])
    health = {
        "executions": 6,
        "failures": 1,
        "error_rate": 1 / 6,
        "busy_ms": 262.5,
        "busy_share": 0.000875,
        "run_ms_p50": 37.5,
        "run_ms_p95": 75.0,
        "run_ms_p99": 75.0,
        "histogram": [(29, 1), (37, 5)],
    }
    write_table(
        warehouse,
        "kernel_health",
        [{"kernel_id": KERNEL, "window_start": hour, **health, "hour": name_of_hour}],
    )
    error = {
        "last_evalue": "no such thing",
        "last_kernel_id": KERNEL,
        "last_request_id": "request-6",
        "last_ts": START,
    }
    write_table(
        warehouse,
        "errors",
        [
            {
                "ename": "ValueError",
                "hour_start": hour,
                "count": 1,
                **error,
                "kernels": [KERNEL],
                "hour": name_of_hour,
            }
        ],
    )
