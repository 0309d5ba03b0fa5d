"""A kernel's whole topic, folded into the states of its requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from himalia.jupyter.lifecycle import RequestOrigin, RequestStage, RequestState
from himalia.jupyter.records import read_headers, to_draft
from himalia.jupyter.request_events import record_to_event
from himalia.jupyter.timeline import KernelTimeline
from himalia.jupyter.wire import KernelMessage
from himalia.kernels.history import ExecutionBuilder
from himalia.record import Draft, Record
from tests.jupyter.request_records import KERNEL, TOPIC, error, event, iopub, message, record, stream

SECOND_US = 1_000_000


class Topic:
    """A kernel's topic as a test writes it: one record after another, and the timeline of all of them."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.timeline = KernelTimeline()
        self.closed: list[RequestState] = []
        self._us = SECOND_US

    def add(self, draft: Draft, *, later_s: float = 0.0) -> list[RequestState]:
        self._us += round(later_s * SECOND_US)
        self.records.append(record(draft, len(self.records), self._us))
        changed = self.timeline.apply(self.records[-1])
        self.closed += [state for state in changed if state.is_closed]
        return changed

    def stages(self) -> dict[str, RequestStage]:
        return {state.request_id: state.stage for state in self.timeline.open}

    def statuses(self) -> list[tuple[str, str]]:
        return [(state.request_id, str(state.status)) for state in self.closed]


@pytest.fixture
def topic() -> Topic:
    return Topic()


def status(state: str, of: str) -> Draft:
    return iopub(message("status", {"execution_state": state}, parent_id=of))


def echo(of: str, code: str = "1", count: int = 1) -> Draft:
    return iopub(message("execute_input", {"code": code, "execution_count": count}, parent_id=of))


def printed(of: str) -> Draft:
    return iopub(stream("x", parent_id=of))


def shell(said: KernelMessage, channel: str = "shell") -> Draft:
    return to_draft(said, KERNEL, channel)


def sent(request_id: str, msg_type: str = "execute_request", channel: str = "shell") -> Draft:
    return shell(message(msg_type, {"code": "1"}, parent_id="", msg_id=request_id), channel)


def replied(of: str, status: str = "ok", msg_type: str = "execute_reply", channel: str = "shell") -> Draft:
    return shell(message(msg_type, {"status": status, "execution_count": 1}, parent_id=of), channel)


def run(topic: Topic, request_id: str) -> None:
    """Bring a request of this server to where its code runs."""
    for draft in (event("request_queued", request_id), sent(request_id), status("busy", request_id)):
        topic.add(draft)
    topic.add(echo(request_id))


# Several requests at a time


def test_several_requests_in_flight(topic: Topic) -> None:
    """While code runs, requests of other types are answered, on the shell and the control socket."""
    run(topic, "code")
    topic.add(sent("complete", "complete_request"))
    topic.add(sent("info", "kernel_info_request", "control"))
    topic.add(status("busy", "info"))
    topic.add(replied("info", msg_type="kernel_info_reply", channel="control"))
    topic.add(status("idle", "info"))
    topic.add(sent("comm", "comm_msg"))
    assert topic.statuses() == [("info", "ok")]
    assert topic.stages() == {
        "code": RequestStage.RUNNING,
        "complete": RequestStage.SENT,
        "comm": RequestStage.SENT,
    }
    topic.add(replied("code"))
    topic.add(status("idle", "code"))
    for request_id in ("complete", "comm"):
        topic.add(status("busy", request_id))
    topic.add(event("request_closed", "code", status="ok"))
    topic.add(replied("complete", msg_type="complete_reply"))
    topic.add(status("idle", "complete"))
    topic.add(status("idle", "comm"))
    assert topic.statuses() == [("info", "ok"), ("code", "ok"), ("complete", "ok"), ("comm", "ok")]
    assert topic.timeline.open == []
    assert [state.is_execution for state in topic.closed] == [False, True, False, False]


def test_two_requests_that_both_run(topic: Topic) -> None:
    """A kernel with subshells runs several at a time: each has its own state."""
    run(topic, "one")
    run(topic, "two")
    topic.add(iopub(error("E")))
    topic.add(status("idle", "two"))
    topic.add(replied("two"))
    assert topic.stages() == {"one": RequestStage.RUNNING, "two": RequestStage.DONE}
    assert not any(state.has_failed for state in topic.timeline.open)


def test_a_request_of_another_client(topic: Topic) -> None:
    """It runs beside those of this server, and ends with its idle."""
    run(topic, "mine")
    topic.add(status("busy", "theirs"), later_s=1)
    assert topic.timeline.find("theirs") is None
    [state] = topic.add(echo("theirs", "their code"))
    assert (state.origin, state.code, state.offset) == (RequestOrigin.FOREIGN, "their code", 5)
    assert state.started_us == 2 * SECOND_US
    topic.add(status("idle", "theirs"))
    assert topic.statuses() == [("theirs", "ok")]
    assert topic.stages() == {"mine": RequestStage.RUNNING}


