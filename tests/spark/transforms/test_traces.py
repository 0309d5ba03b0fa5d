"""The tables tell the same of every recorded trace as the state machine, however the log is cut into batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

import pytest
from pyspark.sql import SparkSession

from himalia.jupyter.channels import Channel
from himalia.jupyter.lifecycle import ENDINGS, RequestState
from himalia.jupyter.records import read_headers
from himalia.jupyter.timeline import REMEMBER_US, KernelTimeline
from himalia.record import Record
from tests.jupyter import corpus
from tests.spark.traffic import Row, rows_of
from tests.spark.transforms.fold_checks import FoldResult, fold, interpreted

pytestmark = pytest.mark.slow

EPOCH = "e1"
IOPUB = frozenset(map(str, Channel))


@pytest.fixture(scope="module")
def traces() -> list[corpus.Trace]:
    return corpus.traces()


def row_of(state: RequestState) -> dict[str, Any]:
    """What ``executions`` has to have of a request as the machine has it."""
    return {
        "status": str(state.status),
        "reason": state.reason,
        "execution_count": state.execution_count,
        "code": state.code or "",
        "queued": state.queued_us or state.sent_us,
        "started": state.started_us,
        "finished": state.closed_us,
        "run_ms": None if state.run_us is None else state.run_us / 1000,
        "username": state.username,
        "session": state.session,
        "is_foreign": state.origin == "foreign",
        "is_running": not state.is_closed,
    }


def orphans_of(records: Sequence[Record]) -> Iterator[int]:
    """The offsets of the messages whose request was not known after 60 s, or when the kernel ended."""
    timeline = KernelTimeline()
    waiting: dict[str, list[int]] = {}
    for record in records:
        changed = timeline.apply(record)
        headers = read_headers(record)
        for state in changed:
            if state.is_known:
                waiting.pop(state.request_id, None)
        if headers.parent_id and headers.channel in IOPUB and timeline.find(headers.parent_id) is None:
            waiting.setdefault(headers.parent_id, []).append(record.offset)
        ending = ENDINGS.get(corpus.event_name(record, headers))
        if ending is not None and ending.is_final:
            for offsets in waiting.values():
                yield from offsets
            waiting.clear()
    for offsets in waiting.values():
        yield from (one for one in offsets if records[-1].ts_us - records[one].ts_us > REMEMBER_US)


def check(folded: FoldResult, traces: Sequence[corpus.Trace]) -> None:
    wanted, orphans = {}, set()
    for trace in traces:
        for state in corpus.fold(trace.records):
            if state.is_execution:
                wanted[trace.topic, state.request_id, state.queued_us or state.sent_us, state.started_us] = (
                    row_of(state)
                )
        orphans |= {(trace.topic, offset) for offset in orphans_of(trace.records)}
    rows = [*folded.closed, *folded.running]
    found = {(row["topic"], row["request_id"], row["queued"], row["started"]): row for row in rows}
    assert len(found) == len(rows)
    differing = corpus.differences(wanted, found)
    assert not differing, "\n".join(differing[:40])
    assert {(row["topic"], row["offset"]) for row in folded.orphans} == orphans


def test_in_one_batch(spark: SparkSession, traces: list[corpus.Trace]) -> None:
    """All topics at once: one row of ``executions`` for each request, and the messages of none."""
    rows = [row for trace in traces for row in rows_of(trace.records, EPOCH)]
    with interpreted(spark):
        check(fold(spark, [rows]), traces)


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.soak)])
def test_in_several_batches(spark: SparkSession, traces: list[corpus.Trace], seed: int) -> None:
    """Each topic is cut at three places."""
    random = Random(seed)
    batches: list[list[Row]] = [[], [], [], []]
    for trace in traces:
        rows = rows_of(trace.records, EPOCH)
        places = [0, *sorted(random.randint(0, len(rows)) for _ in range(3)), len(rows)]
        for batch, start, end in zip(batches, places, places[1:], strict=False):
            batch += rows[start:end]
    with interpreted(spark):
        check(fold(spark, batches), traces)
