"""The life of a request: each transition of its table, and that no transition can change unnoticed."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from himalia.jupyter import lifecycle
from himalia.jupyter.lifecycle import (
    DELETED,
    DONE_STAGES,
    ENDINGS,
    TRANSITIONS,
    RequestOrigin,
    RequestStage,
    RequestState,
)
from himalia.jupyter.records import read_headers, to_draft
from himalia.jupyter.request_events import (
    EventKind,
    RequestContent,
    RequestEvent,
    record_to_event,
    to_event,
)
from himalia.jupyter.wire import KernelMessage
from himalia.protocol.models import ExecutionStatus
from himalia.record import Draft
from tests.jupyter.request_records import (
    REQUEST,
    error,
    event,
    iopub,
    message,
    record,
    reply,
    request,
    result,
    status,
    stream,
)

UNKNOWN, QUEUED, SENT, BUSY, RUNNING, IDLE, REPLIED, DONE, CLOSED = RequestStage


def happens(kind: EventKind, us: int = 0, **content: object) -> RequestEvent:
    return RequestEvent(kind=kind, request_id=REQUEST, us=us, content=RequestContent(**content))


def after(*kinds: EventKind, state: RequestState | None = None) -> RequestState:
    """A request after these events, one microsecond apart."""
    state = state or RequestState(request_id=REQUEST)
    for us, kind in enumerate(kinds, start=1):
        state = state.apply(happens(kind, us))
    return state


# The table


def documented() -> dict[tuple[RequestStage, EventKind], RequestStage | None]:
    """The table of the module's docstring; None where an event changes nothing."""
    assert lifecycle.__doc__ is not None
    rows = [line.split() for line in lifecycle.__doc__.split("\n\n")[3].splitlines()]
    _, (_, *kinds), _, *stages, _ = rows
    return {
        (RequestStage(stage), EventKind(kind)): None if target == "-" else RequestStage(target)
        for stage, *targets in stages
        for kind, target in zip(kinds, targets, strict=True)
    }


WAYS: dict[RequestStage, tuple[EventKind, ...]] = {
    UNKNOWN: (),
    QUEUED: (EventKind.QUEUED,),
    SENT: (EventKind.QUEUED, EventKind.SENT),
    BUSY: (EventKind.QUEUED, EventKind.SENT, EventKind.BUSY),
    RUNNING: (EventKind.QUEUED, EventKind.SENT, EventKind.BUSY, EventKind.INPUT),
    IDLE: (EventKind.QUEUED, EventKind.SENT, EventKind.BUSY, EventKind.INPUT, EventKind.IDLE),
    REPLIED: (EventKind.QUEUED, EventKind.SENT, EventKind.BUSY, EventKind.INPUT, EventKind.REPLY),
    DONE: (
        EventKind.QUEUED,
        EventKind.SENT,
        EventKind.BUSY,
        EventKind.INPUT,
        EventKind.IDLE,
        EventKind.REPLY,
    ),
    CLOSED: (EventKind.QUEUED, EventKind.CLOSED),
}
"""How a request that is queued here comes to each stage."""


def test_the_docstring_has_the_whole_table() -> None:
    """The table that a reader finds is the table that the code runs on."""
    table = documented()
    assert table.keys() == set(itertools.product(RequestStage, EventKind))
    assert {key: target for key, target in table.items() if target is not None} == TRANSITIONS


@pytest.mark.parametrize(("stage", "kind"), list(itertools.product(RequestStage, EventKind)))
def test_each_transition(stage: RequestStage, kind: EventKind) -> None:
    """From each stage each event leads to the stage that the table says, or changes nothing at all."""
    before = after(*WAYS[stage])
    assert before.stage is stage
    expected = documented()[stage, kind]
    changed = before.apply(happens(kind, 100))
    if expected is None:
        assert changed == before
    else:
        assert changed.stage is expected


# Stories: what comes of the transitions, without a look at the table


class Story(NamedTuple):
    """What a request is after some events: its stage, whether the kernel has it, and how it was closed."""

    kinds: Sequence[EventKind]
    stage: RequestStage
    was_sent: bool = True
    is_done: bool = False
    status: str = "running"
    is_adopted: bool = False
    """An earlier server sent it, and got its reply."""


Q, S, B, I, E, X, D, R, C = (  # noqa: E741
    EventKind.QUEUED,
    EventKind.SENT,
    EventKind.BUSY,
    EventKind.INPUT,
    EventKind.ERROR,
    EventKind.RESULT,
    EventKind.IDLE,
    EventKind.REPLY,
    EventKind.CLOSED,
)
END = EventKind.ENDED

