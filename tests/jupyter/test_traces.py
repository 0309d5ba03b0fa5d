"""The state machine on recorded traces: what it makes of them, at any point, and that each transition matters."""

from __future__ import annotations

import copy
from collections import defaultdict
from typing import Any

import pytest

from himalia.jupyter import lifecycle
from himalia.jupyter.lifecycle import ENDINGS, TRANSITIONS, RequestStage, RequestState
from himalia.jupyter.records import read_headers
from himalia.jupyter.request_events import EventKind, RequestContent, RequestEvent, record_to_event
from himalia.jupyter.timeline import KernelTimeline
from tests.jupyter import corpus

TRACES_MIN = 200
Cell = tuple[RequestStage, EventKind]


@pytest.fixture(scope="module")
def traces() -> list[corpus.Trace]:
    return corpus.traces()


@pytest.fixture(scope="module")
def expected(traces: list[corpus.Trace]) -> dict[str, Any]:
    families = {trace.about.family for trace in traces}
    return {name: requests for family in families for name, requests in corpus.expected(family).items()}


def test_the_corpus_is_large(traces: list[corpus.Trace]) -> None:
    """At least 200 recorded traces, of both kernels, no two alike; the edited ones are not counted."""
    recorded = [trace for trace in traces if trace.about.family != "edited"]
    assert len(recorded) >= TRACES_MIN
    assert {trace.about.kernel for trace in recorded} == {"python3", "xpython", "xpython-raw"}
    assert len({tuple(trace.lines) for trace in recorded}) == len(recorded)


def test_the_corpus_tells_nothing_of_the_machine(traces: list[corpus.Trace]) -> None:
    """Paths of the machine that recorded it are not in it."""
    for trace in traces:
        for line in trace.lines:
            assert "/work/" not in line and "/root" not in line and "/tmp/ht-" not in line, trace.name


def test_each_trace_gives_what_is_expected(traces: list[corpus.Trace], expected: dict[str, Any]) -> None:
    """Every request, with its stage, status, count and times, as reviewed and stored beside the traces."""
    assert expected.keys() == {trace.name for trace in traces}
    differing = [trace.name for trace in traces if corpus.results(trace) != expected[trace.name]]
    assert not differing


def test_a_fold_can_be_cut_at_any_record(traces: list[corpus.Trace]) -> None:
    """A timeline that is put aside after any record, and continued, ends like one that read all at once."""
    for trace in traces:
        if len(trace.records) > 120:
            continue  # floods: nothing but output at most places
        whole = corpus.fold(trace.records)
        timeline = KernelTimeline()
        states: dict[tuple[str, int], RequestState] = {}
        for cut, record in enumerate(trace.records):
            if cut % 7 == 0:
                timeline = copy.deepcopy(timeline)
            for state in timeline.apply(record):
                states[state.request_id, state.offset] = state
            open_now = {(state.request_id, state.offset) for state in states.values() if state.is_open}
            assert open_now == {(state.request_id, state.offset) for state in timeline.open}, (
                trace.name,
                cut,
            )
        assert list(states.values()) == whole, trace.name


def test_the_server_closed_requests_as_the_machine_would(traces: list[corpus.Trace]) -> None:
    """Where a server closed a request without a reason of its own, the topic alone gives the same status.

    It does so when the kernel is done with it or, where another server got the reply, at its idle.
    """
    closes = 0
    for trace in traces:
        if trace.about.family == "edited":
            continue
        timeline = KernelTimeline()
        before: dict[str, RequestState] = {}
        for record in trace.records:
            for state in timeline.apply(record):
                earlier = before.get(state.request_id)
                before[state.request_id] = state
                is_closing = earlier is not None and state.is_closed and not earlier.is_closed
                if not is_closing or state.origin != "queued" or state.reason:
                    continue
                assert earlier is not None
                assert earlier.stage in (RequestStage.DONE, RequestStage.IDLE), (trace.name, state.request_id)
                assert earlier.outcome == state.status, (trace.name, state.request_id)
                closes += 1
    assert closes > 500


def test_states_are_values(traces: list[corpus.Trace]) -> None:
    """Folding on changes no state that was returned before."""
    for trace in traces[::5]:
        timeline = KernelTimeline()
        seen = [(state, repr(state)) for record in trace.records for state in timeline.apply(record)]
        assert all(repr(state) == before for state, before in seen)


def applied(trace: corpus.Trace) -> list[RequestState]:
    """The states of a trace's requests if every event is applied, also those that a timeline knows to be late."""
    states: dict[str, RequestState] = {}
    for record in trace.records:
        headers = read_headers(record)
        event = record_to_event(record, headers)
        ending = ENDINGS.get(corpus.event_name(record, headers))
        if ending is not None:
            content = RequestContent(status=ending.status, reason=ending.reason)
            ended = RequestEvent(kind=EventKind.ENDED, us=record.ts_us, content=content)
            states = {request_id: state.apply(ended) for request_id, state in states.items()}
        if event is not None and event.request_id:
            state = states.get(event.request_id) or RequestState(request_id=event.request_id)
            states[event.request_id] = state.apply(event)
    return list(states.values())


class _Watched(dict[Cell, RequestStage]):
    """A table that notes which of its cells were looked up, those without a transition too."""

    def __init__(self) -> None:
        super().__init__(TRANSITIONS)
        self.used: set[Cell] = set()

    def get(self, cell: Cell, default: Any = None) -> Any:
        self.used.add(cell)
        return super().get(cell, default)


def test_every_transition_matters(
    traces: list[corpus.Trace], expected: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever cell of the table is changed, to whatever else, some trace gives another result."""
    using: dict[Cell, list[corpus.Trace]] = defaultdict(list)
    before = {trace.name: applied(trace) for trace in traces}
    for trace in sorted(traces, key=lambda trace: len(trace.lines)):
        watched = _Watched()
        monkeypatch.setattr(lifecycle, "TRANSITIONS", watched)
        corpus.fold(trace.records)
        applied(trace)
        for cell in watched.used:
            using[cell].append(trace)
    unnoticed = []
    for cell in ((stage, kind) for stage in RequestStage for kind in EventKind):
        for target in (*RequestStage, None):
            if target is TRANSITIONS.get(cell):
                continue
            changed = {**TRANSITIONS, cell: target}
            monkeypatch.setattr(lifecycle, "TRANSITIONS", changed)
            try:
                is_unnoticed = all(
                    corpus.results(trace) == expected[trace.name] and applied(trace) == before[trace.name]
                    for trace in using[cell]
                )
            except RecursionError:  # a request that closes by itself, and is open after that
                is_unnoticed = False
            if is_unnoticed:
                unnoticed.append((*cell, target))
    assert not unnoticed, "\n".join(map(str, unnoticed))
