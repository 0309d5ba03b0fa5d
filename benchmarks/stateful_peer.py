"""The correlation of the pipeline, written with Spark's ``transformWithStateInPandas``.

One state per request, with the sums of its row, and the row when it closes: the columns of ``executions``, of the same
decoded messages. It implements the rules that ordinary traffic needs, but not late messages,
orphans, endings of kernels and expiry of state, and so does less work.
"""

from collections.abc import Iterator
from typing import Any

import pandas as pd  # type: ignore[import-untyped]
from pyspark.sql import DataFrame
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from himalia.spark.transforms.bounded_text import HALF_BYTES, WHOLE_BYTES
from himalia.spark.transforms.iopub import IOPUB_CHANNELS

STREAMS = ("stdout", "stderr")
SUMS = {
    "first_offset": "bigint",
    "last_offset": "bigint",
    "queued_us": "bigint",
    "sent_us": "bigint",
    "started_us": "bigint",
    "finished_us": "bigint",
    "status": "string",
    "reason": "string",
    "code": "string",
    "username": "string",
    "session": "string",
    "execution_count": "bigint",
    "has_error": "boolean",
    "ename": "string",
    "evalue": "string",
    **{f"{channel}_messages": "bigint" for channel in IOPUB_CHANNELS},
    "result_types": "array<string>",
    **{f"{stream}_{end}": "binary" for stream in STREAMS for end in ("head", "tail")},
    **{f"{stream}_bytes": "bigint" for stream in STREAMS},
}
COUNTED = [name for name in SUMS if name.endswith(("_messages", "_bytes"))]
KEY = ("topic", "epoch", "request_id")
ROW = {
    **dict.fromkeys(KEY, "string"),
    **{name: kind for name, kind in SUMS.items() if not name.endswith(("_head", "_tail"))},
    **dict.fromkeys(STREAMS, "string"),
}


COLUMNS = {
    **{name: name for name in KEY},
    "code": "coalesce(code, '')",
    "status": "status",
    "reason": "coalesce(reason, '')",
    "execution_count": "execution_count",
    "queued": "timestamp_micros(coalesce(queued_us, sent_us))",
    "started": "timestamp_micros(started_us)",
    "finished": "timestamp_micros(finished_us)",
    "queue_ms": "greatest(started_us - coalesce(queued_us, sent_us), 0) / 1000",
    "run_ms": "greatest(finished_us - started_us, 0) / 1000",
    "messages": " + ".join(f"{channel}_messages" for channel in IOPUB_CHANNELS),
    **{f"{channel}_messages": f"{channel}_messages" for channel in IOPUB_CHANNELS},
    **{stream: stream for stream in STREAMS},
    **{f"{stream}_bytes": f"{stream}_bytes" for stream in STREAMS},
    **{name: name for name in ("first_offset", "last_offset", "result_types", "ename", "evalue")},
    **{name: name for name in ("username", "session")},
}
"""The columns of ``executions`` that it makes, of the sums."""


def executions(iopub: DataFrame) -> DataFrame:
    """Return a row of ``executions`` for each closed request of a stream of ``iopub``."""
    asker = "when 'execute_request' then {name} when 'execute_input' then parent_{name}"
    rows = iopub.selectExpr(
        "topic",
        "epoch",
        "if(msg_type = 'execute_request', id, parent_id) as request_id",
        "offset",
        "unix_micros(ts) as us",
        "channel",
        "msg_type",
        "event",
        "status",
        "reason",
        "execution_state",
        "execution_count",
        "stream_name",
        "text",
        "code",
        "ename",
        "evalue",
        "mime_types",
        f"case msg_type {asker.format(name='username')} end as username",
        f"case msg_type {asker.format(name='session')} end as session",
    ).where("request_id != ''")
    closed = rows.groupBy(*KEY).transformWithStateInPandas(
        Correlation(), outputStructType=_ddl(ROW), outputMode="Append", timeMode="None"
    )
    return closed.selectExpr(*(f"{expression} as {name}" for name, expression in COLUMNS.items()))


