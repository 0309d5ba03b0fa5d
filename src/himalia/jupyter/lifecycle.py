"""The life cycle of a request: one state machine, used live, after a crash, and to read results back.

A request is what a client sends to a kernel: code to run (``execute_request``), or any other request of the shell and
control sockets. Its state is a value. ``RequestState.apply`` returns the state after one more event and does no I/O;
the order of events is the order of the kernel's topic.

Rows are the stages, columns the events, entries the next stage. Where that is the same stage, the event changes other
fields only, such as times; ``-`` is an event that changes nothing at all:

======== ======= ======= ======= ======= ======= ======= ======= ======= ======= =======
stage    queued  sent    busy    input   result  error   idle    reply   closed  ended
======== ======= ======= ======= ======= ======= ======= ======= ======= ======= =======
unknown  queued  sent    unknown running unknown -       unknown -       -       -
queued   queued  sent    busy    running queued  queued  idle    replied closed  closed
sent     sent    sent    busy    running sent    sent    idle    replied closed  closed
busy     busy    busy    busy    running busy    busy    idle    replied closed  closed
running  running running running running running running idle    replied closed  closed
idle     idle    idle    idle    idle    idle    idle    idle    done    closed  closed
replied  replied replied replied replied replied replied done    replied closed  closed
done     done    done    done    done    done    done    done    done    closed  closed
closed   -       -       -       -       -       -       -       -       -       -
======== ======= ======= ======= ======= ======= ======= ======= ======= ======= =======

- A request that was queued here is closed by its server, with ``request_closed``. Any other closes by itself as soon
  as the kernel is done with it: at its idle or, where the reply comes to this server, at idle and reply.
- A request that is open when its kernel ends closes with the status of that end (``ENDINGS``).
- A request becomes known by its ``request_queued``, by the request itself, or, if another client sent it, by the
  kernel's ``execute_input``. Messages of the kernel that came before count for its times, but decide nothing.
- An event after the close is late, and changes nothing.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

from himalia.jupyter.duration import StatusDates
from himalia.jupyter.records import KernelEvent, event_draft
from himalia.jupyter.request_events import (
    EXECUTE_REQUEST,
    EventKind,
    RequestContent,
    RequestEvent,
    int_or_none,
    text_or_none,
)
from himalia.protocol.models import ExecutionStatus as ExecutionStatus
from himalia.record import Draft


class RequestStage(StrEnum):
    UNKNOWN = "unknown"
    """No record so far shows that there is such a request."""
    QUEUED = "queued"
    """It waits in the server's queue."""
    SENT = "sent"
    BUSY = "busy"
    """The kernel has begun to process it. An interrupt may still come too early to stop its code."""
    RUNNING = "running"
    """The kernel has repeated the code that it runs."""
    IDLE = "idle"
    """The kernel is idle again; its reply is missing."""
    REPLIED = "replied"
    """The kernel has replied; its idle is missing."""
    DONE = "done"
    """The kernel is idle again, and has replied."""
    CLOSED = "closed"


def _transitions() -> dict[tuple[RequestStage, EventKind], RequestStage]:
    unknown, queued, sent, busy, running, idle, replied, done, closed = RequestStage
    none = None
    # fmt: off
    rows: dict[RequestStage, tuple[RequestStage | None, ...]] = {
        # stage   queued   sent     busy     input    result   error    idle     reply    closed  ended
        unknown: (queued,  sent,    unknown, running, unknown, none,    unknown, none,    none,   none),
        queued:  (queued,  sent,    busy,    running, queued,  queued,  idle,    replied, closed, closed),
        sent:    (sent,    sent,    busy,    running, sent,    sent,    idle,    replied, closed, closed),
        busy:    (busy,    busy,    busy,    running, busy,    busy,    idle,    replied, closed, closed),
        running: (running, running, running, running, running, running, idle,    replied, closed, closed),
        idle:    (idle,    idle,    idle,    idle,    idle,    idle,    idle,    done,    closed, closed),
        replied: (replied, replied, replied, replied, replied, replied, done,    replied, closed, closed),
        done:    (done,    done,    done,    done,    done,    done,    done,    done,    closed, closed),
    }
    # fmt: on
    return {
        (stage, kind): target
        for stage, targets in rows.items()
        for kind, target in zip(EventKind, targets, strict=True)
        if target is not None
    }


TRANSITIONS = _transitions()
"""The table above. An event without an entry changes nothing at all."""

DONE_STAGES = {
    True: frozenset({RequestStage.DONE}),
    False: frozenset({RequestStage.IDLE, RequestStage.DONE}),
}
"""Where the kernel is done with a request, by whether its reply comes to this server."""


class Ending(msgspec.Struct, frozen=True):
    """An event after which nothing that ran continues."""

    status: ExecutionStatus
    """How it closes the requests that are open."""
    reason: str
    is_final: bool
    """Whether all output so far came before it: nothing has to be remembered of that."""

    def describe(self, detail: str) -> str:
        """Return the reason of the requests that it closes."""
        return f"{self.reason}: {detail}" if detail else self.reason


