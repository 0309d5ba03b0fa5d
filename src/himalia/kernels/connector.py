"""Connects to the processes of one kernel, one after the other, and waits until each answers."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import Any

from himalia.errors import KernelFailed, KernelUnavailable
from himalia.iopub.shell import PendingReply, ShellPort
from himalia.jupyter.connection_file import ConnectionInfo
from himalia.jupyter.records import KernelEvent
from himalia.jupyter.wire import FaultKind, KernelMessage
from himalia.keeper.kernel_process import KernelProcess
from himalia.keeper.limits import exit_reason
from himalia.kernels.connection import KernelConnection, KernelConnectionListener
from himalia.kernels.context import KernelContext
from himalia.kernels.output import KernelOutput
from himalia.kernels.request import Request

logger = logging.getLogger("himalia.kernels")

PROBE_AGAIN_S = 0.5
IDLE_WITHIN_S = 10.0
"""How long a kernel may take from a reply to the idle that belongs to it."""
STDIN_WITHIN_S = 2.0
"""How long to wait for the socket by which a kernel requests input; one that has none runs without."""
STARTS_MAX = 4
"""How often a process is started in all when other programs take its ports."""


class KernelConnector:
    """Belongs to the event loop. ``process`` is None for an attached kernel, which another program started."""

    def __init__(
        self,
        name: str,
        process: KernelProcess | None,
        output: KernelOutput,
        context: KernelContext,
        listener: KernelConnectionListener,
    ) -> None:
        self.process = process
        self._name = name
        self._output = output
        self._context = context
        self._listener = listener
        self._connection: KernelConnection | None = None
        # Of the connections before this one.
        self._faults: Counter[FaultKind] = Counter()
        self._cancelled: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def is_connected(self) -> bool:
        return self._connection is not None

    @property
    def is_responding(self) -> bool:
        """Whether the kernel answers pings."""
        return self._connection is not None and self._connection.heartbeat.is_responding

    @property
    def is_behind(self) -> bool:
        """Whether messages of the kernel wait to be read: its silence means nothing then."""
        return self._output.topic_writer.is_full or (
            self._connection is not None and self._connection.is_behind
        )

    @property
    def faults(self) -> dict[str, int]:
        """Messages refused, by what was wrong with them, over all processes of the kernel."""
        faults = self._faults + self._connection.faults if self._connection else self._faults
        return {str(kind): count for kind, count in faults.items()}

    # Connecting

    async def connect(self, address: ConnectionInfo) -> None:
        """Connect to a new process and wait until it answers, on IOPub too. Raises ``KernelFailed``.

        If another program has taken one of its ports, the process is started again on others: ports are chosen before
        the process exists.
        """
        starts = 1
        while True:
            try:
                await self._wait_until_ready(address)
                return
            except KernelFailed:
                process = self.process
                is_cancelled = self._cancelled.done()
                if process is None or not process.failed_on_port_conflict:
                    raise
                if is_cancelled or starts == STARTS_MAX:
                    raise
            await self._restart_on_new_ports(process)
            starts += 1
            address = process.connection

    def cancel(self) -> None:
        """Wait no longer for a kernel that does not answer, now or later: the kernel is to end."""
        if not self._cancelled.done():
            self._cancelled.set_result(None)

    def open(self, address: ConnectionInfo) -> KernelConnection:
        """Connect without waiting for an answer."""
        self._connection = KernelConnection(
            address, self.process, self._output, self._context, self._listener
        )
        if self.process is not None:
            self.process.exited.add_done_callback(lambda exited: self._listener.on_exit(exited.result()))
        return self._connection

    async def close(self) -> None:
        """Close the connection, if there is one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()
            self._faults += connection.faults

    async def _restart_on_new_ports(self, process: KernelProcess) -> None:
        reason = "another program took one of its ports"
        logger.warning("kernel %s is started on other ports: %s", self._output.kernel_id, reason)
        await self.close()
        await process.restart_on_new_ports()
        # Not a restart: requests that wait keep waiting.
        await self._output.record_event(KernelEvent.MOVED, pid=process.pid, reason=reason)

    async def _wait_until_ready(self, address: ConnectionInfo) -> None:
        connection = self.open(address)
        timeout_s = self._context.settings.kernel_start_timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                await self._probe_until_received(connection)
                await _wait_for_stdin(connection)
        except TimeoutError:
            raise self._failure(f"did not answer within {timeout_s:g} s") from None

    async def _probe_until_received(self, connection: KernelConnection) -> None:
        """Probe until IOPub is known to work: by the kernel's welcome, or by what it publishes for a probe."""
        # The shell of an attached kernel may be busy for hours.
        port: ShellPort = "shell" if self.process is not None else "control"
        self._output.monitor.received.clear()
        if self.process is not None:
            # What the kernel publishes before its keeper listens is lost, and would have to be probed for again.
            listening = asyncio.ensure_future(self.process.wait_until_listening())
            try:
                await self._wait_unless_ended(listening)
            finally:
                listening.cancel()
        while True:
            await self._wait_unless_ended(self._probe(connection, port).reply)
            if await self._wait_for(self._output.monitor.received, PROBE_AGAIN_S):
                return

    async def _wait_unless_ended(self, work: asyncio.Future[Any]) -> None:
        """Wait for work; raises ``KernelFailed`` if the process ends first, or ``cancel`` is called."""
        waiting: list[asyncio.Future[Any]] = [work, self._cancelled]
        if self.process is not None:
            waiting.append(self.process.exited)
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            return
        if self.process is None or not self.process.exited.done():
            raise self._failure("was stopped before it answered")
        how = exit_reason(self.process.exited.result(), self.process.limits)
        raise self._failure(f"{how} before it answered")

    def _failure(self, what: str) -> KernelFailed:
        end = self.process.log_excerpt() if self.process is not None else ""
        excerpt = f"; it said: {end}" if end else ""
        return KernelFailed(f"kernel {self._name!r} {what}{excerpt}", kernel_id=self._output.kernel_id)

    def _probe(self, connection: KernelConnection, port: ShellPort) -> PendingReply:
        probe = connection.shell.request(port, "kernel_info_request")
        self._output.monitor.expect(probe.id)
        return probe

    async def _wait_for(self, signal: asyncio.Event, within_s: float) -> bool:
        """Return whether a signal comes in time; while messages wait to be read, the time does not count."""
        while not signal.is_set():
            try:
                await asyncio.wait_for(signal.wait(), within_s)
            except TimeoutError:
                if not self.is_behind:
                    return False
        return True

    # To the kernel

    def send_request(self, request: Request) -> KernelMessage:
        """Send the request over the shell socket; returns the message sent."""
        code = request.code
        return self._connected.shell.send_execute_request(
            code.code,
            msg_id=request.id,
            username=code.caller or None,
            silent=code.silent,
            store_history=code.store_history,
            allow_stdin=code.allow_stdin,
            stop_on_error=code.stop_on_error,
        )

    def send_input_reply(self, value: str, request: KernelMessage, caller: str) -> KernelMessage:
        """Reply to an ``input_request``; returns the message sent."""
        return self._connected.shell.send_input_reply(value, request, username=caller or None)

    async def interrupt(self, caller: str) -> None:
        """Interrupt the running code for a caller, and record it. The name is empty if a time limit is the cause."""
        if self._cancelled.done():
            raise KernelUnavailable("the kernel is ending", kernel_id=self._output.kernel_id)
        if self.process is not None:
            await self.process.interrupt()
        else:
            self._connected.shell.send("control", "interrupt_request", {})
        await self._output.record_event(KernelEvent.INTERRUPTED, caller=caller)

    @property
    def _connected(self) -> KernelConnection:
        if self._connection is None:
            raise KernelUnavailable("the kernel is not connected", kernel_id=self._output.kernel_id)
        return self._connection

    # From the kernel

    async def wait_handled(self) -> None:
        """Wait until the kernel has handled every request sent so far, and what it published for them is routed.

        Kernels handle the requests of one shell in their order, so those that are not done by then were lost.
        """
        connection = self._connected
        probe = self._probe(connection, "shell")
        idle = self._output.monitor.expect_idle(probe.id)
        try:
            await probe.reply
            # With its idle, everything that the kernel published before has been received too.
            await self._wait_for(idle, IDLE_WITHIN_S)
            # But requests get their messages after subscribers: their own idle may be in the same batch.
            await connection.wait_routed()
        finally:
            self._output.monitor.forget_idle(probe.id)

    async def drain_output(self) -> None:
        """Wait until everything that a process that has ended published is on its way to the log."""
        if self.process is None:
            await self._output.monitor.wait_for_silence()
        if self._connection is not None:
            await self._connection.finish()

    async def commit_output(self) -> None:
        """Wait until everything in the spool is committed. Raises if it could not be read or stored."""
        await self.drain_output()
        if self._connection is not None:
            self._connection.check_spool()
        await self._output.topic_writer.flush()
        self._output.topic_writer.check()


async def _wait_for_stdin(connection: KernelConnection) -> None:
    try:
        await asyncio.wait_for(connection.shell.stdin_connected.wait(), STDIN_WITHIN_S)
    except TimeoutError:
        logger.warning("a kernel's stdin socket does not answer")
