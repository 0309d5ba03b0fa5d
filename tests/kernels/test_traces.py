"""Results and the recovery of a server tell the same of recorded traces as the state machine."""

from __future__ import annotations

from itertools import groupby

import pytest

from himalia.jupyter.lifecycle import RequestOrigin, RequestState
from himalia.jupyter.timeline import KernelTimeline
from himalia.kernels.history import ExecutionBuilder
from himalia.kernels.recovery import open_requests
from himalia.log.api import Batch
from himalia.log.memory import MemoryLog
from himalia.record import Draft
from tests.jupyter import corpus

FAMILIES = ("server-killed", "server-stopped", "death", "restart", "auto-restart", "cancel", "forged", "gap")
"""Those whose records are cut: what a server finds that was killed at this moment."""


@pytest.fixture(scope="module")
def recorded() -> list[corpus.Trace]:
    return [trace for trace in corpus.traces() if trace.about.family != "edited"]


def test_results_are_the_machines(recorded: list[corpus.Trace]) -> None:
    """What REST answers for every request of the server's own: status, reason, code, count and times."""
    compared = 0
    for trace in recorded:
        for state in corpus.fold(trace.records):
            if state.origin is not RequestOrigin.QUEUED:
                continue
            builder = ExecutionBuilder(state.request_id, kernel_id=trace.name, topic=trace.topic)
            for record in trace.records[state.offset :]:
                builder.add(record)
            result, wanted = builder.result(), state.summary()
            for name in wanted.__struct_fields__:
                if name in ("has_failed", "execution_count"):
                    continue
                assert getattr(result, name) == getattr(wanted, name), (trace.name, state.request_id, name)
            count = wanted.execution_count
            assert result.execution_count == (None if count is not None and count < 0 else count)
            assert result.offset == state.offset
            compared += 1
    assert compared > 700


def brief(state: RequestState) -> tuple[object, ...]:
    return state.request_id, state.stage, state.execution_count, state.has_failed, state.code, state.timeout_s


async def test_recovery_finds_what_is_open_after_any_commit(recorded: list[corpus.Trace]) -> None:
    """A server that comes after any commit finds the open requests in the states that the whole topic gives.

    Records of one commit have one time.
    """
    for trace in recorded:
        if trace.about.family not in FAMILIES or len(trace.records) > 120:
            continue
        log = MemoryLog()
        await log.open()
        await log.create(trace.topic)
        timeline = KernelTimeline()
        for _, group in groupby(trace.records, key=lambda record: record.ts_us):
            committed = list(group)
            drafts = [Draft(record.id, record.payload, record.headers) for record in committed]
            await log.append(Batch(trace.topic, drafts))
            for record in committed:
                timeline.apply(record)
            found = [brief(state) for state in await open_requests(log, trace.topic)]
            wanted = [brief(state) for state in timeline.open if state.origin is RequestOrigin.QUEUED]
            assert found == wanted, (trace.name, committed[-1].offset)
        await log.close()