STORIES = [
    # As this server runs it.
    Story((Q,), QUEUED, was_sent=False),
    Story((Q, S), SENT),
    Story((Q, S, B), BUSY),
    Story((Q, S, B, I), RUNNING),
    Story((Q, S, B, I, X), RUNNING),
    Story((Q, S, B, I, E), RUNNING),
    Story((Q, S, B, I, D), IDLE),
    Story((Q, S, B, I, R), REPLIED),
    Story((Q, S, B, I, R, D), DONE, is_done=True),
    Story((Q, S, B, I, D, R), DONE, is_done=True),
    Story((Q, S, B, I, D, R, C), CLOSED, status="error"),
    # The kernel's messages may be stored before the request: its thread is another.
    Story((Q, B, S), BUSY),
    Story((Q, B, I, S), RUNNING),
    Story((Q, B, I, D, S), IDLE),
    Story((Q, B, I, D, S, R), DONE, is_done=True),
    Story((Q, I), RUNNING),
    Story((Q, D), IDLE),
    Story((Q, R), REPLIED),
    Story((Q, R, S), REPLIED),
    # Silent code is not repeated; an aborted request is not even busy for long.
    Story((Q, S, B, D), IDLE),
    Story((Q, S, B, R), REPLIED),
    Story((Q, S, R), REPLIED),
    Story((Q, S, D), IDLE),
    Story((Q, S, I), RUNNING),
    # Closed at any time: cancelled, timed out, stale, or its kernel ended.
    *(Story((*way, C), CLOSED, status="error") for stage, way in WAYS.items() if stage is not UNKNOWN),
    *(Story((*way, END), CLOSED, status="error") for stage, way in WAYS.items() if stage is not UNKNOWN),
    # Code in a kernel publishes what it likes: no message takes a request back.
    *(Story((*WAYS[SENT], kind), SENT) for kind in (Q, S, X, E)),
    *(Story((*WAYS[QUEUED], kind), QUEUED, was_sent=False) for kind in (Q, X, E)),
    *(Story((*WAYS[BUSY], kind), BUSY) for kind in (Q, S, B, X, E)),
    *(Story((*WAYS[RUNNING], kind), RUNNING) for kind in (Q, S, B, I, X, E)),
    *(Story((*WAYS[IDLE], kind), IDLE) for kind in (Q, S, B, I, X, E, D)),
    *(Story((*WAYS[REPLIED], kind), REPLIED) for kind in (Q, S, B, I, X, E, R)),
    *(Story((*WAYS[DONE], kind), DONE, is_done=True) for kind in (Q, S, B, I, X, E, D, R)),
    # Another client's request is known by its input; its end closes it.
    Story((B,), UNKNOWN, was_sent=False),
    Story((D,), UNKNOWN, was_sent=False),
    Story((X,), UNKNOWN, was_sent=False),
    Story((E, R, C, END), UNKNOWN, was_sent=False),
    Story((B, I), RUNNING),
    Story((B, I, R), REPLIED),
    Story((B, I, D), CLOSED, status="ok"),
    Story((B, I, E, D), CLOSED, status="error"),
    Story((B, I, R, D), CLOSED, status="ok"),
    # A request that did not wait here has a reply that comes here, too.
    Story((S, B, I, D), IDLE),
    Story((S, B, I, D, R), CLOSED, status="ok"),
    Story((S, B, I, R, D), CLOSED, status="ok"),
    Story((I, S, D), IDLE),
    Story((S,), SENT),
    # Under a later server, nothing but idle is awaited.
    *(
        Story(WAYS[stage], stage, was_sent=stage is not QUEUED, is_adopted=True)
        for stage in (QUEUED, SENT, BUSY)
    ),
    *(Story(WAYS[stage], stage, is_adopted=True) for stage in (RUNNING, REPLIED)),
    *(Story(WAYS[stage], stage, is_done=True, is_adopted=True) for stage in (IDLE, DONE)),
]


def check_story(story: Story) -> None:
    state = after(*story.kinds)
    if story.is_adopted:
        state = state.without_reply()
    assert state.stage is story.stage
    assert (state.was_sent or state.is_closed) == story.was_sent
    assert state.is_done == story.is_done
    assert state.status == story.status


@pytest.mark.parametrize("story", STORIES, ids=lambda story: " ".join(story.kinds))
def test_a_story(story: Story) -> None:
    """What a request is after some events follows from them alone."""
    check_story(story)