class Correlation(StatefulProcessor):
    """The state of one request, and its row when it closes."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._state = handle.getValueState("request", _ddl(SUMS))

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        known = self._state.get()
        sums = dict(zip(SUMS, known, strict=True)) if known else _nothing()
        for frame in rows:
            for row in frame.sort_values("offset").to_dict("records"):
                if sums["finished_us"] is None:
                    _add(sums, row)
        if sums["finished_us"] is None:
            self._state.update(tuple(sums.values()))
            return
        if known:
            self._state.clear()
        yield pd.DataFrame([_row(key, sums)])

    def close(self) -> None:
        pass


def _nothing() -> dict[str, Any]:
    return {**dict.fromkeys(SUMS), **dict.fromkeys(COUNTED, 0), "has_error": False, "result_types": []}


def _add(sums: dict[str, Any], row: dict[str, Any]) -> None:
    """Add one message to the state."""
    sums["first_offset"] = row["offset"] if sums["first_offset"] is None else sums["first_offset"]
    sums["last_offset"] = row["offset"]
    if row["channel"] in IOPUB_CHANNELS:
        sums[row["channel"] + "_messages"] += 1
    if not pd.isna(row["execution_count"]):
        sums["execution_count"] = int(row["execution_count"])
    if row["msg_type"] == "stream":
        _add_text(sums, row["stream_name"], (row["text"] or "").encode())
    elif row["msg_type"] == "status" and row["execution_state"] == "busy":
        sums["started_us"] = sums["started_us"] or row["us"]
    elif row["msg_type"] in ("execute_request", "execute_input"):
        _add_asked(sums, row)
    elif row["msg_type"] in ("error", "execute_reply"):
        _add_error(sums, row)
    elif row["event"] == "request_queued":
        sums["queued_us"] = sums["queued_us"] or row["us"]
        sums["code"] = sums["code"] or row["code"]
    elif row["event"] == "request_closed":
        sums.update(finished_us=row["us"], status=row["status"], reason=row["reason"])
    if row["mime_types"] is not None:
        sums["result_types"] = sorted({*sums["result_types"], *row["mime_types"]})


def _add_asked(sums: dict[str, Any], row: dict[str, Any]) -> None:
    if row["msg_type"] == "execute_request":
        sums["sent_us"] = sums["sent_us"] or row["us"]
    for name in ("code", "username", "session"):
        sums[name] = sums[name] or row[name]


def _add_error(sums: dict[str, Any], row: dict[str, Any]) -> None:
    """Add an error; a published one takes precedence over that of the reply."""
    is_message = row["msg_type"] == "error"
    if row["ename"] is not None and (is_message or not sums["has_error"]):
        sums.update(has_error=is_message, ename=row["ename"], evalue=row["evalue"])


def _add_text(sums: dict[str, Any], stream: str, text: bytes) -> None:
    head, tail = sums[f"{stream}_head"] or b"", sums[f"{stream}_tail"] or b""
    sums[f"{stream}_head"] = (head + text)[:HALF_BYTES] if len(head) < HALF_BYTES else head
    sums[f"{stream}_tail"] = (tail + text)[-HALF_BYTES:]
    sums[f"{stream}_bytes"] += len(text)


def _row(key: Any, sums: dict[str, Any]) -> dict[str, Any]:
    own = {name: value for name, value in sums.items() if name in ROW}
    shown = {
        stream: _shown(*(sums[f"{stream}_{part}"] for part in ("head", "tail", "bytes")))
        for stream in STREAMS
    }
    return {**dict(zip(KEY, key, strict=True)), **own, **shown}


def _shown(head: bytes | None, tail: bytes | None, size: int) -> str:
    if head is None or tail is None:
        return ""
    if size <= HALF_BYTES:
        return head.decode()
    if size <= WHOLE_BYTES:
        return (head + tail[HALF_BYTES - size :]).decode()
    first, last = head.decode(errors="ignore"), tail.decode(errors="ignore")
    left_out = size - len(first.encode()) - len(last.encode())
    return f"{first}\n… {left_out} bytes left out …\n{last}"


def _ddl(fields: dict[str, str]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in fields.items())