ENDINGS: dict[str, Ending] = {
    KernelEvent.DIED: Ending(ExecutionStatus.DIED, "the kernel died", is_final=True),
    KernelEvent.STOPPED: Ending(ExecutionStatus.ABORTED, "the kernel was stopped", is_final=True),
    KernelEvent.RESTARTING: Ending(ExecutionStatus.ABORTED, "the kernel was restarted", is_final=False),
}
DELETED = Ending(ExecutionStatus.STALE, "the topic was deleted", is_final=True)


class RequestOrigin(StrEnum):
    """How a request came to the kernel."""

    FOREIGN = "foreign"
    """Another client sent it, and gets the reply."""
    SENT = "sent"
    """It was sent by way of this server, without waiting here."""
    QUEUED = "queued"
    """It waited in the server's queue; the server closes it."""


class ReportedTimes(msgspec.Struct, frozen=True, gc=False):
    """The times that ``request_closed`` reports, by the clock of the server that wrote it."""

    queued_us: int | None = None
    sent_us: int | None = None
    started_us: int | None = None
    finished_us: int | None = None


class RequestSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A request without its outputs, as readers get it. Times are microseconds since 1970."""

    request_id: str
    status: ExecutionStatus
    reason: str
    code: str
    caller: str
    execution_count: int | None
    has_failed: bool
    queued_us: int | None
    sent_us: int | None
    started_us: int | None
    finished_us: int | None
    run_us: int | None


class RequestState(msgspec.Struct, frozen=True, kw_only=True):
    """A request after the events so far. The table of its stages is at the top of this module.

    The times are those of the records or, live, those of the server.
    """

    request_id: str
    request_type: str = EXECUTE_REQUEST
    stage: RequestStage = RequestStage.UNKNOWN
    origin: RequestOrigin = RequestOrigin.FOREIGN
    awaits_reply: bool = False
    """Whether its reply comes to this server."""
    offset: int = -1
    """Of the record by which it became known."""
    code: str | None = None
    silent: bool = False
    priority: int = 0
    timeout_s: float | None = None
    caller: str = ""
    """The caller who had it queued; empty for any other request."""
    username: str | None = None
    """Who sent it, if records name that; prefixed with ``foreign:`` if only the kernel reports it."""
    session: str | None = None
    queued_us: int | None = None
    sent_us: int | None = None
    started_us: int | None = None
    closed_us: int | None = None
    dates: StatusDates = StatusDates()
    execution_count: int | None = None
    has_failed: bool = False
    """Whether the kernel has published an error of it."""
    reply_status: ExecutionStatus | None = None
    status: ExecutionStatus = ExecutionStatus.RUNNING
    reason: str = ""
    reported: ReportedTimes = ReportedTimes()

    @property
    def is_known(self) -> bool:
        return self.stage is not RequestStage.UNKNOWN

    @property
    def is_closed(self) -> bool:
        return self.stage is RequestStage.CLOSED

    @property
    def is_open(self) -> bool:
        return self.is_known and not self.is_closed

    @property
    def was_sent(self) -> bool:
        """Whether the kernel has it, as far as records show."""
        return self.stage not in (RequestStage.UNKNOWN, RequestStage.QUEUED)

    @property
    def is_execution(self) -> bool:
        return self.request_type == EXECUTE_REQUEST

    @property
    def is_done(self) -> bool:
        """Whether the kernel is done with it, and nothing more is awaited of it."""
        return self.stage in DONE_STAGES[self.awaits_reply]

    @property
    def outcome(self) -> ExecutionStatus:
        """The status by its reply or, without one, by its output."""
        if self.reply_status is not None:
            return self.reply_status
        return ExecutionStatus.ERROR if self.has_failed else ExecutionStatus.OK

    @property
    def run_us(self) -> int | None:
        """How long it ran; None if it never started or is not closed. See ``duration``."""
        return self.dates.run_us(self.queued_us or self.sent_us, self.started_us, self.closed_us)

    def apply(self, event: RequestEvent) -> RequestState:
        """Return the state after one more event of this request."""
        state = self._step(event)
        if state.is_done and state.origin is not RequestOrigin.QUEUED:
            return state.close(event.us, state.outcome)
        return state

    def close(self, us: int, status: ExecutionStatus, reason: str = "") -> RequestState:
        """Return the state after a close at this time."""
        content = RequestContent(status=status, reason=reason)
        return self._step(RequestEvent(kind=EventKind.CLOSED, us=us, content=content))

    def end(self, ending: Ending, us: int, detail: str = "") -> RequestState:
        """Return the state after such an end of its kernel."""
        content = RequestContent(status=ending.status, reason=ending.describe(detail))
        return self._step(RequestEvent(kind=EventKind.ENDED, us=us, content=content))

    def _step(self, event: RequestEvent) -> RequestState:
        stage = TRANSITIONS.get((self.stage, event.kind))
        if stage is None:
            return self
        changes = _CHANGES[event.kind](self, event)
        changes["stage"] = stage
        if not self.is_known and stage is not RequestStage.UNKNOWN:
            changes["offset"] = event.offset
        state: RequestState = msgspec.structs.replace(self, **changes)
        return state

    def without_reply(self) -> RequestState:
        """Return the state for a server that does not get the reply, because an earlier one sent the request."""
        state: RequestState = msgspec.structs.replace(self, awaits_reply=False)
        return state

    def summary(self) -> RequestSummary:
        """Return what readers get of it. Times that its server reported go before those of its records."""
        reported = self.reported
        return RequestSummary(
            request_id=self.request_id,
            status=self.status,
            reason=self.reason,
            code=self.code or "",
            caller=self.caller,
            execution_count=self.execution_count,
            has_failed=self.has_failed,
            queued_us=reported.queued_us or self.queued_us or self.sent_us,
            sent_us=reported.sent_us or self.sent_us,
            started_us=reported.started_us or self.started_us,
            finished_us=reported.finished_us or self.closed_us,
            run_us=self.run_us,
        )


# What each event changes in addition to the stage


def _queued(state: RequestState, event: RequestEvent) -> dict[str, Any]:
    content = event.content
    timeout_s = content.timeout_s
    return {
        **_code_and_sender(state, event),
        "origin": RequestOrigin.QUEUED,
        "awaits_reply": True,
        "queued_us": state.queued_us or event.us,
        "caller": text_or_none(content.caller) or "",
        "priority": int_or_none(content.priority) or 0,
        "timeout_s": timeout_s if isinstance(timeout_s, int | float) else None,
    }


def _sent(state: RequestState, event: RequestEvent) -> dict[str, Any]:
    is_queued = state.origin is RequestOrigin.QUEUED
    return {
        **_code_and_sender(state, event),
        "origin": RequestOrigin.QUEUED if is_queued else RequestOrigin.SENT,
        "awaits_reply": not event.request_type.startswith("comm_"),
        "request_type": event.request_type,
        "sent_us": state.sent_us or event.us,
        "silent": state.silent or event.content.silent is True,
    }


def _busy(state: RequestState, event: RequestEvent) -> dict[str, Any]:
    started_us = event.us if state.started_us is None else state.started_us
    return {"started_us": started_us, "dates": state.dates.with_busy(event.date_us)}


def _idle(state: RequestState, event: RequestEvent) -> dict[str, Any]:
    return {"dates": state.dates.with_idle(event.date_us)}


def _input(state: RequestState, event: RequestEvent) -> dict[str, Any]:
    return {**_code_and_sender(state, event), **_count(state, event)}


def _error(state: RequestState, event: RequestEvent) -> dict[str, Any]:
    return {"has_failed": True}


def _reply(state: RequestState, event: RequestEvent) -> dict[str, Any]:
    status = event.content.status
    is_failure = status in (ExecutionStatus.ERROR, ExecutionStatus.ABORTED)
    return {
        **_count(state, event),
        "reply_status": ExecutionStatus(status) if is_failure else ExecutionStatus.OK,
    }


def _closed(state: RequestState, event: RequestEvent) -> dict[str, Any]:
    content = event.content
    return {
        **_count(state, event),
        **_ended(state, event),
        "reported": ReportedTimes(
            int_or_none(content.queued_us),
            int_or_none(content.sent_us),
            int_or_none(content.started_us),
            int_or_none(content.finished_us),
        ),
    }


def _ended(state: RequestState, event: RequestEvent) -> dict[str, Any]:
    try:
        status = ExecutionStatus(event.content.status)
    except ValueError:
        status = ExecutionStatus.ERROR
    return {
        "closed_us": event.us,
        # A closed request has ended, whatever the record says.
        "status": status if status.is_final else ExecutionStatus.ERROR,
        "reason": text_or_none(event.content.reason) or "",
    }


def _count(state: RequestState, event: RequestEvent) -> dict[str, Any]:
    count = int_or_none(event.content.execution_count)
    return {} if count is None else {"execution_count": count}


def _code_and_sender(state: RequestState, event: RequestEvent) -> dict[str, Any]:
    """Return code and sender, by the first record that has them."""
    return {
        "code": text_or_none(event.content.code) if state.code is None else state.code,
        "username": event.username if state.username is None else state.username,
        "session": event.session if state.session is None else state.session,
    }


_CHANGES = {
    EventKind.QUEUED: _queued,
    EventKind.SENT: _sent,
    EventKind.BUSY: _busy,
    EventKind.INPUT: _input,
    EventKind.RESULT: _count,
    EventKind.ERROR: _error,
    EventKind.IDLE: _idle,
    EventKind.REPLY: _reply,
    EventKind.CLOSED: _closed,
    EventKind.ENDED: _ended,
}


def request_closed_draft(kernel_id: str, closed: RequestState, *, caller: str = "", **data: Any) -> Draft:
    """Encode the ``request_closed`` of a closed request: the same fields whichever server writes it."""
    return event_draft(
        kernel_id,
        KernelEvent.REQUEST_CLOSED,
        request_id=closed.request_id,
        caller=caller,
        status=str(closed.status),
        reason=closed.reason,
        execution_count=closed.execution_count,
        queued_us=closed.queued_us,
        sent_us=closed.sent_us,
        started_us=closed.started_us,
        finished_us=closed.closed_us,
        **data,
    )