NOTES: dict[EventKind, Callable[[RequestState], object]] = {
    Q: lambda state: state.caller == "ann",
    S: lambda state: state.silent,
    B: lambda state: state.dates.busy_us == 7,
    I: lambda state: state.execution_count == 5,
    X: lambda state: state.execution_count == 5,
    E: lambda state: state.has_failed,
    D: lambda state: state.dates.idle_us == 7,
    R: lambda state: state.reply_status is ExecutionStatus.ABORTED,
}
"""What each event adds to a state, whatever its stage, until the request is closed."""
NOTED = [
    *itertools.product((QUEUED, SENT, BUSY, RUNNING, IDLE, REPLIED, DONE), NOTES),
    *itertools.product((UNKNOWN,), (Q, S, B, I, X, D)),
]


def check_noted(stage: RequestStage, kind: EventKind) -> None:
    content = RequestContent(caller="ann", silent=True, execution_count=5, status="aborted")
    before = after(*WAYS[stage])
    said = RequestEvent(kind=kind, request_id=REQUEST, us=100, date_us=7, content=content)
    assert NOTES[kind](before.apply(said))
    assert kind is R or not NOTES[kind](before)


@pytest.mark.parametrize(("stage", "kind"), NOTED)
def test_what_an_event_says_counts_until_the_close(stage: RequestStage, kind: EventKind) -> None:
    """Also what does not change the stage is kept, in whatever order it comes."""
    check_noted(stage, kind)


# Nothing in the data that decides can change without a story that notices


Mutation = Callable[[pytest.MonkeyPatch], None]


def fails() -> bool:
    try:
        for story in STORIES:
            check_story(story)
        for stage, kind in NOTED:
            check_noted(stage, kind)
    except AssertionError:
        return True
    return False


def mutations() -> Iterator[tuple[str, Mutation]]:
    for (stage, kind), target in TRANSITIONS.items():
        for other in [one for one in RequestStage if one is not target]:
            yield (
                f"{stage} {kind} -> {other}",
                lambda m, k=(stage, kind), o=other: m.setitem(TRANSITIONS, k, o),
            )
        yield f"{stage} {kind} -> nothing", lambda m, k=(stage, kind): m.delitem(TRANSITIONS, k)
    for stage, kind in itertools.product(RequestStage, EventKind):
        if (stage, kind) not in TRANSITIONS and stage is not CLOSED:
            yield f"{stage} {kind} -> idle", lambda m, k=(stage, kind): m.setitem(TRANSITIONS, k, IDLE)
    for awaits_reply, stages in DONE_STAGES.items():
        for stage in RequestStage:
            if stage in (UNKNOWN, CLOSED):
                continue  # neither has an event that would ask
            changed = stages ^ {stage}
            yield (
                f"done at {awaits_reply} {sorted(changed)}",
                lambda m, k=awaits_reply, v=changed: m.setitem(DONE_STAGES, k, v),
            )


def test_every_mutation_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Changing the target of any transition, or leaving it out, makes at least one story fail."""
    assert not fails()
    unnoticed = []
    for name, mutate in list(mutations()):
        with monkeypatch.context() as patch:
            mutate(patch)
            if not fails():
                unnoticed.append(name)
    assert not unnoticed


# What the events say beside the stage


def told(*drafts: Draft) -> RequestState:
    """A request after these records, one second apart."""
    state = RequestState(request_id=REQUEST)
    for offset, draft in enumerate(drafts):
        one = record(draft, offset, offset * 1_000_000 + 1_000_000)
        said = record_to_event(one, read_headers(one))
        if said is not None:
            state = state.apply(said)
    return state


def test_a_whole_request() -> None:
    """Everything that a reader is shown of a request comes from its records."""
    state = told(
        event("request_queued", code="1 + 1", priority=3, timeout_s=9, caller="ann"),
        request("1 + 1"),
        iopub(status("busy")),
        iopub(message("execute_input", {"code": "1 + 1", "execution_count": 4})),
        iopub(stream("output is not looked at")),
        iopub(result({"text/plain": "2"}, 4)),
        reply({"status": "ok", "execution_count": 4}),
        iopub(status("idle")),
        event("request_closed", status="ok", reason="", execution_count=4),
    )
    summary = state.summary()
    assert (summary.status, summary.code, summary.caller, summary.execution_count) == (
        "ok",
        "1 + 1",
        "ann",
        4,
    )
    times = (summary.queued_us, summary.sent_us, summary.started_us, summary.finished_us)
    assert times == (1_000_000, 2_000_000, 3_000_000, 9_000_000)
    assert (summary.run_us, summary.has_failed) == (6_000_000, False)
    assert (state.priority, state.timeout_s, state.offset) == (3, 9, 0)
    assert state.origin is RequestOrigin.QUEUED


def test_the_close_reports_the_times_of_its_server() -> None:
    """Times that the closing record has go before those of the log; the log's are kept beside."""
    closed = event("request_closed", status="ok", queued_us=10, sent_us=20, started_us=30, finished_us=40)
    state = told(event("request_queued"), closed)
    summary = state.summary()
    times = (summary.queued_us, summary.sent_us, summary.started_us, summary.finished_us)
    assert times == (10, 20, 30, 40)
    assert (state.queued_us, state.closed_us) == (1_000_000, 2_000_000)