# The end of a kernel


@pytest.mark.parametrize(
    ("name", "status", "reason"),
    [
        ("died", "died", "the kernel died: killed"),
        ("stopped", "aborted", "the kernel was stopped: killed"),
        ("restarting", "aborted", "the kernel was restarted: killed"),
    ],
)
def test_the_end_of_a_kernel_closes_all_that_is_open(
    topic: Topic, name: str, status: str, reason: str
) -> None:
    """Own requests, those of other clients and those of other types: nothing answers them any more."""
    run(topic, "running")
    topic.add(event("request_queued", "waiting"))
    topic.add(sent("complete", "complete_request"))
    topic.add(echo("theirs"))
    ended = topic.add(event(name, "", reason="killed"))
    assert [state.request_id for state in ended] == ["running", "waiting", "complete", "theirs"]
    assert {(str(state.status), state.reason) for state in ended} == {(status, reason)}
    assert topic.timeline.open == []


@pytest.mark.parametrize(
    "name", ["started", "restarted", "moved", "interrupted", "reattached", "gap", "nonsense"]
)
def test_other_events_of_a_kernel_end_nothing(topic: Topic, name: str) -> None:
    """Requests go on over an interrupt, a gap, or a server that comes back."""
    run(topic, "code")
    assert topic.add(event(name, "", reason="so")) == []
    assert topic.stages() == {"code": RequestStage.RUNNING}


def test_a_deleted_topic_closes_all_that_is_open(topic: Topic) -> None:
    """What was open when the topic was deleted is stale."""
    run(topic, "code")
    [state] = topic.timeline.delete(99)
    assert (state.status, state.reason, state.closed_us) == ("stale", "the topic was deleted", 99)
    assert topic.timeline.open == []


# What comes late, and what comes early


def test_what_comes_late_changes_nothing(topic: Topic) -> None:
    """A closed request stays as it is while its records follow each other within a minute."""
    run(topic, "code")
    topic.add(event("request_closed", "code", status="timeout"))
    for late in (printed("code"), echo("code"), replied("code"), status("idle", "code")):
        assert topic.add(late, later_s=60) == []
    assert topic.statuses() == [("code", "timeout")]


def test_after_a_minute_of_silence_an_id_is_free_again(topic: Topic) -> None:
    """Then the same id is another request."""
    topic.add(echo("theirs", "first"))
    topic.add(status("idle", "theirs"))
    topic.add(echo("theirs", "second"), later_s=60.001)
    topic.add(status("idle", "theirs"))
    assert [state.code for state in topic.closed] == ["first", "second"]


@pytest.mark.parametrize("name", ["died", "stopped"])
def test_after_the_end_of_a_kernel_everything_before_is_forgotten(topic: Topic, name: str) -> None:
    """Nothing that the old process said comes after it: what comes is another request."""
    topic.add(echo("a"))
    topic.add(status("busy", "b"))
    topic.add(event(name, ""))
    topic.add(echo("a"))
    [state] = topic.add(echo("b"))
    assert topic.stages() == {"a": RequestStage.RUNNING, "b": RequestStage.RUNNING}
    assert state.started_us is None


def test_after_a_restart_late_output_is_still_late(topic: Topic) -> None:
    """The spool of the old process may be read after the restart began."""
    topic.add(echo("a"))
    topic.add(event("restarting", ""))
    assert topic.add(echo("a")) == []
    assert topic.stages() == {}


@pytest.mark.parametrize(("later_s", "started_us"), [(60.0, SECOND_US), (60.001, None)])
def test_an_early_busy_counts_for_a_minute(topic: Topic, later_s: float, started_us: int | None) -> None:
    """A message that came before its request was known counts if that is not too long ago."""
    topic.add(status("busy", "theirs"))
    [state] = topic.add(echo("theirs"), later_s=later_s)
    assert state.started_us == started_us


def test_an_early_idle_decides_nothing(topic: Topic) -> None:
    """An idle from before the request is not its end."""
    topic.add(status("idle", "theirs"))
    topic.add(echo("theirs"))
    assert topic.stages() == {"theirs": RequestStage.RUNNING}


def test_nothing_is_kept_for_ever(topic: Topic) -> None:
    """Closed requests and messages whose request never comes are dropped in time."""
    for number in range(1000):
        topic.add(echo(f"r{number}"))
        topic.add(status("idle", f"r{number}"))
        topic.add(status("busy", f"never {number}"), later_s=1)
    kept = topic.timeline
    assert len(kept._states) + len(kept._last_us) + len(kept._early) < 400
    assert len(topic.closed) == 1000


# What no record can do


def test_records_that_say_nothing(topic: Topic) -> None:
    """Output, forged events, foreign records and malformed ones change nothing, and nothing fails."""
    run(topic, "code")
    forged = message("kernel_event", {"event": "request_closed", "status": "ok"}, parent_id="code")
    dead = message("kernel_event", {"event": "died"}, parent_id="")
    headers = status("idle", "code").headers
    for draft in (
        printed("code"),
        iopub(forged),
        iopub(dead),
        Draft("bare", b"{}"),
        Draft("no json", b"\xff", b"\xff"),
        *(Draft(f"broken {n}", body, headers) for n, body in enumerate([b"", b"[]", b"{}", b"\xff"])),
    ):
        assert topic.add(draft) == []
    assert topic.stages() == {"code": RequestStage.RUNNING}


