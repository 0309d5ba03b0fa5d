"""The page tells the same of every recorded trace as the state machine."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Page

from himalia.jupyter.lifecycle import TRANSITIONS, RequestState
from himalia.record import parse_ts
from tests.jupyter import corpus
from tests.servers import RunningServer

pytestmark = pytest.mark.slow

AT_A_TIME = 40

FOLD = """async (topics) => {
  const { KernelSession } = await import("/page/live/kernel_session.js");
  return topics.map((lines) => {
    const session = new KernelSession();
    for (const line of lines) session.apply({ ...JSON.parse(line), text: line });
    const cells = session.entries.filter((entry) => entry.kind === "cell" && !entry.isLoose);
    return cells.map((cell) => ({
      id: cell.requestId, isCut: cell.request.isCut, code: cell.code,
      status: cell.status, reason: cell.reason, count: cell.count,
      queued: cell.queuedAt, started: cell.startedAt, finished: cell.finishedAt, ran_ms: cell.ranMs,
    }));
  });
}"""
"""Folds topics by the page's own module; the cells of requests that are known."""


TABLE = """async () => (await import("/page/live/request_state.js")).TRANSITIONS"""


def shown(state: RequestState) -> dict[str, Any]:
    """What the page has to show of a request as the machine has it."""
    status = str(state.status)
    if not state.is_closed and state.started_us is None and state.stage not in ("running", "done"):
        status = "queued"
    return {
        "status": status,
        "reason": state.reason,
        "count": state.execution_count,
        "code": state.code,
        "queued": state.queued_us,
        "started": state.started_us,
        "finished": state.closed_us,
        "ran_ms": None if state.run_us is None else state.run_us / 1000,
    }


def read(cell: dict[str, Any]) -> dict[str, Any]:
    """A cell with its times in microseconds."""
    return cell | {name: cell[name] and parse_ts(cell[name]) for name in ("queued", "started", "finished")}


def test_the_page_has_the_machines_table(page: Page, server: RunningServer) -> None:
    """Every transition is the same."""
    page.goto(f"{server.url}/")
    found = page.evaluate(TABLE)
    assert found.pop("closed") == {}
    assert {
        (stage, kind): target for stage, row in found.items() for kind, target in row.items()
    } == TRANSITIONS


def test_the_page_shows_what_the_machine_says(page: Page, server: RunningServer) -> None:
    """Status, reason, count, code, times and duration of every request of every trace."""
    page.goto(f"{server.url}/")
    traces = corpus.traces()
    differing = []
    for start in range(0, len(traces), AT_A_TIME):
        part = traces[start : start + AT_A_TIME]
        for trace, cells in zip(part, page.evaluate(FOLD, [trace.lines for trace in part]), strict=True):
            states = corpus.fold(trace.records)
            wanted = {one.request_id: shown(one) for one in states if one.is_execution}
            found = {cell.pop("id"): read(cell) for cell in cells}
            # A close without its beginning: the machine leaves it out, the page shows what there is.
            cut = [request_id for request_id, cell in found.items() if cell["isCut"]]
            assert not cut or trace.about.family == "edited", trace.name
            for request_id in cut:
                del found[request_id]
                wanted.pop(request_id, None)
            differing += [f"{trace.name}: {line}" for line in corpus.differences(wanted, found)]
    assert not differing, "\n".join(differing[:40])
