"""How long a request ran: by the kernel's own dates, where the log's times agree with them."""

from __future__ import annotations

import json

import msgspec
import pytest

from himalia.jupyter.duration import RUN_BOUNDS_S, RunHistogram, StatusDates
from himalia.jupyter.lifecycle import RequestStage, RequestState
from himalia.jupyter.request_events import to_event
from himalia.jupyter.wire import KernelMessage
from himalia.record import format_ts
from tests.jupyter.duration_cases import CASES, Case

NOON_US = 1_800_000_000_000_000


def at(ms: int | None) -> int | None:
    return None if ms is None else NOON_US + ms * 1000


def status(state: str, date_ms: float | None) -> KernelMessage:
    header = {"msg_id": state, "msg_type": "status"}
    if date_ms is not None:
        header["date"] = format_ts(NOON_US + round(date_ms * 1000))
    return KernelMessage(
        msg_id=state,
        msg_type="status",
        session="",
        username="",
        parent_id="r",
        header=json.dumps(header).encode(),
        parent_header=b"{}",
        metadata=b"{}",
        content=json.dumps({"execution_state": state}).encode(),
        buffers=(),
        received_us=NOON_US,
    )


def dates_of(*messages: KernelMessage) -> StatusDates:
    """The dates of a request after these messages of its kernel."""
    state = RequestState(request_id="r", stage=RequestStage.SENT)
    for message in messages:
        event = to_event(message, "status")
        assert event is not None
        state = state.apply(event)
    return state.dates


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_duration_is_the_kernels_own_where_it_is_plausible(case: Case) -> None:
    """The dates of busy and idle count if the log's times bound them; else the log's times do."""
    said = [status("busy", case.busy)]
    if case.name != "no idle: the kernel died":
        said.append(status("idle", case.idle))
    dates = dates_of(*said)
    ran_us = dates.run_us(at(case.queued), at(case.busy_stored), at(case.closed))
    assert ran_us == (None if case.ran is None else round(case.ran * 1000))


@pytest.mark.parametrize("date", ["", "nonsense", "99999-01-01", "1e400", 5, None])
def test_a_header_with_a_bad_date_changes_nothing(date: object) -> None:
    """A kernel may write anything into its headers."""
    message = msgspec.structs.replace(status("busy", 0), header=json.dumps({"date": date}).encode())
    dates = dates_of(message)
    assert dates.busy_us is None


def test_the_first_busy_and_the_first_idle_count() -> None:
    """Code that publishes its own status messages later cannot make its duration longer."""
    said = (("busy", 1), ("idle", 5), ("busy", 3), ("idle", 9))
    dates = dates_of(*[status(state, ms) for state, ms in said])
    assert dates.run_us(NOON_US, NOON_US, NOON_US + 10_000) == 4_000


def test_durations_are_counted_by_bucket() -> None:
    """Each duration is in the first bucket whose bound it does not exceed; what never ran is in none."""
    histogram, total = RunHistogram(), RunHistogram()
    for run_us in (500, 1_000, 22_000, 7_200_000_000, None):
        histogram.observe(run_us)
    total.add(histogram)
    total.add(histogram)
    assert dict(zip([*RUN_BOUNDS_S, None], histogram.counts, strict=True)) == {
        **dict.fromkeys(RUN_BOUNDS_S, 0),
        0.001: 2,
        0.05: 1,
        None: 1,
    }
    assert total.sum_s == pytest.approx(2 * 7200.0235)