# However it is read, a topic says the same


class Step(NamedTuple):
    script: int
    later_s: float


def script_of(kind: str, request_id: str, has_failed: bool, is_closed: bool) -> list[Draft]:
    """The records of one request, in the order in which they may come."""
    status_ = "error" if has_failed else "ok"
    said = [status("busy", request_id), echo(request_id, "code"), printed(request_id)]
    if has_failed:
        said.append(
            iopub(message("error", {"ename": "E", "evalue": "", "traceback": []}, parent_id=request_id))
        )
    if kind == "own":
        close = [event("request_closed", request_id, status=status_, execution_count=1)]
        return [
            event("request_queued", request_id, code="code", timeout_s=9, caller="ann"),
            sent(request_id),
            *said,
            replied(request_id, status_),
            status("idle", request_id),
            *(close if is_closed else []),
            printed(request_id),
        ]
    if kind == "foreign":
        return [*said, status("idle", request_id)]
    if kind == "comm":
        return [sent(request_id, "comm_msg"), status("busy", request_id), status("idle", request_id)]
    return [
        sent(request_id, "complete_request"),
        status("busy", request_id),
        replied(request_id, msg_type="complete_reply"),
        status("idle", request_id),
    ]


@st.composite
def topics(draw: st.DrawFn) -> list[Record]:
    """Requests of all kinds, interleaved, with what may happen to their kernel in between."""
    kinds = draw(
        st.lists(st.sampled_from(["own", "own", "foreign", "comm", "complete"]), min_size=1, max_size=5)
    )
    scripts = [
        script_of(kind, f"r{n}", draw(st.booleans()), draw(st.booleans())) for n, kind in enumerate(kinds)
    ]
    names = draw(
        st.lists(st.sampled_from(["gap", "interrupted", "restarting", "died", "reattached"]), max_size=2)
    )
    scripts.append([event(name, "", reason="so") for name in names])
    records: list[Record] = []
    us = SECOND_US
    while any(scripts):
        script = draw(st.sampled_from([script for script in scripts if script]))
        us += round(draw(st.sampled_from([0.0, 0.0, 0.001, 1.0, 30.0])) * SECOND_US)
        records.append(record(script.pop(0), len(records), us))
    return records


def states(records: Sequence[Record]) -> tuple[list[RequestState], list[RequestState]]:
    """Those that closed, and those that are open, after these records."""
    timeline = KernelTimeline()
    closed = [state for one in records for state in timeline.apply(one) if state.is_closed]
    return closed, timeline.open


def own(states: Sequence[RequestState]) -> list[RequestState]:
    return [state for state in states if state.origin is RequestOrigin.QUEUED]


@settings(deadline=None)
@given(topics())
def test_a_result_is_what_the_timeline_says(records: list[Record]) -> None:
    """Reading one request back gives what the fold of the whole topic has of it."""
    for state in own([*states(records)[0], *states(records)[1]]):
        builder = ExecutionBuilder(state.request_id, kernel_id=KERNEL, topic=TOPIC)
        for one in records[state.offset :]:
            builder.add(one)
            if builder.is_closed:
                break
        result, summary = builder.result(), state.summary()
        for name in summary.__struct_fields__:
            if name != "has_failed":
                assert getattr(result, name) == getattr(summary, name), name


@settings(deadline=None)
@given(topics(), st.data())
def test_a_server_that_comes_back_finds_what_is_open(records: list[Record], data: st.DataObject) -> None:
    """Cut anywhere, reading from the oldest open request on finds the same open requests in the same state."""
    cut = data.draw(st.integers(0, len(records)))
    found = own(states(records[:cut])[1])
    since = min((state.offset for state in found), default=cut)
    assert own(states(records[since:cut])[1]) == found


@settings(deadline=None)
@given(topics(), st.data())
def test_a_request_that_was_taken_over_ends_as_it_is_read_back(
    records: list[Record], data: st.DataObject
) -> None:
    """Cut anywhere, the next server, which applies the rest one by one, closes each as the whole topic says."""
    cut = data.draw(st.integers(0, len(records)))
    whole = {state.request_id: state for state in [*states(records)[0], *states(records)[1]]}
    for state in own(states(records[:cut])[1]):
        for one in records[cut:]:
            found = record_to_event(one, read_headers(one))
            if found is not None and found.request_id == state.request_id:
                state = state.apply(found)
            content = decoded(one)
            if not state.is_closed and content.get("event") in ("died", "restarting"):
                state = whole[state.request_id]
        assert state == whole[state.request_id]


def decoded(one: Record) -> dict[str, Any]:
    content: dict[str, Any] = msgspec.json.decode(one.payload)["content"]
    return content
