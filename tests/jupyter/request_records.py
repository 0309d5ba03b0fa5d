"""Messages of one request, and the records they become, for tests that need no kernel."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import msgspec

from himalia.jupyter.channels import channel_of
from himalia.jupyter.records import event_draft, to_draft
from himalia.jupyter.wire import KernelMessage
from himalia.record import Draft, Record

KERNEL = "k1"
TOPIC = f"kernels.{KERNEL}"
REQUEST = "request-1"

_numbers = itertools.count()


def message(
    msg_type: str,
    content: dict[str, Any] | bytes,
    *,
    parent_id: str = REQUEST,
    msg_id: str | None = None,
    received_us: int = 0,
) -> KernelMessage:
    """A message of the request; content given as bytes goes as it is."""
    msg_id = f"m{next(_numbers)}" if msg_id is None else msg_id
    return KernelMessage(
        msg_id=msg_id,
        msg_type=msg_type,
        session="s",
        username="u",
        parent_id=parent_id,
        header=msgspec.json.encode({"msg_id": msg_id, "msg_type": msg_type}),
        parent_header=msgspec.json.encode({"msg_id": parent_id}) if parent_id else b"{}",
        content=content if isinstance(content, bytes) else msgspec.json.encode(content),
        received_us=received_us,
    )


def stream(text: Any, name: Any = "stdout", **fields: Any) -> KernelMessage:
    return message("stream", {"name": name, "text": text}, **fields)


def status(state: str) -> KernelMessage:
    return message("status", {"execution_state": state})


def display(
    data: dict[str, Any], display_id: str | None = None, msg_type: str = "display_data"
) -> KernelMessage:
    transient = {} if display_id is None else {"display_id": display_id}
    content: dict[str, Any] = {"data": data, "metadata": {}, "transient": transient}
    if msg_type == "execute_result":
        content["execution_count"] = 1
    return message(msg_type, content)


def update(data: dict[str, Any], display_id: str) -> KernelMessage:
    return display(data, display_id, "update_display_data")


def result(data: dict[str, Any], execution_count: int = 1) -> KernelMessage:
    return message("execute_result", {"data": data, "metadata": {}, "execution_count": execution_count})


def clear(*, wait: bool) -> KernelMessage:
    return message("clear_output", {"wait": wait})


def error(
    ename: str = "ValueError", evalue: str = "no", traceback: Sequence[str] = ("line 1", "line 2")
) -> KernelMessage:
    return message("error", {"ename": ename, "evalue": evalue, "traceback": list(traceback)})


# As the log gets them


def iopub(said: KernelMessage) -> Draft:
    return to_draft(said, KERNEL, channel_of(said.msg_type))


def request(code: str = "1 + 1", request_id: str = REQUEST) -> Draft:
    return to_draft(
        message("execute_request", {"code": code}, parent_id="", msg_id=request_id), KERNEL, "shell"
    )


def reply(content: dict[str, Any]) -> Draft:
    return to_draft(message("execute_reply", content), KERNEL, "shell")


def event(name: str, request_id: str = REQUEST, **data: Any) -> Draft:
    return event_draft(KERNEL, name, request_id=request_id, **data)


def record(draft: Draft, offset: int = 0, ts_us: int = 1_000_000) -> Record:
    return Record(TOPIC, offset, ts_us, draft.id, draft.headers, draft.payload)