@pytest.mark.parametrize(
    ("content", "outcome"),
    [
        ({"status": "ok"}, "ok"),
        ({"status": "error"}, "error"),
        ({"status": "aborted"}, "aborted"),
        ({"status": "abort"}, "ok"),
        ({"status": "died"}, "ok"),
        ({"status": ["error"]}, "ok"),
        ({}, "ok"),
    ],
)
def test_the_reply_says_how_code_ended(content: dict[str, object], outcome: str) -> None:
    """Its status counts, whatever was published; one that is no status of a reply is success."""
    state = told(request(), iopub(error()), reply(content), iopub(status("idle")))
    assert (state.is_closed, state.status) == (True, outcome)


def test_without_a_reply_an_error_says_it() -> None:
    """Under a later server the reply is lost: the output tells."""
    state = told(event("request_queued"), request(), iopub(status("busy")), iopub(error()))
    state = state.without_reply()
    assert not state.is_done
    state = state.apply(happens(EventKind.IDLE))
    assert (state.is_done, state.outcome) == (True, "error")


@pytest.mark.parametrize("status", ["running", "nonsense", None, 5, ["ok"]])
def test_a_close_is_an_end_whatever_it_says(status: object) -> None:
    """A closed request is never open or running: a status that is none is an error."""
    state = told(event("request_queued"), event("request_closed", status=status, reason=7))
    assert (state.is_closed, state.status, state.reason) == (True, "error", "")


@pytest.mark.parametrize("ending", [*ENDINGS.values(), DELETED], ids=lambda ending: ending.reason)
def test_the_end_of_its_kernel_closes_a_request(ending: lifecycle.Ending) -> None:
    """It has the status of that end, and the reason."""
    state = told(event("request_queued")).end(ending, 50, "so")
    assert (state.status, state.reason, state.closed_us) == (ending.status, f"{ending.reason}: so", 50)
    assert told(event("request_queued")).end(ending, 50).reason == ending.reason


def test_what_comes_late_changes_nothing() -> None:
    """After the close every event leaves the state as it is."""
    closed = told(event("request_queued"), event("request_closed", status="timeout"))
    for kind in EventKind:
        assert closed.apply(happens(kind, 99, code="other", execution_count=9, status="ok")) is closed


def test_the_first_code_and_sender_count() -> None:
    """Code in a kernel can repeat other code under the id of a request: that changes nothing."""
    forged = iopub(message("execute_input", {"code": "forged", "execution_count": 1}))
    state = told(event("request_queued", code="mine", caller="ann"), forged)
    assert (state.code, state.username, state.caller) == ("mine", "ann", "ann")


def test_a_request_of_another_client_is_known_by_what_the_kernel_says() -> None:
    """Its code and sender come from the kernel, which the username tells."""
    said = message("execute_input", {"code": "theirs", "execution_count": 1})
    parent = b'{"msg_id": "request-1", "username": "bob", "session": "s1"}'
    state = told(
        iopub(status("busy")),
        iopub(msgspec.structs.replace(said, parent_header=parent)),
        iopub(status("idle")),
    )
    assert (state.code, state.username, state.session, state.caller) == ("theirs", "foreign:bob", "s1", "")
    assert (state.origin, state.status, state.started_us) == (RequestOrigin.FOREIGN, "ok", 1_000_000)
    assert state.offset == 1


