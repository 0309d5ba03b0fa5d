"""Requests of recorded topics: results, recovery and live requests give what the machine gives of the whole topic."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from himalia.jupyter.channels import Channel
from himalia.jupyter.lifecycle import ExecutionStatus, RequestOrigin, RequestState
from himalia.jupyter.records import KernelEvent, read_headers, to_message
from himalia.jupyter.request_events import IOPUB_CHANNELS, EventKind, record_to_event
from himalia.jupyter.timeline import KernelTimeline
from himalia.kernels.history import ExecutionBuilder
from himalia.kernels.request import Request, restored_code
from himalia.record import Record
from tests.jupyter import corpus
from tests.kernels.test_request import Changes


@pytest.fixture(scope="module")
def traces() -> list[corpus.Trace]:
    """Those of real kernels: in edited ones a request may have records from before it was queued."""
    return [trace for trace in corpus.traces() if trace.about.family != "edited"]


def own(states: Sequence[RequestState]) -> list[RequestState]:
    return [state for state in states if state.origin is RequestOrigin.QUEUED]


def open_requests(records: Sequence[Record]) -> list[RequestState]:
    timeline = KernelTimeline()
    for record in records:
        timeline.apply(record)
    return own(timeline.open)


def test_results_are_what_the_topic_says(traces: list[corpus.Trace]) -> None:
    """Each request that was queued here is read back as the fold of its kernel's whole topic has it."""
    checked = 0
    for trace in traces:
        for state in own(corpus.fold(trace.records)):
            result, summary = read_back(trace, state), state.summary()
            shown = {
                name: getattr(result, name) for name in summary.__struct_fields__ if name != "has_failed"
            }
            assert shown == {name: getattr(summary, name) for name in shown}, (trace.name, state.request_id)
            checked += 1
    assert checked > len(traces)


def read_back(trace: corpus.Trace, state: RequestState) -> object:
    builder = ExecutionBuilder(state.request_id, kernel_id="k", topic=trace.topic)
    for record in trace.records[state.offset - trace.records[0].offset :]:
        builder.add(record)
        if builder.is_closed:
            break
    return builder.result()


def test_recovery_may_begin_where_the_newest_event_says(traces: list[corpus.Trace]) -> None:
    """Cut anywhere, the records since ``open_since`` have every open request, in the state of the whole topic."""
    for trace in traces:
        since = None
        for cut, record in enumerate(trace.records):
            since = open_since(record, since)
            if cut % 5 == 0 and since is not None and len(trace.records) < 500:
                read = [one for one in trace.records[: cut + 1] if one.offset >= since]
                assert open_requests(read) == open_requests(trace.records[: cut + 1]), (trace.name, cut)


def open_since(record: Record, before: int | None) -> int | None:
    event = record_to_event(record, read_headers(record))
    if event is None or event.kind not in (EventKind.QUEUED, EventKind.CLOSED):
        return before
    content = to_message(record).decoded_content()
    assert content["event"] in (KernelEvent.REQUEST_QUEUED, KernelEvent.REQUEST_CLOSED)
    since = content.get("open_since")
    return min(since, record.offset) if isinstance(since, int) else record.offset


async def test_a_live_request_ends_as_it_was_recorded(traces: list[corpus.Trace]) -> None:
    """The messages of a request, given to a live one, bring it to the end that the server of the time recorded."""
    statuses: list[ExecutionStatus] = []
    for trace in traces:
        for recorded in own(corpus.fold(trace.records)):
            if recorded.reason or not recorded.is_closed:
                continue  # closed for another reason than that the kernel was done with it
            request = replayed(trace, recorded)
            assert request.state.is_done, (trace.name, recorded.request_id)
            assert request.state.outcome is recorded.status, (trace.name, recorded.request_id)
            statuses.append(recorded.status)
    assert set(statuses) >= {ExecutionStatus.OK, ExecutionStatus.ERROR}


def replayed(trace: corpus.Trace, recorded: RequestState) -> Request:
    queued = RequestState(request_id=recorded.request_id)
    request = Request(restored_code(recorded), Changes(), queued)
    for record in records_until_close(trace, recorded):
        headers = read_headers(record)
        event = record_to_event(record, headers)
        if event is None or event.request_id != recorded.request_id:
            continue
        if headers.channel in IOPUB_CHANNELS:
            request.deliver(to_message(record, headers), Channel(headers.channel), 0)
        else:
            request.apply(event)
    if not has_reply(trace, recorded):
        request.state = request.state.without_reply()
    return request


def has_reply(trace: corpus.Trace, recorded: RequestState) -> bool:
    """Whether its reply is in the topic; the reply to an earlier server is not."""
    events = (record_to_event(record, read_headers(record)) for record in trace.records)
    return any(
        event is not None and event.kind is EventKind.REPLY and event.request_id == recorded.request_id
        for event in events
    )


def records_until_close(trace: corpus.Trace, recorded: RequestState) -> Iterator[Record]:
    for record in trace.records:
        event = record_to_event(record, read_headers(record))
        if event is not None and event.kind is EventKind.CLOSED and event.request_id == recorded.request_id:
            return
        yield record
