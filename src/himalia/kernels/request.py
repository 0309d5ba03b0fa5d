"""One execute request of a kernel's scheduler, while the server or the kernel has it."""

from __future__ import annotations

import asyncio
import logging
import threading
from enum import Enum
from typing import Protocol
from uuid import uuid4

import msgspec

from himalia.jupyter.channels import Channel
from himalia.jupyter.lifecycle import RequestStage, RequestState
from himalia.jupyter.request_events import EventKind, RequestContent, RequestEvent, int_or_none, to_event
from himalia.jupyter.wire import KernelMessage
from himalia.protocol.models import ExecutionStatus
from himalia.record import now_us

logger = logging.getLogger("himalia.kernels.request")


class Code(msgspec.Struct, frozen=True, kw_only=True):
    """Code to run, and how to run it."""

    code: str
    priority: int = 0
    timeout_s: float | None = None
    """How long it may run, counted from when it is sent; then the kernel is interrupted."""
    silent: bool = False
    store_history: bool = True
    allow_stdin: bool = False
    stop_on_error: bool = True
    caller: str = ""
    """Qualified name of who asks."""


class InterruptStage(Enum):
    """How far the interrupt of a cancelled or timed out request is."""

    NOT_REQUESTED = 0
    REQUESTED = 1
    """It is sent once the code runs: a kernel ignores an earlier interrupt, and runs the code all the same."""
    SENT = 2
    OVER = 3
    """The kernel no longer has the request: an interrupt would hit another one."""


class RequestListener(Protocol):
    """The scheduler, as its requests report to it. Called on the event loop."""

    def request_changed(self, request: Request) -> None:
        """The kernel became idle or replied, or now runs the code of a request that is to be interrupted."""

    def request_expired(self, request: Request) -> None:
        """The broker dropped the request: it was silent for too long, and so was its kernel."""


class Request:
    """A request from its queueing until its kernel is done with it, which may be after it was closed.

    The event loop owns it. The IOPub thread calls ``deliver`` and ``expire`` only.
    """

    def __init__(self, code: Code, listener: RequestListener, state: RequestState | None = None) -> None:
        """``state`` is that of a request of an earlier server, read from the topic; None for a new request."""
        self.code = code
        self.state = queued_state(code) if state is None else state
        """The state as the kernel has it, also after the close. Both threads apply events, which the lock guards;
        reading needs no lock, because a state is immutable."""
        self.id = self.state.request_id
        self.closed_state: RequestState | None = None
        """The state at the close, which is what the topic has; None while it is open."""
        self.offset = self.state.offset
        """Of its first record in the topic; -1 until that is committed."""
        self.interrupt = InterruptStage.NOT_REQUESTED
        """Set on the event loop. The IOPub thread reads it after it has applied an event."""
        self.interrupt_caller = ""
        """The caller who cancelled it; empty if it ran out of time."""
        self.last_heard_us = 0
        """Arrival of its last message; set in the IOPub thread."""
        self.timer: asyncio.TimerHandle | None = None
        self._reply_count: int | None = None
        self._listener = listener
        self._lock = threading.Lock()
        self._loop = asyncio.get_running_loop()
        self.closed: asyncio.Future[ExecutionStatus] = self._loop.create_future()
        """Has the status once the record of the close is committed."""

    @property
    def status(self) -> ExecutionStatus | None:
        """How it was closed; None while it is open."""
        return self.closed_state.status if self.closed_state is not None else None

    @property
    def is_running_code(self) -> bool:
        """Whether an interrupt reaches its code. For silent code the kernel publishes busy and no input."""
        stage = self.state.stage
        return stage in _RUNNING_STAGES or (stage is RequestStage.BUSY and self.code.silent)

    def apply(self, event: RequestEvent) -> None:
        with self._lock:
            self.state = self.state.apply(event)

    # In the IOPub thread

    def deliver(self, message: KernelMessage, channel: Channel, sequence: int) -> None:
        """Apply a message of the kernel. Output is no event: only its type is looked at."""
        self.last_heard_us = message.received_us
        event = to_event(message, channel)
        if event is None:
            return
        self.apply(event)
        if event.kind is EventKind.INPUT and event.content.code != self.code.code:
            logger.warning("the kernel runs other code than request %s has", self.id)
        if event.kind is EventKind.IDLE or (
            self.interrupt is InterruptStage.REQUESTED and self.is_running_code
        ):
            self._loop.call_soon_threadsafe(self._listener.request_changed, self)

    def expire(self) -> None:
        """The broker drops the request."""
        self._loop.call_soon_threadsafe(self._listener.request_expired, self)

    # On the event loop

    def apply_shell(self, message: KernelMessage) -> None:
        """Apply the request itself, when it is sent, or its reply."""
        event = to_event(message, "shell")
        if event is None:
            return
        self.apply(event)
        if event.kind is EventKind.REPLY:
            self._reply_count = int_or_none(event.content.execution_count)

    def close(self, status: ExecutionStatus, reason: str) -> RequestState:
        """Close it now; returns the state that its record has.

        The execution count is that of the reply: code can publish another on IOPub, which may arrive later.
        """
        closed = self.state.close(now_us(), status, reason)
        if self._reply_count is not None:
            closed = msgspec.structs.replace(closed, execution_count=self._reply_count)
        self.closed_state = closed
        if self.timer is not None:
            self.timer.cancel()
        return closed


_RUNNING_STAGES = (RequestStage.RUNNING, RequestStage.IDLE, RequestStage.REPLIED)
"""After idle or the reply the code has run, but may still hold up the other of the two."""


def queued_state(code: Code) -> RequestState:
    """The state of a request that is queued now."""
    content = RequestContent(
        code=code.code, priority=code.priority, timeout_s=code.timeout_s, caller=code.caller
    )
    event = RequestEvent(kind=EventKind.QUEUED, us=now_us(), content=content)
    return RequestState(request_id=str(uuid4())).apply(event)


def restored_code(state: RequestState) -> Code:
    """The code of a request of an earlier server, as far as the topic has it."""
    return Code(
        code=state.code or "",
        priority=state.priority,
        timeout_s=state.timeout_s,
        silent=state.silent,
        caller=state.caller,
    )
