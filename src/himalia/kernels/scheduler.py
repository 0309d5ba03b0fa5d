"""Sends requests to a kernel one at a time, by priority, and closes each with its status.

One at a time, because a request that the kernel has received can no longer be overtaken or withdrawn: priorities and
cancelling work on the requests that wait here. Everything that happens to a request is in the kernel's topic.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections import Counter
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from himalia.errors import ExecutionNotFound, HimaliaError, KernelUnavailable, TooManyRequests
from himalia.iopub.broker import IopubBroker
from himalia.jupyter.duration import RunHistogram
from himalia.jupyter.lifecycle import RequestStage, RequestState
from himalia.jupyter.records import to_draft
from himalia.jupyter.wire import KernelMessage
from himalia.kernels.context import RequestTracing
from himalia.kernels.request import Code, InterruptStage, Request, restored_code
from himalia.kernels.request_log import RequestLog
from himalia.kernels.topic_writer import TopicWriter
from himalia.protocol.models import ExecutionStatus
from himalia.tasks import TaskSet

logger = logging.getLogger("himalia.kernels.scheduler")

SETTLE_S = 10.0
"""How long idle may be missing after the reply, or the reply after idle, while the request is silent."""
SETTLE_INTERRUPTED_S = 1.0
"""The same for an interrupted request: a kernel that is interrupted between two steps may forget to reply."""
BEGIN_WITHIN_S = 1.0
"""How long to delay an interrupt of a kernel that does not report that the code runs."""


class RequestTarget(Protocol):
    """The kernel, as its scheduler uses it. Called on the event loop."""

    @property
    def is_behind(self) -> bool:
        """Whether messages of the kernel wait to be read: its silence means nothing then."""

    def send_request(self, request: Request) -> KernelMessage:
        """Send the request over the shell socket; returns the message sent."""

    async def interrupt(self, caller: str) -> None:
        """Interrupt the kernel for a caller, whose name is empty if a time limit is the cause.

        Raises ``KernelUnavailable`` if the kernel is ending, or ``OSError``.
        """


class RequestScheduler:
    """The requests of one kernel. Belongs to the event loop."""

    def __init__(
        self,
        broker: IopubBroker,
        topic_writer: TopicWriter,
        target: RequestTarget,
        *,
        queue_max: int,
        tracing: RequestTracing | None = None,
    ) -> None:
        self._broker = broker
        self._topic_writer = topic_writer
        self._target = target
        self._queue_max = queue_max
        self._tracing = tracing
        self._queue: PriorityQueue[Request] = PriorityQueue()
        self._open: dict[str, Request] = {}
        # The request that the kernel is busy with, closed or not: the next is sent when the kernel is done with it.
        self._active: Request | None = None
        self.closed: Counter[ExecutionStatus] = Counter()
        """How many requests were closed, by their status."""
        self.runs = RunHistogram()
        self._is_paused = True
        self._finish_trace: Callable[[str], None] | None = None
        self.log = RequestLog(topic_writer)
        self._interrupter = Interrupter(target)
        self._loop = asyncio.get_running_loop()

    @property
    def queued(self) -> int:
        return len(self._queue)

    @property
    def active(self) -> Request | None:
        return self._active

    @property
    def is_busy(self) -> bool:
        return bool(self._open) or self._active is not None

    def find(self, request_id: str) -> Request | None:
        """Return a request that is not closed; None if there is none with this id."""
        return self._open.get(request_id)

    # Queueing

    async def submit(self, code: Code) -> Request:
        """Queue code; returns when that is committed, so that the request can be found in the log.

        It is sent once it is committed, not before: ``LogUnavailable`` means that it has not run and never will.
        """
        self._topic_writer.availability.check()
        if len(self._queue) >= self._queue_max:
            raise TooManyRequests(
                f"{len(self._queue)} requests wait for this kernel, its limit; wait for some to end or raise "
                "kernel_queue_max",
                limit=self._queue_max,
            )
        request = Request(code, self)
        self._open[request.id] = request
        committed = self.log.append_queued(request)
        committed.add_done_callback(lambda _: self._send_next())
        self._queue.push(request, code.priority)
        try:
            await self._topic_writer.wait_committed(committed)
        except HimaliaError:
            self._withdraw(request)
            raise
        return request

    def _withdraw(self, request: Request) -> None:
        """The caller gets an error that nothing was stored, and may retry: the code must not run as well."""
        if not request.state.was_sent:
            self._queue.remove(request)
            self._close(request, ExecutionStatus.ABORTED, "the log could not store it in time")
            self._send_next()  # the requests behind it may have waited for its commit

    def cancel(self, request_id: str, caller: str = "") -> Request:
        """Cancel a request: one that waits never runs, one that runs is interrupted."""
        request = self._open.get(request_id)
        if request is None:
            raise ExecutionNotFound(
                f"request {request_id!r} is not waiting or running", request_id=request_id
            )
        if request.state.was_sent:
            self._interrupter.interrupt(request, caller)
        else:
            self._queue.remove(request)
        self._close(request, ExecutionStatus.CANCELLED, "cancelled", caller)
        return request

    def resume(self) -> None:
        """The kernel is ready: begin to send. ``close_all`` and ``detach`` stop that."""
        self._is_paused = False
        self._send_next()

    def close_all(self, status: ExecutionStatus, reason: str, caller: str = "") -> None:
        """The kernel died, restarts or is stopped: it answers none of the open requests any more.

        ``caller`` is the name of the caller who caused that; empty if none did.
        """
        self._is_paused = True
        self._queue.clear()
        for request in list(self._open.values()):
            self._close(request, status, reason, caller)
        if self._active is not None:
            self._release(self._active)

    def detach(self) -> None:
        """Leave the open requests to another server: nothing more happens to them here."""
        self._is_paused = True
        for request in self._open.values():
            if request.timer is not None:
                request.timer.cancel()

    async def finish(self) -> None:
        """Wait until every interrupt is sent and every close is committed."""
        await self._interrupter.finish()
        await self.log.finish()

    # Requests of an earlier server

    def adopt(self, state: RequestState, log_us: int) -> None:
        """Continue a request of an earlier server: its reply is lost, its idle may still come.

        One that was not sent is closed as aborted. ``log_us`` is the present time of the log.
        """
        request = Request(restored_code(state), self, state.without_reply())
        self._open[request.id] = request
        self.log.restore(request)
        if not state.was_sent:
            self._close(request, ExecutionStatus.ABORTED, "the server stopped before it was sent")
        elif request.state.is_done:
            self._close(request, request.state.outcome, "")
        else:
            self._active = request
            self._broker.register_request(request.id, request)
            self._start_timer(request, max(log_us - (state.sent_us or state.queued_us or log_us), 0))

    def close_unanswered(self) -> None:
        """The kernel has answered a later request: adopted requests that are not done by now have ended."""
        for request in [one for one in self._open.values() if not one.state.awaits_reply]:
            if request.state.started_us is None:
                reason = "sent just before the server stopped; never started"
                self._close(request, ExecutionStatus.ABORTED, reason)
            else:
                reason = "finished while no server was attached; outcome unknown"
                self._close(request, ExecutionStatus.STALE, reason)
            self._release(request)
        self._send_next()

    # Sending

    def _send_next(self) -> None:
        if self._is_paused or self._active is not None or not len(self._queue):
            return
        if self._queue.peek().offset < 0:
            return  # it is sent when it is committed
        request = self._queue.pop()
        self._active = request
        # Before it is sent: the IOPub thread may receive the kernel's answer before this function returns.
        self._broker.register_request(request.id, request)
        if self._tracing is not None:
            self._finish_trace = self._tracing.sending(request.id, self._topic_writer.topic)
        message = self._target.send_request(request)
        request.apply_shell(message)
        self._topic_writer.append(to_draft(message, self._topic_writer.kernel_id, "shell"))
        self._start_timer(request)

    def _start_timer(self, request: Request, spent_us: int = 0) -> None:
        if request.code.timeout_s is not None:
            left_s = request.code.timeout_s - spent_us / 1e6
            request.timer = self._loop.call_later(max(left_s, 0), self._time_out, request)

    def _time_out(self, request: Request) -> None:
        logger.info(
            "request %s of %s ran longer than %s s: interrupting",
            request.id,
            request.code.caller,
            request.code.timeout_s,
            extra={"caller": request.code.caller},
        )
        self._interrupter.interrupt(request)
        self._close(
            request,
            ExecutionStatus.TIMEOUT,
            f"ran longer than {request.code.timeout_s:g} s and was interrupted",
        )

    # Messages of the kernel

    def touch(self) -> None:
        """Note that the kernel is alive: the request that it runs is not stale, however silent it is."""
        if self._active is not None:
            self._broker.touch(self._active.id)

    def on_reply(self, reply: KernelMessage) -> None:
        """Apply a reply from the shell socket; its request may be closed already."""
        request = self._active
        if request is not None and request.id == reply.parent_id:
            request.apply_shell(reply)
            self.request_changed(request)

    def request_changed(self, request: Request) -> None:
        """As the listener of requests."""
        if request.state.is_done:
            self._finish(request)
        elif request.state.stage in (RequestStage.IDLE, RequestStage.REPLIED):
            self._await_counterpart(request)
        elif request.interrupt is InterruptStage.REQUESTED and request.is_running_code:
            self._interrupter.send(request)

    def request_expired(self, request: Request) -> None:
        """As the listener of requests. The kernel still has the request, and may yet finish it."""
        self._close(request, ExecutionStatus.STALE, "no output and no heartbeat of its kernel for too long")
        if self._active is request:
            self._broker.register_request(request.id, request)

    def _await_counterpart(self, request: Request) -> None:
        """Wait for idle after the reply, or for the reply after idle; some kernels lose it."""
        heard_us = request.last_heard_us

        def check() -> None:
            if self._active is not request or request.state.is_done:
                return
            if request.last_heard_us != heard_us or self._target.is_behind:
                self._await_counterpart(request)
                return
            is_idle = request.state.stage is RequestStage.IDLE
            reason = "became idle and never replied" if is_idle else "replied and never became idle"
            self._close(request, request.state.outcome, f"the kernel {reason}")
            self._finish(request)

        is_interrupted = request.interrupt is InterruptStage.SENT
        self._loop.call_later(SETTLE_INTERRUPTED_S if is_interrupted else SETTLE_S, check)

    # Closing

    def _finish(self, request: Request) -> None:
        """The kernel is done with it."""
        self._close(request, request.state.outcome, "")
        self._release(request)
        self._send_next()

    def _release(self, request: Request) -> None:
        self._broker.unregister_request(request.id)
        request.interrupt = InterruptStage.OVER
        if self._active is not request:
            return
        self._active = None
        if self._finish_trace is not None:
            self._finish_trace(str(request.status or request.state.outcome))
            self._finish_trace = None

    def _close(self, request: Request, status: ExecutionStatus, reason: str, caller: str = "") -> None:
        """Close an open request: one record says how. Closing it again changes nothing."""
        if self._open.pop(request.id, None) is None:
            return
        closed = request.close(status, reason)
        self.closed[status] += 1
        self.runs.observe(closed.run_us)
        self.log.append_closed(request, caller)


class Interrupter:
    """Interrupts the code of requests that were cancelled or ran out of time. Belongs to the event loop."""

    def __init__(self, target: RequestTarget) -> None:
        self._target = target
        self._loop = asyncio.get_running_loop()
        self._tasks = TaskSet(logger, "a request could not be interrupted")

    def interrupt(self, request: Request, caller: str = "") -> None:
        """Interrupt a request once its code runs: kernels ignore an earlier interrupt and run the code anyway."""
        request.interrupt = InterruptStage.REQUESTED
        request.interrupt_caller = caller
        if request.is_running_code:
            self.send(request)
        else:
            self._loop.call_later(BEGIN_WITHIN_S, self.send, request)

    def send(self, request: Request) -> None:
        """Interrupt the kernel, once for each request and only while it has that request."""
        if request.interrupt is InterruptStage.REQUESTED and not request.state.is_done:
            request.interrupt = InterruptStage.SENT
            self._tasks.spawn(self._interrupt(request))

    async def _interrupt(self, request: Request) -> None:
        try:
            await self._target.interrupt(request.interrupt_caller)
        except (KernelUnavailable, OSError):
            logger.warning("request %s could not be interrupted", request.id, exc_info=True)

    async def finish(self) -> None:
        """Wait until every interrupt is sent."""
        await self._tasks.wait()


T = TypeVar("T")


class PriorityQueue(Generic[T]):
    """The highest priority first; of equal ones the oldest."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, T]] = []
        self._pushed = 0

    def __len__(self) -> int:
        return len(self._heap)

    def push(self, item: T, priority: int) -> None:
        self._pushed += 1
        # The number decides between equals, so that items are never compared.
        heapq.heappush(self._heap, (-priority, self._pushed, item))

    def peek(self) -> T:
        """The item that ``pop`` would return."""
        return self._heap[0][2]

    def pop(self) -> T:
        return heapq.heappop(self._heap)[2]

    def remove(self, item: T) -> None:
        """Remove an item from the middle; nothing if it is not there."""
        self._heap = [entry for entry in self._heap if entry[2] is not item]
        heapq.heapify(self._heap)

    def clear(self) -> None:
        self._heap.clear()
