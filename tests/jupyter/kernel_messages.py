"""Messages as a kernel sends them, for tests that need no kernel."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec

from himalia.jupyter.wire import KernelMessage

_numbers = itertools.count()


def message(msg_type: str = "stream", parent_id: str = "", **content: Any) -> KernelMessage:
    """A message with an id of its own."""
    msg_id = f"m{next(_numbers)}"
    return KernelMessage(
        msg_id=msg_id,
        msg_type=msg_type,
        parent_id=parent_id,
        header=msgspec.json.encode({"msg_id": msg_id, "msg_type": msg_type}),
        parent_header=msgspec.json.encode({"msg_id": parent_id}) if parent_id else b"{}",
        content=msgspec.json.encode(content),
    )


def status(state: str, parent_id: str = "") -> KernelMessage:
    return message("status", parent_id, execution_state=state)


def reply(parent_id: str = "") -> KernelMessage:
    return message("execute_reply", parent_id, status="ok")