def test_requests_other_than_execute() -> None:
    """They are done with idle and their own reply; a comm message has no reply."""
    complete = told(
        shell(message("complete_request", {"code": "a."}, parent_id="", msg_id=REQUEST)),
        iopub(status("busy")),
        iopub(status("idle")),
    )
    assert (complete.stage, complete.is_execution) == (IDLE, False)
    complete = complete.apply(said(message("complete_reply", {"status": "ok"}), "shell"))
    assert (complete.is_closed, complete.status) == (True, "ok")
    comm = told(
        shell(message("comm_msg", {"comm_id": "c"}, parent_id="", msg_id=REQUEST)),
        iopub(status("busy")),
        iopub(status("idle")),
    )
    assert (comm.is_closed, comm.status, comm.request_type) == (True, "ok", "comm_msg")


def shell(one: KernelMessage) -> Draft:
    return to_draft(one, "k1", "shell")


def said(one: KernelMessage, channel: str) -> RequestEvent:
    found = to_event(one, channel)
    assert found is not None
    return found


# What is no event


@pytest.mark.parametrize(
    ("msg_type", "content", "channel"),
    [
        ("stream", {"name": "stdout", "text": "x"}, "stream"),
        ("display_data", {"data": {}}, "display"),
        ("status", {"execution_state": "starting"}, "status"),
        ("status", {"execution_state": ["idle"]}, "status"),
        ("status", {}, "status"),
        ("status", b"[]", "status"),
        ("status", b"\xff", "status"),
        ("kernel_event", {"event": "request_closed", "status": "ok"}, "execution"),
        ("kernel_event", {"event": "moved"}, "kernel"),
        ("kernel_event", {"event": ["request_closed"]}, "kernel"),
        ("kernel_event", {}, "kernel"),
        ("other", {"event": "request_closed"}, "kernel"),
        ("execute_reply", {"status": "ok"}, "execution"),
        ("execute_request", {"code": "x"}, "execution"),
        ("comm_msg", {"comm_id": "c"}, "comm"),
        ("input_request", {"prompt": "?"}, "stdin"),
        ("input_reply", {"value": "x"}, "stdin"),
        ("status", {"execution_state": "idle"}, "shell"),
        ("error", {"ename": "E"}, "shell"),
    ],
)
def test_what_is_no_event(msg_type: str, content: dict[str, object] | bytes, channel: str) -> None:
    """Output, malformed messages and messages on a channel that is not theirs change no request."""
    assert to_event(message(msg_type, content), channel) is None


@given(
    st.sampled_from(["status", "execute_input", "execute_result", "error", "execute_reply", "kernel_event"]),
    st.sampled_from(["status", "execution", "shell", "control", "kernel"]),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text() | st.sampled_from(["busy", "request_closed"]),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    ["execution_state", "event", "status", "code", "execution_count", "timeout_s"]
                ),
                inner,
            )
        ),
        max_leaves=8,
    ),
)
def test_no_content_can_break_the_machine(msg_type: str, channel: str, content: object) -> None:
    """Whatever a kernel writes, its message is an event or none, and the state has the types that it declares."""
    found = to_event(message(msg_type, msgspec.json.encode(content)), channel)
    if found is not None:
        state = after(Q, S).apply(found)
        assert msgspec.convert(msgspec.to_builtins(state), RequestState) == state


# Live, a request's messages come by two sockets


@given(st.data())
def test_the_order_between_the_sockets_does_not_matter(data: st.DataObject) -> None:
    """However the messages of IOPub and of the shell interleave, the request is done, and shown the same."""
    has_failed = data.draw(st.booleans())
    published = [happens(B, 20), happens(I, 30, execution_count=2), happens(D, 50)]
    if has_failed:
        published.insert(2, happens(E, 40))
    sent = [happens(S, 10), happens(R, 60, status="error" if has_failed else "ok", execution_count=2)]
    merged = merge(data, published, sent)
    state = after(Q)
    for one in merged:
        state = state.apply(one)
    assert state.is_done
    expected = after(Q)
    for one in [sent[0], *published, sent[1]]:
        expected = expected.apply(one)
    assert state == expected
    assert state.close(70, state.outcome).summary() == expected.close(70, expected.outcome).summary()
    assert state.outcome is (ExecutionStatus.ERROR if has_failed else ExecutionStatus.OK)


def merge(
    data: st.DataObject, one: Sequence[RequestEvent], other: Sequence[RequestEvent]
) -> list[RequestEvent]:
    merged, left, right = [], list(one), list(other)
    while left or right:
        is_left = bool(left) and (not right or data.draw(st.booleans()))
        merged.append((left if is_left else right).pop(0))
    return merged
