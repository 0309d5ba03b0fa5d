"""The life of one kernel: it starts, is restarted, dies, and is stopped or left to another server."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Protocol

from himalia.errors import HimaliaError, KernelUnavailable
from himalia.jupyter.connection_file import ConnectionInfo
from himalia.jupyter.records import DISK_WAS_FULL, KernelEvent
from himalia.keeper.client import KeeperClient
from himalia.keeper.kernel_process import KernelProcess
from himalia.keeper.limits import exit_reason
from himalia.kernels.connector import KernelConnector
from himalia.kernels.output import KernelOutput
from himalia.kernels.phase import KernelPhase, PhaseEvent, next_phase, public_state
from himalia.kernels.scheduler import RequestScheduler
from himalia.protocol.models import ExecutionStatus, KernelState
from himalia.record import now_us

logger = logging.getLogger("himalia.kernels")

CANCEL_AGAIN_S = 0.5


class LifecycleListener(Protocol):
    """The kernel, as its life cycle reports to it. Called on the event loop, and must not raise."""

    def on_restarted(self, caller: str) -> None:
        """It has a new process. ``caller`` is empty if it was restarted because it died."""

    def on_ended(self) -> None:
        """It died or was stopped, and its last record is committed, or never will be."""


class KernelLifecycle:
    """Belongs to the event loop. The order of events at an end is in ``_run_end``."""

    def __init__(
        self,
        connector: KernelConnector,
        output: KernelOutput,
        scheduler: RequestScheduler,
        listener: LifecycleListener,
        *,
        restarts_dead: bool,
    ) -> None:
        self.started_us = now_us()
        """When its process was started, or this server attached to it."""
        self.end_reason = self.ended_by = ""
        """Why it ended, and the caller who stopped it, if one did."""
        self._kernel_id = output.kernel_id
        self._process = connector.process
        self._connector = connector
        self._output = output
        self._scheduler = scheduler
        self._listener = listener
        self._restarts_dead = restarts_dead
        self._phase = KernelPhase.STARTING
        self._restarting: asyncio.Task[None] | None = None
        # The end, or the detaching. It is begun once, and only ``abort`` replaces it.
        self._ending: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()

    @property
    def state(self) -> KernelState:
        return public_state(self._phase, self._output.monitor.reported_state)

    @property
    def is_alive(self) -> bool:
        return self._phase is not KernelPhase.DEAD and self._ending is None

    def check_alive(self) -> None:
        """Raise ``KernelUnavailable`` for a kernel that is dead or ending."""
        if not self.is_alive:
            raise KernelUnavailable(
                f"kernel {self._kernel_id} is {self.state}; restart it or start another",
                kernel_id=self._kernel_id,
            )

    # Start and restart

    async def connect(self, address: ConnectionInfo) -> None:
        """Wait until a new process answers, and begin to send requests to it. Raises ``KernelFailed``."""
        await self._connector.connect(address)
        self._move(PhaseEvent.ANSWERED)
        if self._phase is KernelPhase.RUNNING:
            self._scheduler.resume()
        if self._process is not None and self._process.returncode is not None:
            # It ended before the phase was RUNNING, in which an end counts as a death.
            self.on_exit(self._process.returncode)

    def connect_running(self, address: ConnectionInfo) -> None:
        """Connect to a process that has answered an earlier server, and begin to send requests to it."""
        self._move(PhaseEvent.ANSWERED)
        self._connector.open(address)
        self._scheduler.resume()

    async def restart(self, reason: str, caller: str) -> None:
        """Start a new process; every open request ends as ``aborted``. A restart under way is joined.

        Raises ``KernelUnavailable`` for an attached kernel; ``LogUnavailable`` while the log cannot store, and does
        nothing then, because the output of the new process might be lost.
        """
        process = self._process
        if process is None:
            raise KernelUnavailable(
                f"kernel {self._kernel_id} is attached, not managed by Himalia, so it cannot be restarted here",
                kernel_id=self._kernel_id,
            )
        if self._restarting is None:
            self.check_alive()
            self._output.topic_writer.availability.check()
            self._restarting = self._loop.create_task(self._restart(process, reason, caller))
            # Read the exception even if the caller has gone: asyncio would log it.
            self._restarting.add_done_callback(lambda task: task.cancelled() or task.exception())
        await asyncio.shield(self._restarting)

    async def _restart(self, process: KernelProcess, reason: str, caller: str = "") -> None:
        try:
            self._move(PhaseEvent.RESTART)
            self._scheduler.close_all(ExecutionStatus.ABORTED, "the kernel was restarted", caller)
            await self._output.record_event(KernelEvent.RESTARTING, reason=reason, caller=caller)
            # Both processes have one spool: what is not read now is read after the restart.
            await self._connector.close()
            await process.restart()
            self._output.monitor.reported_state = KernelState.IDLE
            await self.connect(process.connection)
            self.started_us = now_us()
            self._listener.on_restarted(caller)
            await self._output.record_event(KernelEvent.RESTARTED, pid=process.pid, caller=caller)
        except HimaliaError as error:
            if self._ending is None:
                self._end(KernelEvent.DIED, f"it could not be restarted: {error.message}")
            raise
        finally:
            self._restarting = None

    # Death

    def on_exit(self, returncode: int) -> None:
        """The process has ended. Its keeper reports that after everything that it published is in the spool."""
        assert self._process is not None
        if self._process.unspooled:
            count, self._process.unspooled = self._process.unspooled, 0
            self._output.topic_writer.append_gap(count, DISK_WAS_FULL)
        if self._phase is KernelPhase.RUNNING:
            self._die(exit_reason(returncode, self._process.limits), returncode=returncode)

    def on_responding(self, responding: bool) -> None:
        """The kernel stopped answering pings, or answers again. An attached one that stops is taken for dead."""
        logger.log(
            logging.INFO if responding else logging.WARNING,
            "kernel %s %s",
            self._kernel_id,
            "answers its heartbeat again" if responding else "does not answer its heartbeat",
        )
        if self._process is None and not responding:
            self._die("it no longer answers")

    def _die(self, reason: str, **data: Any) -> None:
        if not self.is_alive:
            return
        logger.warning("kernel %s died: %s", self._kernel_id, reason)
        self._move(PhaseEvent.END)
        if self._process is not None and self._restarts_dead:
            self._restarting = self._loop.create_task(self._restart_dead(self._process, reason, data))
            self._restarting.add_done_callback(self._log_failure)
        else:
            self._end(KernelEvent.DIED, reason, **data)

    async def _restart_dead(self, process: KernelProcess, reason: str, data: dict[str, Any]) -> None:
        await self._connector.drain_output()
        self._scheduler.close_all(ExecutionStatus.DIED, f"the kernel died: {reason}")
        await self._output.record_event(KernelEvent.DIED, reason=reason, **data)
        await self._restart(process, "it died")

    # End

    async def stop(self, reason: str, caller: str) -> None:
        """End the kernel; only detach from an attached one. Returns when all of its output is committed."""
        if self._ending is None:
            self._scheduler.close_all(ExecutionStatus.ABORTED, f"the kernel was stopped ({reason})", caller)
            self._end(KernelEvent.STOPPED, reason, caller=caller)
        assert self._ending is not None
        # The end continues if the caller is cancelled.
        await asyncio.shield(self._ending)

    async def detach(self) -> None:
        """Leave the kernel running, for another server. Its open requests stay open."""
        if self._ending is None:
            self._ending = self._loop.create_task(self._detach())
            self._connector.cancel()
        await asyncio.shield(self._ending)

    async def abort(self) -> None:
        """Detach at once, whatever is under way: output that is not committed stays in the spool, if there is one."""
        self._output.topic_writer.cancel()
        for task in (self._ending, self._restarting):
            # More than once if need be: before Python 3.12 ``wait_for`` can lose a cancellation that comes just as
            # what it waits for is done, such as the end of the process.
            while task is not None and not task.done():
                task.cancel()
                await asyncio.wait({task}, timeout=CANCEL_AGAIN_S)
        self._ending = self._loop.create_task(self._detach())
        await self._ending

    async def _detach(self) -> None:
        await self._wait_restarted()
        self._move(PhaseEvent.DETACH)
        self._scheduler.detach()
        await self._connector.close()
        self._output.monitor.close()
        await self._output.topic_writer.close()
        if self._process is not None:
            await self._process.detach()

    def _end(self, event: KernelEvent, reason: str, **data: Any) -> None:
        """Begin the end, once."""
        assert self._ending is None
        self.end_reason, self.ended_by = reason, data.get("caller", "")
        self._ending = self._loop.create_task(self._run_end(event, reason, data))
        self._ending.add_done_callback(self._log_failure)
        self._connector.cancel()

    async def _run_end(self, event: KernelEvent, reason: str, data: dict[str, Any]) -> None:
        """End the process, commit all of its output, and then record the end as the topic's last event."""
        await self._wait_restarted()
        process = self._process
        if process is not None and not self._connector.is_connected:
            # A restart was broken off: the spool may have more output of the old process.
            self._connector.open(process.connection)
        if self._phase is KernelPhase.DEAD or (process is not None and not process.is_kept):
            await self._connector.drain_output()
            self._scheduler.close_all(ExecutionStatus.DIED, f"the kernel died: {reason}")
        try:
            if process is not None:
                await process.stop(before_release=self._commit_output)
        except Exception:  # its output, and the record of its end, must be stored all the same
            logger.exception("kernel %s was not ended in order", self._kernel_id)
        self._move(PhaseEvent.END)
        self._scheduler.close_all(ExecutionStatus.DIED, "the kernel is gone")
        await self._connector.close()
        self._output.monitor.close()
        try:
            await self._output.append_event(event, reason=reason, **data)
            await self._scheduler.finish()
        finally:
            await self._output.topic_writer.close()
            self._listener.on_ended()

    async def _commit_output(self, keeper: KeeperClient) -> None:
        await self._connector.commit_output()

    async def _wait_restarted(self) -> None:
        if self._restarting is not None:
            await asyncio.wait({self._restarting})

    def _move(self, event: PhaseEvent) -> None:
        self._phase = next_phase(self._phase, event)

    def _log_failure(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            logger.error(
                "kernel %s was not restarted or ended in order", self._kernel_id, exc_info=task.exception()
            )
