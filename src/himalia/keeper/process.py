"""The keeper's process: one thread and one event loop for a kernel and the servers that are connected.

The messages are in ``server_protocol``. Whatever a server sends, the keeper answers it and continues.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import Any

from himalia import __version__
from himalia.file_lock import lock_directory
from himalia.keeper import kernel_directory
from himalia.keeper.event_loop import EventLoop
from himalia.keeper.kernel_supervisor import KernelSupervisor
from himalia.keeper.lease import Lease
from himalia.keeper.server_connection import KeeperConnection, ServerConnections
from himalia.keeper.server_protocol import (
    KeeperEvent,
    KeeperInfo,
    KeeperOp,
    KernelExit,
    Launch,
    ProcessState,
    from_fields,
)


class InvalidRequest(Exception):
    """A request that cannot be served; its text goes to the server that sent it."""


class SignalSocket:
    """Signals as a readable socket. Handlers are functions, since an exec would pass ignored signals on."""

    def __init__(self) -> None:
        self.has_sigterm = False
        self.reader, self._writer = socket.socketpair()
        self.reader.setblocking(False)
        self._writer.setblocking(False)
        signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        for signum in (signal.SIGCHLD, signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
            signal.signal(signum, self._handle)
        # The process that started the keeper may have blocked some, and the kernel would inherit that.
        signal.pthread_sigmask(signal.SIG_SETMASK, ())

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if signum == signal.SIGTERM:
            self.has_sigterm = True

    def clear(self) -> None:
        """Read what the signals so far have written."""
        try:
            while self.reader.recv(4096):
                pass
        except BlockingIOError:
            pass


class _Shutdown:
    """The kernel is being ended, and the keeper after it."""

    def __init__(self, *, keeps_files: bool) -> None:
        self.keeps_files = keeps_files
        """For the next server. One that releases the kernel, and has read all that there is, says otherwise."""
        self.releases: list[tuple[KeeperConnection, Any]] = []
        """The ``release`` requests, which are answered when all is done."""


class KeeperProcess:
    """One kernel and the servers that hold its lease. Gets the events of both, all in one thread."""

    def __init__(
        self, directory: Path, server: KeeperConnection, request: dict[str, Any], signals: SignalSocket
    ) -> None:
        """Start the kernel that the request describes. If anything fails, nothing of it stays behind."""
        self._directory = directory
        self._launch = launch = from_fields(Launch, request)
        self._signals = signals
        self._lease = Lease(float(launch.keep_s), float(launch.busy_keep_s))
        self._shutdown: _Shutdown | None = None
        self._is_done = False
        self._loop = EventLoop()
        with ExitStack() as undo:
            self._lock = _lock(directory)
            undo.callback(os.close, self._lock)
            self._socket_path = _replace_socket(directory)
            undo.callback(kernel_directory.remove_socket, self._socket_path)
            self._servers = ServerConnections(self._socket_path, self._loop, self._lease, self)
            undo.callback(self._servers.close)
            self._kernel = KernelSupervisor(directory, launch, self._loop, self)
            undo.callback(self._kernel.close)
            self._info = self._create_info()
            self._write_info(None)
            undo.pop_all()
        self._loop.add(signals.reader.fileno(), lambda _: self._receive_signals())
        self._servers.add(server)
        server.send({"id": request["id"], "ok": True, **self._hello()})

    def run(self) -> None:
        """Serve until the kernel was released or its lease is over."""
        while not self._is_done:
            self._loop.poll(self._timeout_s())
            self._run_due()

    def _timeout_s(self) -> float | None:
        """Return how long nothing can be due; None without a limit."""
        now = time.monotonic()
        due = [due_at - now for due_at in self._kernel.due_at]
        if self._lease.remaining_s is not None and self._shutdown is None:
            due.append(self._lease.remaining_s)
        return min(due, default=None)

    def _run_due(self) -> None:
        self._lease.set_busy(self._kernel.is_busy)
        if self._shutdown is None and self._signals.has_sigterm:
            self._begin_shutdown("its keeper was asked to end by SIGTERM")
        if self._shutdown is None and self._lease.is_over:
            self._begin_shutdown(f"no server came back for it within {self._lease.term_s:g} s")
        self._kernel.run_due(time.monotonic())
        if self._shutdown is not None and self._kernel.exit is not None:
            self._finish(self._shutdown)

    def _receive_signals(self) -> None:
        self._signals.clear()
        self._kernel.check_exit()

    def _begin_shutdown(self, reason: str) -> _Shutdown:
        """Begin to end the kernel and the keeper, unless that has begun."""
        if self._shutdown is None:
            self._shutdown = _Shutdown(keeps_files=bool(self._launch.keeps_files))
            self._kernel.end(reason)
        return self._shutdown

    def _finish(self, shutdown: _Shutdown) -> None:
        self._kernel.close()
        self._servers.close()
        if shutdown.keeps_files:
            kernel_directory.remove_socket(self._socket_path)
        else:
            kernel_directory.remove(
                self._directory,
                connection_file=Path(self._info.connection_file),
                socket=self._socket_path,
            )
        os.close(self._lock)
        for connection, request_id in shutdown.releases:
            connection.send({"id": request_id, "ok": True})
        self._is_done = True

    # As SupervisorListener

    def kernel_listening(self) -> None:
        self._servers.broadcast({"event": KeeperEvent.LISTENING})

    def spool_grew(self) -> None:
        self._servers.notify_followers()

    def kernel_exited(self, exit_: KernelExit) -> None:
        self._lease.set_busy(False)
        try:
            # A later server reads it, also if the keeper is killed before.
            self._write_info(exit_)
        except OSError:
            pass  # the disk is full; a later server still has the spool
        self._servers.broadcast(_exited(exit_))

    # As ConnectionListener

    def connected(self, connection: KeeperConnection) -> None:
        if self._kernel.was_connected:
            connection.send({"event": KeeperEvent.LISTENING})
        if self._kernel.exit is not None:
            connection.send(_exited(self._kernel.exit))

    def request_received(self, connection: KeeperConnection, line: bytes) -> None:
        request_id = None
        try:
            request = json.loads(line)
            if not isinstance(request, dict):
                raise InvalidRequest("a request is a JSON object")
            request_id = request.get("id")
            answer = self._serve(connection, request)
        except (InvalidRequest, ValueError, TypeError, KeyError, OSError, OverflowError) as error:
            connection.send({"id": request_id, "ok": False, "error": f"{type(error).__name__}: {error}"})
        else:
            if answer is not None:
                connection.send({"id": request_id, "ok": True, **answer})

    def _serve(self, connection: KeeperConnection, request: dict[str, Any]) -> dict[str, Any] | None:
        """Serve one request and return the fields of its answer; None if it is answered later."""
        match request.get("op"):
            case KeeperOp.HELLO:
                return self._hello()
            case KeeperOp.SIGNAL:
                return {"delivered": self._kernel.signal(_signum(request["signum"]))}
            case KeeperOp.STAY:
                self._lease.set_duration(max(float(request["seconds"]), 0.0))
                return {}
            case KeeperOp.SPOOL:
                return self._kernel.spool_state()._asdict()
            case KeeperOp.FOLLOW:
                self._servers.make_follower(connection)
                return {}
            case KeeperOp.LAUNCH:
                return {"launch": self._launch.launch}
            case KeeperOp.RELEASE:
                self._release(connection, request)
                return None
            case op:
                raise InvalidRequest(f"no such op: {op!r}")

    def _release(self, connection: KeeperConnection, request: dict[str, Any]) -> None:
        shutdown = self._begin_shutdown("a server released it")
        # The files stay if any of the servers that release the kernel wants them.
        keeps_files = bool(request.get("keep_files"))
        shutdown.keeps_files = keeps_files or (shutdown.keeps_files and bool(shutdown.releases))
        shutdown.releases.append((connection, request.get("id")))

    def _hello(self) -> dict[str, Any]:
        returncode = self._kernel.returncode
        state = ProcessState(returncode is None, returncode, self._kernel.spool_state()._asdict())
        return {**self._info._asdict(), **state._asdict()}

    def _create_info(self) -> KeeperInfo:
        launch = self._launch
        return KeeperInfo(
            kernel_id=launch.kernel_id,
            kernel_name=launch.kernel_name,
            display_name=launch.display_name,
            interrupt_mode=launch.interrupt_mode,
            connection_file=launch.connection_file,
            argv=launch.argv,
            cwd=launch.cwd,
            pid=self._kernel.pid,
            keeper_pid=os.getpid(),
            socket=str(self._socket_path),
            started_us=time.time_ns() // 1000,
            version=__version__,
            grace_s=launch.grace_s,
            owner=launch.owner,
            keeps_files=launch.keeps_files,
        )

    def _write_info(self, exit_: KernelExit | None) -> None:
        """Write ``keeper.json``, with the end of the kernel if it has ended."""
        end = {} if exit_ is None else {"exit": exit_._asdict()}
        kernel_directory.write_info(self._directory, {**self._info._asdict(), **end})


def _lock(directory: Path) -> int:
    lock = lock_directory(directory)
    if lock is None:
        raise InvalidRequest(f"another keeper lives in {directory}")
    return lock


def _replace_socket(directory: Path) -> Path:
    """Remove the socket that an earlier keeper left, and choose the path of a new one."""
    left = kernel_directory.read_info(directory)
    if left is not None and "socket" in left:
        kernel_directory.remove_socket(Path(left["socket"]))
    return kernel_directory.choose_socket_path(directory)


def _exited(exit_: KernelExit) -> dict[str, Any]:
    return {"event": KeeperEvent.EXITED, "returncode": exit_.returncode, "lost": exit_.lost}


def _signum(value: Any) -> int:
    # Not by the enumeration, which lacks most real-time signals, and 0, which only checks.
    if not isinstance(value, int) or not 0 <= value < signal.NSIG:
        raise InvalidRequest(f"no such signal: {value!r}")
    return value
