"""What is told of a kernel: its state and what a listing shows."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class KernelState(StrEnum):
    """As Jupyter Server has it."""

    STARTING = "starting"
    IDLE = "idle"
    BUSY = "busy"
    RESTARTING = "restarting"
    DEAD = "dead"
    UNKNOWN = "unknown"


class KernelModel(msgspec.Struct, frozen=True, kw_only=True):
    """What is told of a kernel. The first five fields are Jupyter Server's."""

    id: str
    name: str
    last_activity_us: int
    execution_state: KernelState
    connections: int
    topic: str
    owner: str | None
    """The caller who started or attached it; None if that was an earlier version."""
    is_foreign: bool
    responding: bool
    queued: int
    active_request: str | None
    pid: int | None
    started_us: int
    buffered_bytes: int
