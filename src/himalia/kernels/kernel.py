"""One kernel: its sockets, its requests, its topic, and what happens to it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Coroutine, Sequence
from typing import Any

import msgspec

from himalia.errors import HimaliaError, KernelFailed, KernelUnavailable, LogUnavailable
from himalia.iopub.broker import BrokerConfig, BrokerStats, IopubBroker
from himalia.iopub.shell import Asked, ShellPort
from himalia.jupyter.connection_file import ConnectionInfo
from himalia.jupyter.lifecycle import RequestState
from himalia.jupyter.records import (
    DISK_WAS_FULL,
    KernelEvent,
    event_draft,
    to_draft,
    too_large_draft,
)
from himalia.jupyter.wire import Fault, FaultKind, KernelMessage
from himalia.keeper.client import KeeperClient
from himalia.keeper.kernel_process import KernelProcess
from himalia.keeper.limits import Limits, exit_reason
from himalia.keeper.spool_consumer import SPOOL_WAS_FULL, Bookmark
from himalia.kernels.connection import Link
from himalia.kernels.context import Parts
from himalia.kernels.model import KernelListener, KernelModel, KernelState
from himalia.kernels.request import Code, Request
from himalia.kernels.scheduler import RequestScheduler
from himalia.kernels.topic_writer import KernelTopic, TopicWriter
from himalia.log.api import Log
from himalia.protocol.models import ExecutionStatus
from himalia.record import Draft, now_us

logger = logging.getLogger("himalia.kernels")

ASK_AGAIN_S = 0.5
QUIET_S = 0.15
"""Silence of a kernel that is gone, and has no keeper, which means that everything it said has come."""
QUIET_AT_MOST_S = 5.0
IDLE_WITHIN_S = 10.0
"""How long a kernel may take from a reply to the idle that belongs to it."""
STDIN_WITHIN_S = 2.0
"""How long to wait for the socket by which a kernel asks for input; one that has none runs without."""
CANCEL_AGAIN_S = 0.5
ASKED_MAX = 16
STARTS_MAX = 4
"""How often a process is started in all when other programs take its ports."""
NOT_HEARD = "the kernel could not be heard for a while: it was restarted, or the connection broke"


class _Status(msgspec.Struct, gc=False):
    execution_state: str = ""


_status_of = msgspec.json.Decoder(_Status).decode


class Kernel:
    """A kernel that this server listens to. Lives on the event loop.

    ``process`` is None for a foreign one: it was started by something else, and only its output is kept.
    ``listener`` hears of restarts and of the end.
    """

    def __init__(
        self,
        id: str,
        name: str,
        parts: Parts,
        process: KernelProcess | None,
        listener: KernelListener,
        owner: str | None = None,
    ) -> None:
        settings = parts.settings
        self.id = id
        self.name = name
        self._topic = KernelTopic(parts.manager, id, owner)
        self.topic = self._topic.name
        self.end_reason = self.ended_by = ""
        """Why it ended, and the caller who had it stopped, where there is one."""
        # What happens to it is known here; whether it is busy is what it says, in the IOPub thread.
        self._phase = KernelState.STARTING
        self._said = KernelState.IDLE
        self.started_us = now_us()
        self.last_activity_us = self.started_us
        self.process = process
        self.connection_file = ""
        """Of a foreign one."""
        self._parts = parts
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self.broker = IopubBroker(
            BrokerConfig(
                orphan_buffer_max=settings.kernel_orphans_max,
                orphan_max_age=settings.kernel_orphan_age_s,
                request_timeout=settings.kernel_silence_s,
                cleanup_interval=settings.kernel_cleanup_s,
            ),
            clock=parts.clock,
        )
        self.topic_writer = TopicWriter(self._topic, bytes_max=settings.kernel_buffer_bytes)
        # The topic writer first: a request hears of its idle only after that is on its way to the log.
        self.broker.add_global_subscriber(self.topic_writer)
        self.broker.add_global_subscriber(self)
        self.scheduler = RequestScheduler(
            self.broker, self.topic_writer, self, queue_max=settings.kernel_queue_max, tracing=parts.tracing
        )
        self._link: Link | None = None
        # Of the links before this one.
        self._faults: Counter[FaultKind] = Counter()
        self._asked: deque[str] = deque(maxlen=ASKED_MAX)
        self.bookmark = Bookmark()
        """Where the reading of its spool stands."""
        self._heard = asyncio.Event()
        self._heard_s = 0.0
        self._asked_s = time.monotonic()
        self._input: KernelMessage | None = None
        # Requests of our own of which the idle is waited for.
        self._turns: dict[str, asyncio.Event] = {}
        self._restarting: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None
        # Set when the ending begins: it ends the wait for a kernel that does not answer.
        self._end_wanted: asyncio.Future[None] = self._loop.create_future()
        self._tasks: set[asyncio.Task[None]] = set()

    # What is known of it

    @property
    def log(self) -> Log:
        return self._parts.manager.log

    @property
    def owner(self) -> str | None:
        """The caller whose kernel it is, as its topic has it."""
        return self._topic.owner

    @property
    def is_foreign(self) -> bool:
        return self.process is None

    @property
    def state(self) -> KernelState:
        return self._said if self._phase is KernelState.IDLE else self._phase

    @property
    def is_alive(self) -> bool:
        return self._phase is not KernelState.DEAD and self._ending is None

    @property
    def is_busy(self) -> bool:
        return self.state is not KernelState.IDLE or self.scheduler.is_busy

    @property
    def wire_faults(self) -> dict[str, int]:
        """Messages that could not be taken, by what was wrong with them, over all its processes."""
        faults = self._faults + self._link.faults if self._link else self._faults
        return {str(kind): count for kind, count in faults.items()}

    def stats(self) -> BrokerStats:
        return self.broker.stats()

    def model(self, connections: int = 0) -> KernelModel:
        active = self.scheduler.active
        return KernelModel(
            id=self.id,
            name=self.name,
            last_activity_us=self.last_activity_us,
            execution_state=self.state,
            connections=connections,
            topic=self.topic,
            owner=self.owner,
            is_foreign=self.is_foreign,
            responding=self._link.heartbeat.responding if self._link else False,
            queued=self.scheduler.queued,
            active_request=active.id if active is not None else None,
            pid=self.process.pid if self.process is not None else None,
            started_us=self.started_us,
            buffered_bytes=self.topic_writer.buffered_bytes,
        )

    @property
    def silent_s(self) -> float:
        """How long the kernel said nothing and was asked nothing, by a clock that cannot be set."""
        return time.monotonic() - max(self._heard_s, self._asked_s)

    # Its life

    async def open(self, connection: ConnectionInfo, event: KernelEvent, **data: Any) -> None:
        """Make its topic, listen, and wait until it answers. ``event`` says how it came to be here."""
        await self._topic.create()
        draft = event_draft(self.id, event, name=self.name, owner=self.owner, **data)
        await self.topic_writer.wait_committed(self.topic_writer.append(draft))
        await self._connect(connection)

    async def resume(
        self, connection: ConnectionInfo, bookmark: Bookmark, found: Sequence[RequestState]
    ) -> None:
        """Listen again after another server did: first what it missed, from the spool behind the bookmark."""
        # It is not there if the server was killed before it made it, or if an older backup was restored.
        await self._topic.create()
        self.topic_writer.append(
            event_draft(self.id, KernelEvent.REATTACHED, name=self.name, owner=self.owner)
        )
        self._phase = KernelState.IDLE
        # Before listening: what the spool tells of them must find them.
        await self.go_on_with(found)
        self.bookmark = bookmark
        self._listen(connection)
        self.scheduler.resume()
        self.settle_adopted()

    async def go_on_with(self, found: Sequence[RequestState]) -> None:
        """Take over what an earlier server left open: what was sent goes on, the rest is closed."""
        # By the log's time, as the requests are: this machine's clock may have jumped since.
        reattached_us = (await self.log.info(self.topic)).last_ts_us
        for request in found:
            self.scheduler.adopt(request, reattached_us)
        if self.scheduler.active is not None:
            self._said = KernelState.BUSY

    def settle_adopted(self) -> None:
        """Have what was taken over closed when the kernel has come to its end, even if nobody heard of that."""
        if self.scheduler.active is not None and self._link is not None:
            self._spawn(self._await_turn(self._link))

    async def execute(self, code: Code) -> Request:
        """Put code in line. The request can be found in the log when this returns."""
        self._check_alive()
        self.last_activity_us = now_us()
        self._asked_s = time.monotonic()
        return await self.scheduler.submit(code)

    async def interrupt(self, caller: str = "") -> None:
        self._check_alive()
        if self.process is not None:
            await self.process.interrupt()
        else:
            assert self._link is not None
            self._link.shell.send("control", "interrupt_request", {})
        await self._tell(event_draft(self.id, KernelEvent.INTERRUPTED, caller=caller))

    async def restart(self, reason: str = "asked to", caller: str = "") -> None:
        """Start a new process for it. Everything that waits ends as ``aborted``. A restart under way is joined.

        ``LogUnavailable`` while the log cannot store: the new process might not be heard, and nothing is done.
        """
        process = self._own_process("restart")
        if self._restarting is None:
            self._check_alive()
            self.topic_writer.availability.check()
            self._restarting = self._loop.create_task(self._restart(process, reason, caller))
            # Whoever asked may not wait for it.
            self._restarting.add_done_callback(lambda task: task.cancelled() or task.exception())
        await asyncio.shield(self._restarting)

    async def _restart(self, process: KernelProcess, reason: str, caller: str = "") -> None:
        try:
            self._phase = KernelState.RESTARTING
            self.scheduler.close_all(ExecutionStatus.ABORTED, "the kernel was restarted", caller)
            await self._tell(event_draft(self.id, KernelEvent.RESTARTING, reason=reason, caller=caller))
            # The spool is that of both processes: what is not read now is read later.
            await self._disconnect()
            await process.restart()
            self._said = KernelState.IDLE
            await self._connect(process.connection)
            self.started_us = now_us()
            self._listener.kernel_restarted(self, caller)
            await self._tell(event_draft(self.id, KernelEvent.RESTARTED, pid=process.pid, caller=caller))
        except HimaliaError as error:
            if self._ending is None:
                self._end(KernelEvent.DIED, f"it could not be restarted: {error.message}")
            raise
        finally:
            self._restarting = None

    async def stop(self, reason: str = "asked to", caller: str = "") -> None:
        """End it; a foreign one is only detached. Returns when everything it said is in the log."""
        if self._ending is None:
            self.scheduler.close_all(ExecutionStatus.ABORTED, f"the kernel was stopped ({reason})", caller)
            self._end(KernelEvent.STOPPED, reason, caller=caller)
        assert self._ending is not None
        # Whoever asked may go away; it ends all the same.
        await asyncio.shield(self._ending)

    async def let_go(self) -> None:
        """Leave it running, for another server to come back to. Its open requests stay open."""
        if self._ending is None:
            self._ending = self._loop.create_task(self._let_go())
            self._end_wanted.set_result(None)
        await asyncio.shield(self._ending)

    async def abandon(self) -> None:
        """Let go at once, whatever is under way: what is not in the log stays in the spool, if there is one."""
        self.topic_writer.cancel()
        for task in (self._ending, self._restarting):
            # More than once if need be: before Python 3.12 ``wait_for`` can lose a cancellation that comes just as
            # what it waits for is done, such as the end of the process.
            while task is not None and not task.done():
                task.cancel()
                await asyncio.wait({task}, timeout=CANCEL_AGAIN_S)
        self._ending = self._loop.create_task(self._let_go())
        await self._ending

    async def _let_go(self) -> None:
        await self._end_restarting()
        self.scheduler.detach()
        await self._disconnect()
        await self.topic_writer.close()
        if self.process is not None:
            await self.process.let_go()

    def answer(self, value: str, caller: str = "") -> None:
        """Give what the running code asks for on stdin."""
        asked, self._input = self._input, None
        active = self.scheduler.active
        # It may have been interrupted meanwhile.
        is_asking = asked is not None and active is not None and asked.parent_id == active.id
        if asked is None or self._link is None or not is_asking:
            raise KernelUnavailable("the kernel does not ask for input now", kernel_id=self.id)
        reply = self._link.shell.send_input_reply(value, asked, username=caller or None)
        hidden = asked.decoded_content().get("password") is True
        if not hidden:
            self.topic_writer.append(to_draft(reply, self.id, "stdin"))

    # Listening

    async def _connect(self, connection: ConnectionInfo) -> None:
        """Listen to a new process and wait until it answers, on IOPub too; elsewhere if one of its ports is taken.

        Ports are chosen before the process is there to listen on them, so another program can come first.
        """
        starts = 1
        while True:
            try:
                await self._await_answer(connection)
                return
            except KernelFailed:
                process = self.process
                if process is None or not process.found_port_taken or self._ending or starts == STARTS_MAX:
                    raise
            await self._move(process)
            starts += 1
            connection = process.connection

    async def _move(self, process: KernelProcess) -> None:
        reason = "another program took one of its ports"
        logger.warning("kernel %s is started on other ports: %s", self.id, reason)
        await self._disconnect()
        await process.move()
        # Not a restart: what waits goes on waiting.
        await self._tell(event_draft(self.id, KernelEvent.MOVED, pid=process.pid, reason=reason))

    async def _await_answer(self, connection: ConnectionInfo) -> None:
        link = self._listen(connection)
        timeout_s = self._parts.settings.kernel_start_timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                await self._ask_until_heard(link)
                await _within(STDIN_WITHIN_S, link.shell.can_be_asked.wait())
        except TimeoutError:
            raise KernelFailed(
                f"kernel {self.name!r} did not answer within {timeout_s:g} s{self._last_words()}",
                kernel_id=self.id,
            ) from None
        self._phase = KernelState.IDLE
        self.scheduler.resume()
        if self.process is not None and self.process.returncode is not None:
            # Just now, when its end was not looked for.
            self._exited(self.process.returncode)

    def _listen(self, connection: ConnectionInfo) -> Link:
        link = self._link = Link(self, connection, self.process, self._parts)
        if self.process is not None:
            self.process.on_exit = self._exited
            if self.process.returncode is not None:
                # Before anybody listened.
                self._loop.call_soon(self._exited, self.process.returncode)
        return link

    async def _ask_until_heard(self, link: Link) -> None:
        """Until IOPub is known to work: by the kernel's welcome, or by what it publishes for a request of ours."""
        # The shell of a kernel that is not ours may be busy for hours.
        port: ShellPort = "control" if self.is_foreign else "shell"
        self._heard.clear()
        if self.process is not None:
            # What the kernel says before its keeper hears it is lost, and would have to be asked for again.
            listening = asyncio.ensure_future(self.process.wait_until_listening())
            try:
                await self._done_or_end(listening)
            finally:
                listening.cancel()
        while True:
            asked = self._ask(link, port)
            await self._done_or_end(asked.reply)
            if await self._is_told(self._heard, ASK_AGAIN_S):
                return

    async def _done_or_end(self, future: asyncio.Future[Any]) -> None:
        """Wait for something; raises ``KernelFailed`` if the process ends instead, or is to."""
        waiting: list[asyncio.Future[Any]] = [future, self._end_wanted]
        if self.process is not None:
            waiting.append(self.process.exited)
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if future.done():
            return
        if self.process is None or not self.process.exited.done():
            raise KernelFailed(
                f"kernel {self.name!r} was stopped before it answered{self._last_words()}", kernel_id=self.id
            )
        how = exit_reason(self.process.exited.result(), self.process.limits)
        raise KernelFailed(
            f"kernel {self.name!r} {how} before it answered{self._last_words()}", kernel_id=self.id
        )

    def _ask(self, link: Link, port: ShellPort) -> Asked:
        asked = link.shell.ask(port, "kernel_info_request")
        self._asked.append(asked.id)
        return asked

    async def _await_turn(self, link: Link) -> None:
        """Requests are answered in their order: what was sent before this, and is not done by then, was lost."""
        turn = asyncio.Event()
        asked = self._ask(link, "shell")
        self._turns[asked.id] = turn
        try:
            await asked.reply
            # With its idle, all that the kernel said before has been heard too.
            await self._is_told(turn, IDLE_WITHIN_S)
            # But requests hear of what is routed after the kernel does: their own idle may be in the same batch.
            await link.routed()
        finally:
            del self._turns[asked.id]
        self.scheduler.close_unanswered()

    async def _is_told(self, event: asyncio.Event, within_s: float) -> bool:
        """Whether something is heard in time; while messages wait to be heard, the time does not count."""
        while not event.is_set():
            try:
                await asyncio.wait_for(event.wait(), within_s)
            except TimeoutError:
                if not self.is_behind:
                    return False
        return True

    def _last_words(self) -> str:
        words = self.process.last_words() if self.process is not None else ""
        return f"; it said: {words}" if words else ""

    async def _disconnect(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            await link.close()
            self._faults += link.faults

    async def _hear_out(self) -> None:
        """Returns when all that the process said, which is gone, has been heard."""
        if self.is_foreign:
            await self._quiet()
        if self._link is not None:
            await self._link.finish()

    async def _quiet(self) -> None:
        """Returns when nothing more is on the way."""
        started_s = time.monotonic()
        self._heard_s = max(self._heard_s, started_s)
        while time.monotonic() - started_s < QUIET_AT_MOST_S:
            left_s = self._heard_s + QUIET_S - time.monotonic()
            if left_s <= 0:
                return
            await asyncio.sleep(left_s)

    @property
    def is_behind(self) -> bool:
        """Whether messages of the kernel wait to be read."""
        return self.topic_writer.is_full or (self._link is not None and self._link.is_behind)

    # What comes

    def offer(self, messages: Sequence[KernelMessage]) -> bool:
        """As a subscriber of the broker, in the IOPub thread: follow the kernel's state."""
        self._heard_s = time.monotonic()
        self.last_activity_us = messages[-1].received_us
        for message in messages:
            if message.msg_type == "status":
                self._follow(message)
            elif message.msg_type == "iopub_welcome":
                self._loop.call_soon_threadsafe(self._heard.set)
        return self._ending is None or self._link is not None

    def _follow(self, message: KernelMessage) -> None:
        try:
            state = _status_of(message.content).execution_state
        except msgspec.MsgspecError:
            return
        if message.parent_id in self._asked:
            # Answered beside what it runs, so it says nothing of that.
            self._loop.call_soon_threadsafe(self._heard_of, message.parent_id, state)
        elif state in ("idle", "busy"):
            self._said = KernelState(state)
        elif state == "starting":
            self._said = KernelState.IDLE

    def _heard_of(self, asked_id: str, state: str) -> None:
        self._heard.set()
        if state == "idle" and asked_id in self._turns:
            self._turns[asked_id].set()

    def received(self, port: ShellPort, message: KernelMessage) -> None:
        """What came on the shell, control or stdin socket."""
        if port == "stdin" and message.msg_type == "input_request":
            self._input = message
            self.topic_writer.append(to_draft(message, self.id, "stdin"))
            return
        if message.msg_type == "execute_reply":
            # Its idle follows at once.
            self.topic_writer.append(to_draft(message, self.id, port), is_urgent=False)
            self.scheduler.on_reply(message)

    def faulty(self, faults: Sequence[Fault]) -> None:
        """In the IOPub thread: what was too large to be kept is at least told of."""
        for fault in faults:
            if fault.kind is FaultKind.TOO_LARGE:
                self._loop.call_soon_threadsafe(self._too_large, fault)

    def gap(self, count: int | None) -> None:
        """In the IOPub thread: the spool gave up messages before they were read."""
        self.topic_writer.offer_draft(self.topic_writer.encode_gap(count, SPOOL_WAS_FULL))

    def broken(self) -> None:
        """In the IOPub thread: nobody knows how much a foreign kernel said while it could not be heard."""
        self._loop.call_soon_threadsafe(self.topic_writer.append_gap, None, NOT_HEARD)

    def _too_large(self, fault: Fault) -> None:
        limit = self._parts.settings.kernel_message_bytes_max
        self.topic_writer.append(too_large_draft(self.id, fault, limit))

    async def _tell(self, draft: Draft) -> None:
        """Write something that has happened; where the log cannot store it now, it follows when the log can."""
        try:
            await self.topic_writer.wait_committed(self.topic_writer.append(draft))
        except LogUnavailable as error:
            logger.info("%s: an event is stored later: %s", self.topic, error)

    # What is asked of it

    def send_request(self, request: Request) -> KernelMessage:
        assert self._link is not None
        code = request.code
        return self._link.shell.send_execute_request(
            code.code,
            msg_id=request.id,
            username=code.caller or None,
            silent=code.silent,
            store_history=code.store_history,
            allow_stdin=code.allow_stdin,
            stop_on_error=code.stop_on_error,
        )

    async def interrupt_quietly(self, caller: str) -> None:
        try:
            await self.interrupt(caller)
        except (KernelUnavailable, OSError):
            logger.warning("kernel %s could not be interrupted", self.id, exc_info=True)

    def beating(self, responding: bool) -> None:
        """Its heart stopped, or beats again."""
        logger.log(
            logging.INFO if responding else logging.WARNING,
            "kernel %s %s",
            self.id,
            "answers again" if responding else "does not answer its heartbeat",
        )
        if self.is_foreign and not responding:
            self._die("it no longer answers")

    def _exited(self, returncode: int) -> None:
        if self.process is not None and self.process.lost:
            lost, self.process.lost = self.process.lost, 0
            self.topic_writer.append_gap(lost, DISK_WAS_FULL)
        if self._phase is KernelState.IDLE:
            limits = self.process.limits if self.process is not None else Limits()
            self._die(exit_reason(returncode, limits), returncode=returncode)

    def _die(self, reason: str, **data: Any) -> None:
        if not self.is_alive:
            return
        logger.warning("kernel %s died: %s", self.id, reason)
        self._phase = KernelState.DEAD
        if self.process is not None and self._parts.settings.kernel_auto_restart:
            self._restarting = self._loop.create_task(self._die_and_restart(self.process, reason, data))
            self._restarting.add_done_callback(self._finished)
        else:
            self._end(KernelEvent.DIED, reason, **data)

    async def _die_and_restart(self, process: KernelProcess, reason: str, data: dict[str, Any]) -> None:
        await self._hear_out()
        self.scheduler.close_all(ExecutionStatus.DIED, f"the kernel died: {reason}")
        await self._tell(event_draft(self.id, KernelEvent.DIED, reason=reason, **data))
        await self._restart(process, "it died")

    def _end(self, event: KernelEvent, reason: str, **data: Any) -> None:
        """Begin to end it, once."""
        assert self._ending is None
        self.end_reason, self.ended_by = reason, data.get("caller", "")
        self._ending = self._loop.create_task(self._end_by(event, reason, data))
        self._ending.add_done_callback(self._finished)
        self._end_wanted.set_result(None)

    async def _end_by(self, event: KernelEvent, reason: str, data: dict[str, Any]) -> None:
        """End the process, store all that it said, and say so."""
        await self._end_restarting()
        process = self.process
        if process is not None and self._link is None:
            # It was being restarted: the spool may have more of the old process.
            self._listen(process.connection)
        if self._phase is KernelState.DEAD or (process is not None and not process.is_kept):
            await self._hear_out()
            self.scheduler.close_all(ExecutionStatus.DIED, f"the kernel died: {reason}")
        try:
            if process is not None:
                process.before_release = self._before_release
                await process.stop()
        except Exception:  # what it said, and that it is gone, is to be told all the same
            logger.exception("kernel %s was not ended in order", self.id)
        self._phase = KernelState.DEAD
        self.scheduler.close_all(ExecutionStatus.DIED, "the kernel is gone")
        await self._disconnect()
        try:
            await self.topic_writer.append(event_draft(self.id, event, reason=reason, **data))
            await self.scheduler.finish()
        finally:
            await self.topic_writer.close()
            self._listener.kernel_ended(self)

    async def _before_release(self, keeper: KeeperClient) -> None:
        """All of its spool is committed when this returns: it is about to be removed."""
        await self._hear_out()
        if self._link is not None:
            self._link.check()
        await self.topic_writer.flush()
        self.topic_writer.check()

    async def _end_restarting(self) -> None:
        if self._restarting is not None:
            await asyncio.wait({self._restarting})

    def _check_alive(self) -> None:
        if not self.is_alive:
            raise KernelUnavailable(
                f"kernel {self.id} is {self.state}; restart it or start another", kernel_id=self.id
            )

    def _own_process(self, verb: str) -> KernelProcess:
        if self.process is None:
            raise KernelUnavailable(
                f"kernel {self.id} was started by something else, which can {verb} it; Himalia only listens",
                kernel_id=self.id,
            )
        return self.process

    def _spawn(self, work: Any) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("kernel %s: something failed", self.id, exc_info=task.exception())


async def _within(seconds: float, work: Coroutine[Any, Any, object]) -> None:
    """Wait for something, but not longer than that."""
    try:
        await asyncio.wait_for(work, seconds)
    except TimeoutError:
        logger.warning("a kernel's stdin socket does not answer")
