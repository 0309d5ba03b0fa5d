"""A kernel's topic, record by record, for tests of the tables.

``TopicBuilder`` builds the records that a server writes to a kernel's topic: same headers and payloads, at the test's
times.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from pyspark.sql import DataFrame, SparkSession

from himalia.jupyter.channels import channel_of
from himalia.record import Record
from himalia.spark.connector.read import ARROW_SCHEMA
from himalia.spark.transforms import messages

NOON_US = 1_800_000_000_000_000 - 1_800_000_000_000_000 % 86_400_000_000 + 43_200_000_000
"""Noon of some day, UTC: the time 0 of a ``TopicBuilder``."""


class Row(NamedTuple):
    """A record as the connector gives it, with its epoch; the time is in microseconds."""

    topic: str
    offset: int
    us: int
    id: str
    headers: dict[str, str]
    value: str
    epoch: str


class TopicBuilder:
    """Builds a topic. Each method appends one record, ``at`` seconds after noon or at the time of the one before."""

    def __init__(self, kernel_id: str = "k1", *, epoch: str = "e1", at: float = 0.0) -> None:
        self.kernel_id = kernel_id
        self.epoch = epoch
        self.rows: list[Row] = []
        self._us = NOON_US + round(at * 1e6)

    def record(
        self, id: str, headers: dict[str, str], payload: dict[str, Any] | str, at: float | None = None
    ) -> Row:
        """Any record at all; a payload that is text goes as it is."""
        if at is not None:
            self._us = max(self._us, NOON_US + round(at * 1e6))
        value = payload if isinstance(payload, str) else json.dumps(payload)
        row = Row(f"kernels.{self.kernel_id}", len(self.rows), self._us, id, headers, value, self.epoch)
        self.rows.append(row)
        return row

    def message(
        self,
        msg_type: str,
        parent_id: str,
        content: dict[str, Any],
        *,
        channel: str | None = None,
        id: str | None = None,
        at: float | None = None,
        date: str | None = None,
    ) -> Row:
        """A message of the kernel, on IOPub unless the channel says otherwise."""
        id = id or f"{self.kernel_id}-{self.epoch}-{len(self.rows)}"
        header = {"msg_id": id, "msg_type": msg_type, "session": "ks", "username": "ku"}
        # A kernel's clock may be years off; only a duration may depend on it, and only where the log agrees.
        header["date"] = date or "1999-01-01"
        parent = {"msg_id": parent_id, "session": "cs", "username": "cu"} if parent_id else {}
        payload = {"header": header, "parent_header": parent, "metadata": {}, "content": content}
        headers = self._headers(msg_type, channel or str(channel_of(msg_type)), parent_id, "ks", "ku")
        return self.record(id, headers, payload, at)

    def event(self, event: str, request_id: str = "", *, at: float | None = None, **data: Any) -> Row:
        id = f"{self.kernel_id}-{self.epoch}-{len(self.rows)}"
        username = data.get("caller", "himalia")
        payload = {
            "header": {"msg_id": id, "msg_type": "kernel_event", "session": "", "username": username},
            "parent_header": {"msg_id": request_id} if request_id else {},
            "metadata": {},
            "content": {"event": event, **data},
        }
        return self.record(id, self._headers("kernel_event", "kernel", request_id, "", username), payload, at)

    # What happens to a request

    def queued(self, request_id: str, code: str = "1", *, at: float | None = None) -> Row:
        return self.event("request_queued", request_id, at=at, code=code, priority=0)

    def sent(self, request_id: str, code: str = "1", *, at: float | None = None) -> Row:
        header = {"msg_id": request_id, "msg_type": "execute_request", "session": "hs", "username": "hu"}
        payload = {"header": header, "parent_header": {}, "metadata": {}, "content": {"code": code}}
        headers = self._headers("execute_request", "shell", "", "hs", "hu")
        return self.record(request_id, headers, payload, at)

    def busy(self, request_id: str, *, at: float | None = None, date: str | None = None) -> Row:
        return self.message("status", request_id, {"execution_state": "busy"}, at=at, date=date)

    def idle(self, request_id: str, *, at: float | None = None, date: str | None = None) -> Row:
        return self.message("status", request_id, {"execution_state": "idle"}, at=at, date=date)

    def input(self, request_id: str, code: str = "1", count: int = 1, *, at: float | None = None) -> Row:
        return self.message("execute_input", request_id, {"code": code, "execution_count": count}, at=at)

    def stream(self, request_id: str, text: str, name: str = "stdout", *, at: float | None = None) -> Row:
        return self.message("stream", request_id, {"name": name, "text": text}, at=at)

    def error(
        self, request_id: str, ename: str = "ValueError", evalue: str = "no", *, at: float | None = None
    ) -> Row:
        content = {"ename": ename, "evalue": evalue, "traceback": ["a", "b"]}
        return self.message("error", request_id, content, at=at)

    def result(self, request_id: str, data: dict[str, Any] | None = None, *, at: float | None = None) -> Row:
        content = {"data": data or {"text/plain": "1"}, "metadata": {}, "execution_count": 1}
        return self.message("execute_result", request_id, content, at=at)

    def display(self, request_id: str, data: dict[str, Any], *, at: float | None = None) -> Row:
        content = {"data": data, "metadata": {}, "transient": {"display_id": "d1"}}
        return self.message("display_data", request_id, content, at=at)

    def comm(self, request_id: str, *, at: float | None = None) -> Row:
        return self.message("comm_msg", request_id, {"comm_id": "c1", "data": {"value": 1}}, at=at)

    def reply(self, request_id: str, status: str = "ok", *, at: float | None = None, **content: Any) -> Row:
        said = {"status": status, "execution_count": 1, **content}
        return self.message("execute_reply", request_id, said, channel="shell", at=at)

    def closed(
        self, request_id: str, status: str = "ok", reason: str = "", *, at: float | None = None
    ) -> Row:
        return self.event("request_closed", request_id, at=at, status=status, reason=reason)

    def whole(self, request_id: str, *texts: str, code: str = "1", at: float | None = None) -> None:
        """A request as Himalia runs it, that prints and ends well."""
        self.queued(request_id, code, at=at)
        self.sent(request_id, code)
        self.busy(request_id)
        self.input(request_id, code)
        for text in texts:
            self.stream(request_id, text)
        self.reply(request_id)
        self.idle(request_id)
        self.closed(request_id)

    def _headers(
        self, msg_type: str, channel: str, parent_id: str, session: str, username: str
    ) -> dict[str, str]:
        return {
            "msg_type": msg_type,
            "channel": channel,
            "parent_id": parent_id,
            "kernel_id": self.kernel_id,
            "username": username,
            "session": session,
        }


def rows_of(records: Iterable[Record], epoch: str) -> list[Row]:
    """Records of a real log as rows."""
    return [
        Row(
            record.topic,
            record.offset,
            record.ts_us,
            record.id,
            json.loads(record.headers),
            record.payload.decode(),
            epoch,
        )
        for record in records
    ]


def stored(spark: SparkSession, rows: Sequence[Row]) -> DataFrame:
    """Rows of ``messages``, made of these as the pipeline makes them of what the server sends."""
    import pyarrow as pa

    epochs = pa.array([row.epoch for row in rows], pa.string())
    return spark.createDataFrame(pa.Table.from_batches([messages.rows_of(_batch(rows), epochs)]))


def _batch(rows: Sequence[Row]) -> Any:
    """Rows as the connector gives them."""
    import pyarrow as pa

    columns = [
        pa.array([row.topic for row in rows], pa.string()),
        pa.array([row.offset for row in rows], pa.int64()),
        pa.array([row.us for row in rows], pa.int64()).cast(pa.timestamp("us", tz="UTC")),
        pa.array([row.id for row in rows], pa.string()),
        pa.array([list(row.headers.items()) for row in rows], pa.map_(pa.string(), pa.string())),
        pa.array([row.value for row in rows], pa.string()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=ARROW_SCHEMA)
