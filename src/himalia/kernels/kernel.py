"""One hosted kernel: what it is, and what callers can do with it."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from himalia.iopub.shell import ShellPort
from himalia.jupyter.connection_file import ConnectionInfo
from himalia.jupyter.lifecycle import RequestState
from himalia.jupyter.records import KernelEvent
from himalia.jupyter.wire import KernelMessage
from himalia.keeper.kernel_process import KernelProcess
from himalia.keeper.spool_consumer import SpoolPosition
from himalia.kernels.connector import KernelConnector
from himalia.kernels.context import KernelContext
from himalia.kernels.input_requests import InputRequests
from himalia.kernels.kernel_lifecycle import KernelLifecycle
from himalia.kernels.model import KernelIdentity, KernelListener, KernelModel, KernelState
from himalia.kernels.output import KernelOutput
from himalia.kernels.request import Code, Request
from himalia.kernels.scheduler import RequestScheduler
from himalia.log.api import Log
from himalia.tasks import TaskSet

logger = logging.getLogger("himalia.kernels")


class Kernel:
    """A kernel that this server listens to. Lives on the event loop.

    ``process`` is None for an attached kernel: another program started it, and only its output is stored.
    """

    def __init__(
        self,
        identity: KernelIdentity,
        process: KernelProcess | None,
        context: KernelContext,
        listener: KernelListener,
    ) -> None:
        self.id = identity.id
        self.name = identity.name
        self.process = process
        self.output = KernelOutput(identity.id, identity.owner, context)
        self.connector = KernelConnector(identity.name, process, self.output, context, self)
        self.scheduler = RequestScheduler(
            self.output.broker,
            self.output.topic_writer,
            self.connector,
            queue_max=context.settings.kernel_queue_max,
            tracing=context.tracing,
        )
        self.inputs = InputRequests(self.connector, self.output, self.scheduler)
        self.lifecycle = KernelLifecycle(
            self.connector,
            self.output,
            self.scheduler,
            self,
            restarts_dead=context.settings.kernel_auto_restart,
        )
        self.log: Log = context.log
        self._listener = listener
        self._tasks = TaskSet(logger, f"requests of an earlier server to kernel {self.id} were not closed")

    @property
    def topic(self) -> str:
        return self.output.topic.name

    @property
    def owner(self) -> str | None:
        """The caller whose kernel it is, as its topic has it; None if that is not known."""
        return self.output.topic.owner

    @property
    def is_foreign(self) -> bool:
        """Whether another program started it."""
        return self.process is None

    @property
    def is_alive(self) -> bool:
        return self.lifecycle.is_alive

    @property
    def state(self) -> KernelState:
        return self.lifecycle.state

    @property
    def is_busy(self) -> bool:
        """Whether it runs code, of whichever client, or has requests of ours."""
        return self.state is not KernelState.IDLE or self.scheduler.is_busy

    def model(self, connections: int = 0) -> KernelModel:
        """Describe the kernel as it is now; ``connections`` is the number of its topic's subscribers."""
        active = self.scheduler.active
        return KernelModel(
            id=self.id,
            name=self.name,
            last_activity_us=self.output.monitor.last_activity_us,
            execution_state=self.state,
            connections=connections,
            topic=self.topic,
            owner=self.owner,
            is_foreign=self.is_foreign,
            responding=self.connector.is_responding,
            queued=self.scheduler.queued,
            active_request=active.id if active is not None else None,
            pid=self.process.pid if self.process is not None else None,
            started_us=self.lifecycle.started_us,
            buffered_bytes=self.output.topic_writer.buffered_bytes,
        )

    # Opening

    async def open(self, address: ConnectionInfo, event: KernelEvent, **data: object) -> None:
        """Create its topic, record how it came to be here, connect, and wait until it answers.

        Raises ``KernelFailed``; ``LogUnavailable`` if the record cannot be stored now.
        """
        await self.output.topic.create()
        recorded = self.output.append_event(event, name=self.name, owner=self.owner, **data)
        await self.output.topic_writer.wait_committed(recorded)
        await self.lifecycle.connect(address)

    async def resume(
        self, address: ConnectionInfo, position: SpoolPosition, requests: Sequence[RequestState]
    ) -> None:
        """Connect again after an earlier server, and first read what the spool has after the position."""
        # It does not exist if the server was killed before it created it, or if an older backup was restored.
        await self.output.topic.create()
        self.output.append_event(KernelEvent.REATTACHED, name=self.name, owner=self.owner)
        # Before connecting: messages in the spool may belong to these requests.
        await self.adopt_requests(requests)
        self.output.position = position
        self.lifecycle.connect_running(address)
        self.close_unanswered()

    async def adopt_requests(self, requests: Sequence[RequestState]) -> None:
        """Continue the requests that an earlier server left open: wait for those that were sent, close the others."""
        # By the log's time, as the requests are: this machine's clock may have jumped since.
        log_us = (await self.log.info(self.topic)).last_ts_us
        for request in requests:
            self.scheduler.adopt(request, log_us)
        if self.scheduler.active is not None:
            self.output.monitor.reported_state = KernelState.BUSY

    def close_unanswered(self) -> None:
        """Close adopted requests when the kernel has handled all of them, even if their ends were lost."""
        if self.scheduler.active is not None and self.connector.is_connected:
            self._tasks.spawn(self._close_unanswered())

    async def _close_unanswered(self) -> None:
        await self.connector.wait_handled()
        self.scheduler.close_unanswered()

    # Running code

    async def execute(self, code: Code) -> Request:
        """Queue code. The request can be found in the log when this returns."""
        self.lifecycle.check_alive()
        self.output.monitor.note_request()
        return await self.scheduler.submit(code)

    async def interrupt(self, caller: str = "") -> None:
        """Interrupt the running code. ``KernelUnavailable`` if the kernel is dead or ending."""
        self.lifecycle.check_alive()
        await self.connector.interrupt(caller)

    async def restart(self, reason: str = "asked to", caller: str = "") -> None:
        """Start a new process for it; see ``KernelLifecycle.restart``."""
        await self.lifecycle.restart(reason, caller)

    async def stop(self, reason: str = "asked to", caller: str = "") -> None:
        """End it, or detach from an attached one; returns when all of its output is committed."""
        await self.lifecycle.stop(reason, caller)

    # As the listener of its connection

    def on_shell_message(self, port: ShellPort, message: KernelMessage) -> None:
        """Record a request for input or the reply to a request. Other messages answer probes."""
        if port == "stdin" and message.msg_type == "input_request":
            self.inputs.on_request(message)
        elif message.msg_type == "execute_reply":
            # Its idle follows at once, and can share the commit.
            self.output.append_message(message, port, is_urgent=False)
            self.scheduler.on_reply(message)

    def on_heartbeat(self) -> None:
        """The kernel is alive, so the request that it runs is not stale."""
        self.scheduler.touch()

    def on_responding(self, responding: bool) -> None:
        """The kernel stopped answering pings, or answers again."""
        self.lifecycle.on_responding(responding)

    def on_exit(self, returncode: int) -> None:
        """Its process has ended."""
        self.lifecycle.on_exit(returncode)

    # As the listener of its life cycle

    def on_restarted(self, caller: str) -> None:
        """It has a new process."""
        self._listener.kernel_restarted(self, caller)

    def on_ended(self) -> None:
        """It died or was stopped."""
        self._listener.kernel_ended(self)
