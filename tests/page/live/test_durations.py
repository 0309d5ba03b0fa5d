"""How long a cell ran, on the page: the same rule as in REST and in the tables."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page

from himalia.record import format_ts
from tests.jupyter.duration_cases import CASES, Case
from tests.jupyter.test_duration import NOON_US
from tests.servers import RunningServer

pytestmark = pytest.mark.slow

FOLD = """async (stories) => {
  const { KernelSession } = await import("/page/live/kernel_session.js");
  return stories.map((records) => {
    const session = new KernelSession();
    for (const record of records) session.apply(record);
    return session.cell("r").ranMs;
  });
}"""


def told(case: Case) -> list[dict[str, object]]:
    """The records of a case, as the page gets them."""
    records: list[dict[str, object]] = []

    def tell(ms: int, msg_type: str, content: dict[str, object], date_ms: float | None = None) -> None:
        header = {} if date_ms is None else {"date": format_ts(NOON_US + round(date_ms * 1000))}
        message = {
            "id": str(len(records)),
            "headers": {"msg_type": msg_type, "parent_id": "r"},
            "payload": {"header": header, "content": content},
        }
        records.append({"offset": len(records), "ts": format_ts(NOON_US + ms * 1000), "message": message})

    if case.queued is not None:
        tell(case.queued, "kernel_event", {"event": "request_queued", "code": "1"})
    if case.busy_stored is not None:
        tell(case.busy_stored, "status", {"execution_state": "busy"}, case.busy)
        tell(case.busy_stored, "execute_input", {"code": "1", "execution_count": 1})
        if case.idle is not None:
            tell(case.closed, "status", {"execution_state": "idle"}, case.idle)
    if case.queued is not None:
        tell(case.closed, "kernel_event", {"event": "request_closed", "status": "ok"})
    return records


def test_the_page_says_how_long_code_ran_as_rest_and_tables_do(page: Page, server: RunningServer) -> None:
    """Every case that REST, metrics and tables are tested with gives the same duration here."""
    page.goto(f"{server.url}/")
    assert page.evaluate(FOLD, [told(case) for case in CASES]) == [case.ran for case in CASES]
