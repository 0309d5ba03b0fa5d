"""A reference model of the fold: the rows of the tables, computed record by record in plain Python.

It has no batches, marks or sums: it keeps whole requests in dictionaries and forgets as little as it may. The fold must
agree with it wherever the log is cut into batches.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from himalia.record import parse_ts
from tests.spark.traffic import Row

IOPUB = ("status", "execution", "stream", "display", "comm")
APPEARING = ("queued", "sent", "input")
STATUSES = ("ok", "error", "aborted", "died", "timeout", "cancelled", "stale")
ENDINGS = {
    "died": ("died", "the kernel died"),
    "stopped": ("aborted", "the kernel was stopped"),
    "restarting": ("aborted", "the kernel was restarted"),
}
FINAL = ("died", "stopped")
PATIENCE_US = 60_000_000


@dataclass
class Record:
    """A row, read."""

    row: Row
    request_id: str
    channel: str
    msg_type: str
    content: dict[str, Any]
    parent: dict[str, Any]

    @property
    def is_iopub(self) -> bool:
        return self.channel in IOPUB

    @property
    def kind(self) -> str | None:
        if self.msg_type == "kernel_event":
            return {"request_queued": "queued", "request_closed": "closed"}.get(self.text("event") or "")
        if self.msg_type == "execute_request":
            return "sent"
        if self.msg_type == "execute_reply":
            return "reply"
        if self.is_iopub and self.msg_type in ("execute_input", "error"):
            return "input" if self.msg_type == "execute_input" else "error"
        if self.is_iopub and self.msg_type == "status" and self.text("execution_state") == "idle":
            return "idle"
        return None

    @property
    def header_us(self) -> int | None:
        try:
            return parse_ts(json.loads(self.row.value)["header"]["date"])
        except (ValueError, KeyError, TypeError):
            return None

    def text(self, name: str) -> str | None:
        value = self.content.get(name)
        return value if isinstance(value, str) else None


@dataclass
class Request:
    """A request from when it appeared."""

    records: list[Record]
    appeared_us: int
    kinds: set[str] = field(default_factory=set)
    reply: str | None = None
    closed: tuple[int, str, str] | None = None
    """When it closed, with which status, and why."""
    heard_us: int = 0

    def close(self, us: int, status: str, reason: str) -> None:
        self.closed = (us, status, reason)


@dataclass
class ReferenceTables:
    """The rows of every table that the fold fills, as dictionaries."""

    closed: list[dict[str, Any]] = field(default_factory=list)
    running: list[dict[str, Any]] = field(default_factory=list)
    orphans: list[dict[str, Any]] = field(default_factory=list)
    waiting: int = 0
    lingering: int = 0


def reference_tables(rows: Iterable[Row]) -> ReferenceTables:
    """Compute the tables from all records at once."""
    result = ReferenceTables()
    by_topic: dict[str, dict[str, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        by_topic[row.topic][row.epoch].append(row)
    for epochs in by_topic.values():
        ordered = sorted(epochs.values(), key=lambda rows: rows[0].us)
        for rows, following in zip(ordered, [*ordered[1:], None], strict=True):
            rows.sort(key=lambda row: row.offset)
            _Epoch(result).read(rows, None if following is None else following[0].us)
    return result


class _Epoch:
    def __init__(self, result: ReferenceTables) -> None:
        self.result = result
        self.requests: dict[str, Request] = {}
        self.waiting: dict[str, list[Record]] = defaultdict(list)

    def read(self, rows: Sequence[Row], superseded_us: int | None) -> None:
        for row in rows:
            self._pass_time(row.us)
            self._take(_read(row))
        if superseded_us is not None:
            self._end_all(superseded_us, "stale", "the topic was deleted")
            self._forget_all()
        for request_id, request in self.requests.items():
            if request.closed is None:
                self.result.running.append(_execution(request_id, request))
            else:
                self.result.lingering += 1
        self.result.waiting += sum(map(len, self.waiting.values()))

    def _pass_time(self, now_us: int) -> None:
        self._expire(lambda message: now_us - message.row.us > PATIENCE_US)
        for request_id, request in list(self.requests.items()):
            if request.closed is not None and now_us - request.heard_us > PATIENCE_US:
                del self.requests[request_id]

    def _forget_all(self) -> None:
        self.requests.clear()
        self._expire(lambda _: True)

    def _expire(self, is_hopeless: Any) -> None:
        for request_id, messages in self.waiting.items():
            for message in messages:
                if is_hopeless(message):
                    self.result.orphans.append(_orphan(request_id, message))
            messages[:] = [message for message in messages if not is_hopeless(message)]

    def _end_all(self, us: int, status: str, reason: str) -> None:
        for request_id, request in self.requests.items():
            if request.closed is None:
                self._close(request_id, request, max(us, request.heard_us), status, reason)

    def _close(self, request_id: str, request: Request, us: int, status: str, reason: str) -> None:
        request.close(us, status, reason)
        request.heard_us = max(request.heard_us, us)
        self.result.closed.append(_execution(request_id, request))

    def _take(self, record: Record) -> None:
        if record.msg_type == "kernel_event" and record.text("event") in ENDINGS:
            status, words = ENDINGS[record.text("event") or ""]
            reason = record.text("reason")
            self._end_all(record.row.us, status, f"{words}: {reason}" if reason else words)
            if record.text("event") in FINAL:
                self._forget_all()
        if not record.request_id:
            return
        request = self.requests.get(record.request_id)
        if request is None and record.kind in APPEARING:
            early = self.waiting.pop(record.request_id, [])
            request = self.requests[record.request_id] = Request(early, record.row.us)
        if request is not None:
            self._add(request, record)
        elif record.is_iopub:
            self.waiting[record.request_id].append(record)

    def _add(self, request: Request, record: Record) -> None:
        request.heard_us = max(request.heard_us, record.row.us)
        if request.closed is not None:
            return
        request.records.append(record)
        kind = record.kind
        if kind is not None:
            request.kinds.add(kind)
        if kind == "reply":
            status = record.text("status")
            request.reply = status if status in ("error", "aborted") else "ok"
        here = (record.request_id, request, record.row.us)
        if kind == "closed":
            status = record.text("status")
            self._close(*here, status if status in STATUSES else "error", record.text("reason") or "")
        elif "idle" in request.kinds and "queued" not in request.kinds:
            if request.reply is not None:
                self._close(*here, request.reply, "")
            elif "sent" not in request.kinds:
                self._close(*here, "error" if "error" in request.kinds else "ok", "")


def _read(row: Row) -> Record:
    try:
        payload = json.loads(row.value)
    except ValueError:
        payload = {}
    payload = payload if isinstance(payload, dict) else {}

    def part(name: str) -> dict[str, Any]:
        value = payload.get(name)
        return value if isinstance(value, dict) else {}

    content, parent = part("content"), part("parent_header")
    msg_type = row.headers.get("msg_type") or part("header").get("msg_type") or ""
    channel = row.headers.get("channel") or _channel(msg_type)
    parent_id = row.headers.get("parent_id", parent.get("msg_id", ""))
    request_id = row.id if msg_type == "execute_request" else parent_id
    return Record(row, request_id, channel, msg_type, content, parent)


def _channel(msg_type: str) -> str:
    if msg_type == "kernel_event":
        return "kernel"
    if msg_type in ("execute_request", "execute_reply"):
        return "shell"
    if msg_type in ("status", "stream"):
        return msg_type
    if msg_type in ("display_data", "update_display_data", "clear_output"):
        return "display"
    return "comm" if msg_type.startswith("comm_") else "execution"


def _orphan(request_id: str, message: Record) -> dict[str, Any]:
    row = message.row
    return {
        "topic": row.topic,
        "epoch": row.epoch,
        "offset": row.offset,
        "us": row.us,
        "id": row.id,
        "channel": message.channel,
        "msg_type": message.msg_type,
        "parent_id": request_id,
    }


def _execution(request_id: str, request: Request) -> dict[str, Any]:
    records = request.records
    finished_us, status, reason = request.closed or (None, "running", "")

    def times(*kinds: str) -> list[int]:
        return [record.row.us for record in records if record.kind in kinds]

    queued_us = min(times("queued") or times("sent"), default=None)
    busy = [record.row.us for record in records if record.text("execution_state") == "busy"]
    started_us = min(busy, default=None)
    channels = Counter(record.channel for record in records if record.is_iopub)
    counts = [record.content.get("execution_count") for record in records]
    counts = [count for count in counts if isinstance(count, int)]
    published = [record for record in records if record.msg_type == "error"]
    replied = [record for record in records if record.kind == "reply"]
    errors = [record for record in [*replied, *published] if record.text("ename") is not None]
    askers = [_asker(record) for record in records if record.kind in ("queued", "sent", "input")]
    return {
        "topic": records[0].row.topic,
        "epoch": records[0].row.epoch,
        "request_id": request_id,
        "code": next(
            (
                code
                for record in records
                if record.kind in APPEARING and (code := record.text("code")) is not None
            ),
            "",
        ),
        "status": status,
        "reason": reason,
        "execution_count": counts[-1] if counts else None,
        "queued": queued_us,
        "started": started_us,
        "finished": finished_us,
        "queue_ms": _ms(queued_us, started_us),
        "run_ms": _run_ms(records, queued_us, started_us, finished_us),
        "messages": channels.total(),
        **{f"{channel}_messages": channels[channel] for channel in IOPUB},
        **{name: shown(_printed(records, name)) for name in ("stdout", "stderr")},
        **{f"{name}_bytes": len(_printed(records, name)) for name in ("stdout", "stderr")},
        "first_offset": min(record.row.offset for record in records),
        "last_offset": max(record.row.offset for record in records),
        "result_types": sorted({kind for record in records for kind in _mime_types(record)}),
        "ename": errors[-1].text("ename") if errors else None,
        "evalue": errors[-1].text("evalue") if errors else None,
        "username": next((name for name, _ in askers if name is not None), None),
        "session": next((session for _, session in askers if session is not None), None),
        "is_foreign": not {"queued", "sent"} & request.kinds,
        "is_running": request.closed is None,
    }


def _asker(record: Record) -> tuple[str | None, str | None]:
    if record.kind == "queued":
        username = record.row.headers.get("username")
        return (None if username == "himalia" else username), None
    if record.kind == "sent":
        return record.row.headers.get("username"), record.row.headers.get("session")
    username = record.parent.get("username")
    return f"foreign:{username}" if username else None, record.parent.get("session")


def _mime_types(record: Record) -> Iterable[str]:
    is_display = record.msg_type in ("execute_result", "display_data", "update_display_data")
    data = record.content.get("data")
    return data if is_display and isinstance(data, dict) else ()


def _printed(records: Sequence[Record], name: str) -> bytes:
    streams = [record for record in records if record.msg_type == "stream" and record.text("name") == name]
    return "".join(record.text("text") or "" for record in streams).encode()


def _run_ms(
    records: Sequence[Record], asked_us: int | None, started_us: int | None, finished_us: int | None
) -> float | None:
    """By the kernel's dates of its first busy and first idle, if they lie between the times of the log."""
    if started_us is None or finished_us is None:
        return None
    dates: dict[str, list[int]] = {"busy": [], "idle": []}
    for record in records:
        state = record.text("execution_state")
        is_status = state == "busy" or record.kind == "idle"
        if record.is_iopub and is_status and state in dates and record.header_us is not None:
            dates[state].append(record.header_us)
    busy_us, idle_us = (min(dates[state], default=None) for state in ("busy", "idle"))
    earliest_us = started_us if asked_us is None else asked_us
    if busy_us is None or idle_us is None or busy_us > idle_us:
        return _ms(started_us, finished_us)
    if busy_us < earliest_us - 1_000_000 or idle_us > finished_us + 1_000_000:
        return _ms(started_us, finished_us)
    return (idle_us - busy_us) / 1000


def _ms(start_us: int | None, end_us: int | None) -> float | None:
    return None if start_us is None or end_us is None else max(end_us - start_us, 0) / 1000


def shown(printed: bytes) -> str:
    """A text of which at most 64 KiB are shown, cut between characters."""
    half = 32 << 10
    if len(printed) <= 2 * half:
        return printed.decode()
    head = printed[:half].decode(errors="ignore")
    tail = printed[-half:]
    while tail[0] & 0xC0 == 0x80:
        tail = tail[1:]
    left_out = len(printed) - len(head.encode()) - len(tail)
    return f"{head}\n… {left_out} bytes left out …\n{tail.decode()}"
