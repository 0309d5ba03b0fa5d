"""One request to run code, from the queue to its close."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from enum import StrEnum
from uuid import uuid4

import msgspec

from himalia.jupyter.channels import Channel
from himalia.jupyter.duration import StatusDates
from himalia.jupyter.lifecycle import ExecutionStatus
from himalia.jupyter.request_events import EventKind, event_of_message
from himalia.jupyter.wire import KernelMessage
from himalia.record import now_us

logger = logging.getLogger("himalia.kernels.request")


class Code(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be run, and how."""

    code: str
    priority: int = 0
    timeout_s: float | None = None
    """How long it may run, counted from when it was sent; then the kernel is interrupted."""
    silent: bool = False
    store_history: bool = True
    allow_stdin: bool = False
    stop_on_error: bool = True
    caller: str = ""
    """Who asks, by its qualified name."""


class Stage(StrEnum):
    QUEUED = "queued"
    SENT = "sent"
    CLOSED = "closed"


class _Status(msgspec.Struct, gc=False):
    execution_state: str = ""


class _Counted(msgspec.Struct, gc=False):
    execution_count: int | None = None
    code: str = ""


class _Reply(msgspec.Struct, gc=False):
    status: str = "ok"
    execution_count: int | None = None


_status_of = msgspec.json.Decoder(_Status).decode
_counted_of = msgspec.json.Decoder(_Counted).decode
_reply_of = msgspec.json.Decoder(_Reply).decode


class Request:
    """What is known of a request while it lives. Lives on the event loop, but for ``deliver`` and ``expire``.

    It is done when the kernel has said idle and has replied, in whichever order. ``closed`` has the status, after
    the record of the close is committed. ``on_change`` is called on the loop when the kernel has said idle or has
    replied, when it has begun with what is no longer wanted, and when the broker has let the request go.
    """

    def __init__(self, code: Code, on_change: Callable[[Request], None], id: str | None = None) -> None:
        self.id = id or str(uuid4())
        self.code = code
        self.stage = Stage.QUEUED
        self.queued_us = now_us()
        self.sent_us: int | None = None
        self.started_us: int | None = None
        self.dates = StatusDates()
        self.execution_count: int | None = None
        self.offset = -1
        """Where its first record stands in the topic, once that is committed."""
        self.is_idle = False
        self.is_confirmed = False
        """Whether the kernel has said busy and has echoed this code."""
        self.has_failed = False
        self.has_begun = False
        """Whether the kernel is known to run it: an interrupt before that would be lost."""
        self.is_unwanted = False
        """It was cancelled or took too long: it is to be interrupted when it has begun."""
        self.unwanted_by = ""
        """The caller who cancelled it; empty if it took too long."""
        self.is_interrupted = False
        self.is_stale = False
        self.last_heard_us = 0
        self.reply: KernelMessage | None = None
        self.status: ExecutionStatus | None = None
        """How it was closed; ``closed`` has it too, as soon as that is committed."""
        self.is_reply_lost = False
        """It was sent by an earlier server, to which the kernel replied."""
        self.timer: asyncio.TimerHandle | None = None
        self._on_change = on_change
        self._loop = asyncio.get_running_loop()
        self.closed: asyncio.Future[ExecutionStatus] = self._loop.create_future()

    @property
    def is_done(self) -> bool:
        return self.is_idle and (self.reply is not None or self.is_reply_lost)

    # From IOPub, in its thread

    def deliver(self, message: KernelMessage, channel: Channel, sequence: int) -> None:
        self.last_heard_us = message.received_us
        if channel is Channel.STATUS:
            self._status(message)
        elif channel is Channel.EXECUTION:
            self._execution(message)

    def expire(self) -> None:
        """The broker lets it go."""
        self.is_stale = True
        self._loop.call_soon_threadsafe(self._on_change, self)

    def _status(self, message: KernelMessage) -> None:
        try:
            state = _status_of(message.content).execution_state
        except msgspec.MsgspecError:
            return
        self.dates = _with_status(self.dates, message)
        if state == "busy" and self.started_us is None:
            self.started_us = message.received_us
            if self.code.silent:
                self._begin()
        elif state == "idle":
            self._loop.call_soon_threadsafe(self._idle)

    def _begin(self) -> None:
        self.has_begun = True
        if self.is_unwanted:
            self._loop.call_soon_threadsafe(self._on_change, self)

    def _execution(self, message: KernelMessage) -> None:
        if message.msg_type == "error":
            self.has_failed = True
        elif message.msg_type == "execute_input":
            self._begin()
            try:
                said = _counted_of(message.content)
            except msgspec.MsgspecError:
                return
            self.execution_count = said.execution_count
            self.is_confirmed = self.started_us is not None and said.code == self.code.code
            if not self.is_confirmed:
                logger.warning("the kernel runs something else than request %s asked for", self.id)

    # On the loop

    def _idle(self) -> None:
        self.is_idle = True
        self._on_change(self)

    def replied(self, reply: KernelMessage) -> None:
        self.reply = reply
        self._on_change(self)

    def outcome(self) -> ExecutionStatus:
        """How it ended, by what the kernel said: its reply or, where that was lost, its output."""
        if self.reply is not None:
            try:
                said = _reply_of(self.reply.content)
            except msgspec.MsgspecError:
                said = _Reply()
            self.execution_count = said.execution_count or self.execution_count
            if said.status in ("error", "aborted"):
                return ExecutionStatus(said.status)
            return ExecutionStatus.OK
        return ExecutionStatus.ERROR if self.has_failed else ExecutionStatus.OK


def _with_status(dates: StatusDates, message: KernelMessage) -> StatusDates:
    event = event_of_message(message, "status")
    if event is None:
        return dates
    is_busy = event.kind is EventKind.BUSY
    return dates.with_busy(event.date_us) if is_busy else dates.with_idle(event.date_us)
