"""Sends requests to a kernel one at a time, by priority, and closes each with its named status.

One at a time, because what the kernel has received can no longer be overtaken or withdrawn: priorities and cancelling
work on what is still here. Everything that happens to a request is in the kernel's topic.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

from himalia.errors import ExecutionNotFound, HimaliaError, LogUnavailable, TooManyRequests
from himalia.iopub.broker import IopubBroker
from himalia.jupyter.duration import RunHistogram
from himalia.jupyter.lifecycle import ExecutionStatus
from himalia.jupyter.records import KernelEvent, closing_data, draft_of, event_draft
from himalia.jupyter.wire import KernelMessage
from himalia.kernels.context import RequestTracing
from himalia.kernels.recovery import OpenRequest
from himalia.kernels.request import Code, Request, Stage
from himalia.kernels.topic_writer import Bridge

logger = logging.getLogger("himalia.kernels.scheduler")

SETTLE_S = 10.0
"""How long the second of idle and reply may be missing, while nothing else is heard of the request."""
SETTLE_INTERRUPTED_S = 1.0
"""The same of an interrupted one: a kernel that is hit between two steps may forget to reply."""
BEGIN_WITHIN_S = 1.0
"""How long to wait with an interrupt for a kernel that does not say that it has begun."""
REMEMBERED_MAX = 10_000

Send = Callable[[Request], KernelMessage]
Interrupt = Callable[[str], Coroutine[Any, Any, None]]
"""Interrupts the kernel in the name of a caller, which is empty if a time limit is the cause."""


def _never() -> bool:
    return False


class Runner:
    """The requests of one kernel. Lives on the event loop.

    ``is_behind`` says whether messages of the kernel wait to be heard: its silence then means nothing.
    """

    def __init__(
        self,
        broker: IopubBroker,
        bridge: Bridge,
        *,
        queue_max: int,
        send: Send,
        interrupt: Interrupt,
        is_behind: Callable[[], bool] = _never,
        tracing: RequestTracing | None = None,
    ) -> None:
        self._broker = broker
        self._bridge = bridge
        self._queue_max = queue_max
        self._send = send
        self._interrupt = interrupt
        self._is_behind = is_behind
        self._tracing = tracing
        self._queue: PriorityQueue[Request] = PriorityQueue()
        self._open: dict[str, Request] = {}
        # Closed or not, the one the kernel is busy with: the next is sent when it is done.
        self._active: Request | None = None
        self.closed: Counter[ExecutionStatus] = Counter()
        """How many requests were closed, by their status."""
        self.runs = RunHistogram()
        self._is_held = True
        self._finish_trace: Callable[[str], None] | None = None
        self._offsets: OrderedDict[str, int] = OrderedDict()
        self._last_offset = 0
        self._tasks: set[asyncio.Task[None]] = set()
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
        """A request that is not closed yet."""
        return self._open.get(request_id)

    def offset_of(self, request_id: str) -> int | None:
        """Where a request of late begins in the topic."""
        return self._offsets.get(request_id)

    # Taking requests

    async def submit(self, code: Code) -> Request:
        """Put code in line; returns when that is committed, so that it can be found in the log.

        It is sent when it is committed, not before: ``LogUnavailable`` means that it has not run and never will.
        """
        self._bridge.check_well()
        if len(self._queue) >= self._queue_max:
            raise TooManyRequests(
                f"{len(self._queue)} requests wait for this kernel, its limit; wait for some to end or raise "
                "kernel_queue_max",
                limit=self._queue_max,
            )
        request = Request(code, self._changed)
        self._open[request.id] = request
        committed = self._record(
            KernelEvent.REQUEST_QUEUED,
            request,
            code=code.code,
            priority=code.priority,
            timeout_s=code.timeout_s,
            caller=code.caller,
        )
        committed.add_done_callback(lambda _: self._placed(request, committed))
        self._queue.push(request, code.priority)
        try:
            await self._bridge.stored(committed)
        except HimaliaError:
            self._withdraw(request)
            raise
        return request

    def _placed(self, request: Request, committed: asyncio.Future[int]) -> None:
        if not committed.cancelled() and committed.exception() is None:
            request.offset = committed.result()
            self._remember(request)
            self._send_next()

    def _withdraw(self, request: Request) -> None:
        """The caller gets an error that nothing was stored, and may retry: it must not run as well."""
        if request.stage is Stage.QUEUED:
            self._queue.remove(request)
            self._close(request, ExecutionStatus.ABORTED, "the log could not store it in time")
            self._send_next()  # those behind it may have waited for its commit

    def cancel(self, request_id: str, caller: str = "") -> Request:
        """End a request: one that waits never runs, one that runs is interrupted."""
        request = self._open.get(request_id)
        if request is None:
            raise ExecutionNotFound(
                f"request {request_id!r} is not waiting or running", request_id=request_id
            )
        if request.stage is Stage.QUEUED:
            self._queue.remove(request)
        else:
            self._stop(request, caller)
        self._close(request, ExecutionStatus.CANCELLED, "cancelled", caller)
        return request

    def go(self) -> None:
        """The kernel is ready: begin to send."""
        self._is_held = False
        self._send_next()

    def hold(self) -> None:
        """The kernel is not ready: send nothing until ``go``."""
        self._is_held = True

    def end_all(self, status: ExecutionStatus, reason: str, caller: str = "") -> None:
        """The kernel died, restarts or goes: nothing that waits will be answered any more.

        ``caller`` is the name of who caused that; empty if nobody did.
        """
        self.hold()
        self._queue.clear()
        for request in list(self._open.values()):
            self._close(request, status, reason, caller)
        if self._active is not None:
            self._release(self._active)

    def let_go(self) -> None:
        """Leave what is open to another server: nothing more happens to it here."""
        self.hold()
        for request in self._open.values():
            if request.timer is not None:
                request.timer.cancel()

    async def finish(self) -> None:
        """Returns when every close is committed."""
        if self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)

    # What the kernel says

    def replied(self, reply: KernelMessage) -> None:
        """A reply on the shell socket; it may be of a request that was closed already."""
        request = self._active
        if request is not None and request.id == reply.parent_id:
            request.replied(reply)

    def adopt(self, found: OpenRequest, log_us: int) -> None:
        """Go on with a request of an earlier server: it was sent, its reply is lost, its idle may still come.

        ``log_us`` is the present time of the log.
        """
        request = self._restored(found)
        if found.is_idle:
            self._close(request, request.outcome(), "")
            return
        self._active = request
        self._broker.register_request(request.id, request)
        self._start_timer(request, max(log_us - (request.sent_us or request.queued_us), 0))

    def abort(self, found: OpenRequest, reason: str) -> None:
        """Close a request of an earlier server that never ran."""
        self._close(self._restored(found), ExecutionStatus.ABORTED, reason)

    def settle_adopted(self) -> None:
        """The kernel has answered something that was sent later: whatever was adopted and not done by now is over."""
        for request in [one for one in self._open.values() if one.is_reply_lost]:
            if request.started_us is None:
                reason = "it was sent when the server ended, and never began"
                self._close(request, ExecutionStatus.ABORTED, reason)
            else:
                reason = "it ended while no server listened, and how is not known"
                self._close(request, ExecutionStatus.STALE, reason)
            self._release(request)
        self._send_next()

    def _restored(self, found: OpenRequest) -> Request:
        code = Code(code=found.code, priority=found.priority, timeout_s=found.timeout_s, caller=found.caller)
        request = Request(code, self._changed, found.request_id)
        request.stage = Stage.SENT
        request.offset = found.offset
        request.queued_us = found.queued_us
        request.sent_us = found.sent_us
        request.started_us = found.started_us
        request.dates = found.dates
        request.has_begun = found.started_us is not None
        request.has_failed = found.has_failed
        request.execution_count = found.execution_count
        request.is_reply_lost = True
        self._open[request.id] = request
        self._remember(request)
        return request

    def touch(self) -> None:
        """The kernel shows life: what it runs is not stale, however silent it is."""
        if self._active is not None:
            self._broker.touch(self._active.id)

    # Sending

    def _send_next(self) -> None:
        if self._is_held or self._active is not None or not len(self._queue):
            return
        if self._queue.peek().offset < 0:
            return  # it is sent when it is committed
        request = self._queue.pop()
        self._active = request
        request.stage = Stage.SENT
        # Before it is sent: the kernel may answer before this line is over.
        self._broker.register_request(request.id, request)
        if self._tracing is not None:
            self._finish_trace = self._tracing.sending(request.id, self._bridge.topic)
        message = self._send(request)
        request.sent_us = message.received_us
        self._bridge.put(draft_of(message, self._bridge.kernel_id, "shell"))
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
        self._stop(request)
        self._close(
            request,
            ExecutionStatus.TIMEOUT,
            f"ran longer than {request.code.timeout_s:g} s and was interrupted",
        )

    def _stop(self, request: Request, caller: str = "") -> None:
        """Interrupt it as soon as it has begun: before that, the kernel would shrug and then run it."""
        request.is_unwanted = True
        request.unwanted_by = caller
        if request.has_begun:
            self._interrupt_once(request)
        else:
            self._loop.call_later(BEGIN_WITHIN_S, self._interrupt_once, request)

    def _interrupt_once(self, request: Request) -> None:
        if self._active is request and not request.is_interrupted and not request.is_done:
            request.is_interrupted = True
            self._spawn(self._interrupt(request.unwanted_by))

    # What becomes of a request

    def _changed(self, request: Request) -> None:
        if request.is_stale:
            self._let_go_stale(request)
        elif request.is_done:
            self._done(request)
        elif request.is_idle or request.reply is not None:
            self._expect_rest(request)
        elif request.is_unwanted and request.has_begun:
            self._interrupt_once(request)

    def _let_go_stale(self, request: Request) -> None:
        """Nobody has heard of it, nor of its kernel, for long. It is still the kernel's, which may come back."""
        request.is_stale = False
        self._close(request, ExecutionStatus.STALE, "neither it nor its kernel was heard of for too long")
        if self._active is request:
            self._broker.register_request(request.id, request)

    def _expect_rest(self, request: Request) -> None:
        """One of idle and reply has come; the other should follow, but some kernels lose it."""
        heard = request.last_heard_us

        def look() -> None:
            if self._active is not request or request.is_done:
                return
            if request.last_heard_us != heard or self._is_behind():
                self._expect_rest(request)
                return
            missing = "never said idle" if request.reply is not None else "never replied"
            said = "replied" if request.reply is not None else "said idle"
            self._close(request, request.outcome(), f"the kernel {said} and {missing}")
            self._done(request)

        self._loop.call_later(SETTLE_INTERRUPTED_S if request.is_interrupted else SETTLE_S, look)

    # Ending

    def _done(self, request: Request) -> None:
        """The kernel is done with it."""
        self._close(request, request.outcome(), "")
        self._release(request)
        self._send_next()

    def _release(self, request: Request) -> None:
        self._broker.unregister_request(request.id)
        if self._active is not request:
            return
        self._active = None
        if self._finish_trace is not None:
            self._finish_trace(str(request.status or request.outcome()))
            self._finish_trace = None

    def _close(self, request: Request, status: ExecutionStatus, reason: str, caller: str = "") -> None:
        """Say how it ended, once; whoever waits for it is told when that is committed."""
        if self._open.pop(request.id, None) is None:
            return
        request.stage = Stage.CLOSED
        request.status = status
        self.closed[status] += 1
        if request.timer is not None:
            request.timer.cancel()
        closing = closing_data(request, status, reason)
        self.runs.observe(request.dates.run_us(request.queued_us, request.started_us, closing["finished_us"]))
        committed = self._record(KernelEvent.REQUEST_CLOSED, request, caller=caller, **closing)
        self._spawn(self._tell(request, status, committed))

    async def _tell(self, request: Request, status: ExecutionStatus, committed: asyncio.Future[int]) -> None:
        try:
            await committed
        except LogUnavailable as error:
            logger.warning("how request %s ended is not stored: %s", request.id, error)
        finally:
            # Where the topic is gone too, at least nobody waits for ever.
            if not request.closed.done():
                request.closed.set_result(status)

    # The topic

    def _record(self, event: KernelEvent, request: Request, **data: Any) -> asyncio.Future[int]:
        known = [other.offset for other in self._open.values() if other.offset >= 0]
        draft = event_draft(
            self._bridge.kernel_id,
            event,
            request_id=request.id,
            # From here on the topic tells of every request that is open now: a server that comes back reads it.
            open_since=min(known, default=self._last_offset),
            **data,
        )
        committed = self._bridge.put(draft)
        committed.add_done_callback(self._note)
        return committed

    def _note(self, committed: asyncio.Future[int]) -> None:
        if not committed.cancelled() and committed.exception() is None:
            self._last_offset = committed.result()

    def _remember(self, request: Request) -> None:
        self._offsets[request.id] = request.offset
        if len(self._offsets) > REMEMBERED_MAX:
            self._offsets.popitem(last=False)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("a request could not be ended in order", exc_info=task.exception())


T = TypeVar("T")


class PriorityQueue(Generic[T]):
    """Not safe for threads."""

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
        """The one that ``pop`` would take."""
        return self._heap[0][2]

    def pop(self) -> T:
        return heapq.heappop(self._heap)[2]

    def remove(self, item: T) -> bool:
        """Take one out of the middle; false if it is not there."""
        for at, entry in enumerate(self._heap):
            if entry[2] is item:
                self._heap[at] = self._heap[-1]
                self._heap.pop()
                heapq.heapify(self._heap)
                return True
        return False

    def clear(self) -> list[T]:
        """Take all out, in their order."""
        items = [entry[2] for entry in sorted(self._heap)]
        self._heap = []
        return items
