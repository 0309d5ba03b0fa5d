"""Supervises a kernel's process: starts it, records its output, ends it, and notices its end."""

from __future__ import annotations

import json
import os
import signal
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

from himalia.keeper.child import KernelChild
from himalia.keeper.event_loop import EventLoop
from himalia.keeper.iopub_recorder import IopubRecorder
from himalia.keeper.iopub_socket import IopubSocket
from himalia.keeper.limits import Limits
from himalia.keeper.log_file import LogFile
from himalia.keeper.server_protocol import KernelExit, Launch, SpoolState
from himalia.keeper.spool import Spool

SETTLE_S = 0.25
"""How long a kernel's IOPub connection may outlive it, in a child that inherited it, before it counts as read."""
DISK_WITHIN_S = 5.0
"""How long the end of a kernel is not reported because the disk is full."""


class SupervisorListener(Protocol):
    """Gets the events of a kernel, in the keeper's one thread."""

    def kernel_listening(self) -> None:
        """The keeper is connected to the kernel's IOPub. Called once."""

    def spool_grew(self) -> None:
        """Followers of the spool have to be notified."""

    def kernel_exited(self, exit_: KernelExit) -> None:
        """The kernel has ended, and all that it published is in the spool. Called once."""


class KernelSupervisor:
    """A running kernel, or one that has ended; ``exit`` is None until its whole output was written."""

    def __init__(
        self, directory: Path, launch: Launch, loop: EventLoop, listener: SupervisorListener
    ) -> None:
        """Start the kernel. If anything fails, nothing of it stays behind."""
        self._loop = loop
        self._listener = listener
        self._limits = Limits(int(launch.memory_max), int(launch.cpu_s_max), int(launch.descriptors))
        self._grace_s = float(launch.grace_s)
        self._kill_at: float | None = None
        self._settle_until = 0.0
        self._end_reason = ""
        self._was_connected = False
        self.exit: KernelExit | None = None
        with ExitStack() as undo:
            self._log = LogFile(directory)
            self._spool = Spool(directory, bytes_max=int(launch.spool_bytes_max))
            undo.callback(self._spool.close)
            self._socket = IopubSocket(json.loads(Path(launch.connection_file).read_bytes()))
            self._recorder = IopubRecorder(self._socket, self._spool)
            undo.callback(self._recorder.close)
            self._child = KernelChild(launch.argv, cwd=launch.cwd, env=launch.env, limits=self._limits)
            undo.pop_all()
        loop.add(self._socket.socket, lambda _: self._recorder.receive())
        loop.add(self._socket.monitor, lambda _: self._update_connected())
        loop.add(self._child.output, lambda _: self._copy_output())

    @property
    def pid(self) -> int:
        """The kernel's process, and its process group."""
        return self._child.pid

    @property
    def returncode(self) -> int | None:
        return self._child.returncode

    @property
    def is_busy(self) -> bool:
        return self.exit is None and self._recorder.is_busy

    @property
    def was_connected(self) -> bool:
        """Whether ``kernel_listening`` was called."""
        return self._was_connected

    def signal(self, signum: int) -> bool:
        """Signal the kernel and what it started; return whether the kernel still ran."""
        return self._child.signal(signum)

    def end(self, reason: str) -> None:
        """End the kernel: SIGTERM now, SIGKILL after the grace period. ``reason`` is reported if it still runs."""
        self._kill_at = time.monotonic() + self._grace_s
        # If the kernel has just ended by itself, it did not end for this reason.
        self.check_exit()
        if self._child.signal(signal.SIGTERM):
            self._end_reason = reason

    def check_exit(self) -> None:
        """Notice the end of the kernel's process, after SIGCHLD."""
        if self._child.check_exit():
            self._settle_until = time.monotonic() + SETTLE_S

    def close(self) -> None:
        """End what is left of the kernel, and close the spool."""
        self._child.reap()
        self._recorder.close()
        self._spool.close()

    def spool_state(self) -> SpoolState:
        """Return the state of the spool, with all that the kernel has published by now."""
        self._recorder.write_received()
        spool = self._spool
        return SpoolState(
            dir=str(spool.directory),
            first=spool.first,
            end=spool.end,
            dropped=spool.dropped,
            size_bytes=spool.size_bytes,
            unwritten=spool.unwritten,
        )

    @property
    def due_at(self) -> list[float]:
        """When ``run_due`` has something to do."""
        due = self._recorder.due_at
        if self._kill_at is not None:
            due.append(self._kill_at)
        if self._is_settling and not self._recorder.is_closed:
            due.append(self._settle_until)
        return due

    def run_due(self, now: float) -> None:
        """Do what has become due."""
        if self._kill_at is not None and now >= self._kill_at:
            self._kill_at = None
            self._child.signal(signal.SIGKILL)
        self._recorder.retry_if_due(now)
        if self._recorder.clear_notice_if_due(now):
            self._listener.spool_grew()
        if self._is_settling and (not self._recorder.is_connected or now >= self._settle_until):
            self._settle(now)

    @property
    def _is_settling(self) -> bool:
        """Whether the kernel has ended, and the end of its output is still on its way."""
        return self._child.returncode is not None and self.exit is None

    def _settle(self, now: float) -> None:
        """Write the end of the output, and report the end of the kernel once the disk has stored all of it."""
        if not self._recorder.is_closed:
            self._loop.remove(self._socket.socket)
            self._loop.remove(self._socket.monitor)
            self._recorder.drain_and_close()
        if self._spool.unwritten and now < self._settle_until + DISK_WITHIN_S:
            return
        lost = self._spool.discard_unwritten()
        if self._child.output >= 0:
            self._copy_output()
        self.exit = KernelExit(
            self._child.returncode, lost, self._end_reason, time.time_ns() // 1000, self._limits
        )
        self._listener.kernel_exited(self.exit)

    def _update_connected(self) -> None:
        self._socket.update_connected()
        if self._socket.is_connected and not self._was_connected:
            self._was_connected = True
            self._listener.kernel_listening()

    def _copy_output(self) -> None:
        """Copy what the kernel wrote to stdout and stderr to its log file."""
        try:
            data = os.read(self._child.output, 1 << 16)
        except BlockingIOError:
            return
        if data:
            self._log.write(data)
        else:
            self._loop.remove(self._child.output)
            self._child.close_output()
