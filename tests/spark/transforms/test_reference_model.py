"""The model that the tables are tested with against the state machine of requests, which REST and the server use."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from himalia.jupyter.lifecycle import RequestOrigin, RequestState
from himalia.jupyter.timeline import KernelTimeline
from himalia.record import Record
from tests.spark.traffic import Row
from tests.spark.transforms.random_traffic import random_records
from tests.spark.transforms.reference_model import reference_tables

COLUMNS = (
    "request_id",
    "status",
    "reason",
    "execution_count",
    "queued",
    "started",
    "finished",
    "run_ms",
    "username",
    "session",
    "code",
    "is_foreign",
)


@pytest.mark.parametrize("block", range(10))
def test_the_machine_agrees_on_any_traffic(block: int) -> None:
    """Whatever a topic holds, in whatever order, model and machine say the same of every request."""
    for seed in range(block * 100, block * 100 + 100):
        rows = random_records(Random(seed), "k")
        tables = reference_tables(rows)
        closed, running = timelines(rows)
        assert ordered(closed) == ordered(tables.closed), seed
        assert ordered(running) == ordered(tables.running), seed


def timelines(rows: Sequence[Row]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The requests that closed and those that are open, by the machine, epoch by epoch."""
    epochs: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        epochs[row.epoch].append(row)
    by_age = sorted(epochs.values(), key=lambda rows: rows[0].us)
    closed: list[RequestState] = []
    timeline = KernelTimeline()
    for number, rows in enumerate(by_age):
        if number:
            closed += timeline.delete(rows[0].us)
            timeline = KernelTimeline()
        for row in rows:
            headers, value = json.dumps(row.headers).encode(), row.value.encode()
            one = Record(row.topic, row.offset, row.us, row.id, headers, value)
            closed += [state for state in timeline.apply(one) if state.is_closed]
    return [column_values(state) for state in closed], [column_values(state) for state in timeline.open]


def column_values(state: RequestState) -> dict[str, Any]:
    return {
        "request_id": state.request_id,
        "status": str(state.status),
        "reason": state.reason,
        "execution_count": state.execution_count,
        "queued": state.queued_us or state.sent_us,
        "started": state.started_us,
        "finished": state.closed_us,
        "run_ms": None if state.run_us is None else state.run_us / 1000,
        "username": state.username,
        "session": state.session,
        "code": state.code or "",
        "is_foreign": state.origin is RequestOrigin.FOREIGN,
    }


def ordered(rows: Sequence[dict[str, Any]]) -> list[str]:
    return sorted(json.dumps({name: row[name] for name in COLUMNS}) for row in rows)
