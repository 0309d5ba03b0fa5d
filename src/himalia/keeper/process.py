"""The keeper's one thread: it starts the kernel, then waits for whatever comes first and serves it.

Requests are JSON lines with an ``op`` and an ``id``; each is answered by a line with that ``id``, and ``ok`` or
``error``. Events come between the answers: ``listening`` when the keeper hears the kernel's IOPub, ``exited`` when
the kernel has ended and all that it published is in the spool, but for what was ``lost`` because the disk did not
take it; both are told again to a server that comes later. After ``follow`` a connection gets nothing but an empty line
whenever the spool has grown; it does not hold the lease.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import zmq

from himalia import __version__
from himalia.file_lock import lock_directory
from himalia.jupyter.burst import BurstDetector
from himalia.keeper import kernel_directory
from himalia.keeper.child import Child
from himalia.keeper.iopub_socket import Busyness, IopubTap, is_idle, is_status
from himalia.keeper.lease import Lease
from himalia.keeper.limits import Limits
from himalia.keeper.log_file import LogFile
from himalia.keeper.server_connection import Connection, listen
from himalia.keeper.signals import Signals
from himalia.keeper.spool import Spool

NOTICE_S = 0.001
"""How long a notice may wait for what comes next: the few messages of a small cell then cost one or two of them."""
FLOOD_NOTICE_S = 0.02
"""The same in a flood: each notice costs the server a commit. What ends a cell waits for neither."""
SETTLE_S = 0.25
"""How long a kernel's IOPub connection may outlive it, in a child that inherited it, before it counts as read."""
RETRY_S = 0.5
"""How long to wait before a disk that was full is tried again."""
DISK_WITHIN_S = 5.0
"""How long a kernel's end is not told because the disk is full."""
POLL_MAX_MS = 3_600_000

_ABOUT = (
    "kernel_id",
    "kernel_name",
    "display_name",
    "interrupt_mode",
    "connection_file",
    "argv",
    "cwd",
    "grace_s",
    "keeps_files",
    "owner",
)
"""What ``keeper.json`` repeats of the launch. The environment is not there: it may hold secrets."""


class BadRequest(Exception):
    """A request that cannot be served; its text goes to the server that sent it."""


class _Ending:
    """The kernel is being ended, and the keeper after it."""

    def __init__(self, kill_at: float, *, keeps_files: bool) -> None:
        self.kill_at: float | None = kill_at
        self.keeps_files = keeps_files
        """For the next server. One that releases the kernel, and has read all that there is, says that it has."""
        # Who asked, to be answered when all is done.
        self.asked: list[tuple[Connection, Any]] = []


class KeeperProcess:
    """One kernel, its spool and the servers that hold its lease."""

    def __init__(
        self, directory: Path, server: Connection, request: dict[str, Any], signals: Signals
    ) -> None:
        """Start the kernel that the request describes. If anything fails, nothing of it stays behind."""
        self._directory = directory
        self._launch = request
        self._signals = signals
        self._grace_s = float(request["grace_s"])
        self._lease = Lease(float(request["keep_s"]), float(request["busy_keep_s"]))
        self._busyness = Busyness()
        self._ended_for = ""
        self._connections: dict[int, Connection] = {}
        self._poller = zmq.Poller()
        self._ending: _Ending | None = None
        self._burst = BurstDetector()
        self._retry_at = 0.0
        self._notice_at: float | None = None
        self._settle_until = 0.0
        self._lost = 0
        self._is_done = False
        self._was_heard = False
        self._is_exit_told = False
        with ExitStack() as undo:
            self._start(undo)
            undo.pop_all()
        self._add_connection(server)
        server.send({"id": request["id"], "ok": True, **self._hello()})

    def _start(self, undo: ExitStack) -> None:
        self._lock = lock_directory(self._directory)
        if self._lock is None:
            raise BadRequest(f"another keeper lives in {self._directory}")
        undo.callback(os.close, self._lock)
        self._log = LogFile(self._directory)
        self._spool = Spool(self._directory, bytes_max=int(self._launch["spool_bytes_max"]))
        undo.callback(self._spool.close)
        left = kernel_directory.read_about(self._directory)
        if left is not None and "socket" in left:
            kernel_directory.remove_socket(Path(left["socket"]))
        self._socket_path = kernel_directory.socket_path(self._directory)
        undo.callback(kernel_directory.remove_socket, self._socket_path)
        self._listener = listen(self._socket_path)
        undo.callback(self._listener.close)
        self._tap: IopubTap | None = IopubTap(json.loads(Path(self._launch["connection_file"]).read_bytes()))
        undo.callback(self._tap.close)
        self._child = self._start_kernel()
        undo.callback(self._child.reap)
        self._about = self._write_about()
        for source in (self._tap.socket, self._tap.monitor, self._signals.reader, self._listener):
            self._poller.register(source, zmq.POLLIN)
        self._poller.register(self._child.output, zmq.POLLIN)

    def _start_kernel(self) -> Child:
        launch = self._launch
        # A server of an earlier version, whose files were replaced while it runs, does not know of the last.
        self._limits = Limits(
            int(launch["memory_max"]), int(launch["cpu_s_max"]), int(launch.get("descriptors", 0))
        )
        try:
            return Child(launch["argv"], cwd=launch["cwd"], env=launch["env"], limits=self._limits)
        except OSError as error:
            raise BadRequest(f"cannot run {launch['argv']} in {launch['cwd']}: {error}") from error

    def _write_about(self) -> dict[str, Any]:
        about = {name: self._launch[name] for name in _ABOUT}
        about |= {
            "pid": self._child.pid,
            "keeper_pid": os.getpid(),
            "socket": str(self._socket_path),
            "started_us": time.time_ns() // 1000,
            "version": __version__,
        }
        kernel_directory.write_about(self._directory, about)
        return about

    # The loop

    def run(self) -> None:
        """Serve until the kernel was released or its lease is over."""
        while not self._is_done:
            ready = self._poller.poll(self._timeout_ms())
            for source, events in ready:
                self._serve(source, events)
            self._advance()

    def _serve(self, source: Any, events: int) -> None:
        if self._tap is not None and source is self._tap.socket:
            self._hear(self._tap)
        elif self._tap is not None and source is self._tap.monitor:
            self._watch_tap(self._tap)
        elif source == self._signals.reader.fileno():
            self._signals.clear()
            self._check_child()
        elif source == self._child.output:
            self._copy_output()
        elif source == self._listener.fileno():
            self._accept()
        elif source in self._connections:
            self._serve_connection(self._connections[source], events)

    def _timeout_ms(self) -> int:
        """How long nothing can be due."""
        now = time.monotonic()
        due = [] if self._lease.left_s is None or self._ending else [self._lease.left_s]
        if self._ending and self._ending.kill_at is not None:
            due.append(self._ending.kill_at - now)
        if self._is_settling and self._tap is not None:
            due.append(self._settle_until - now)
        if self._spool.unwritten:
            due.append(self._retry_at - now)
        if self._notice_at is not None:
            due.append(self._notice_at - now)
        # Rounded up, so that waking does not come a moment early, again and again.
        return min(int(max(min(due), 0.0) * 1000) + 1, POLL_MAX_MS) if due else POLL_MAX_MS

    def _advance(self) -> None:
        """Do what has become due."""
        if self._ending is None and self._signals.is_asked_to_end:
            self._end("its keeper was asked to end by SIGTERM")
        if self._ending is None and self._lease.is_over:
            self._end(f"no server came back for it within {self._lease.term_s:g} s")
        ending, now = self._ending, time.monotonic()
        if ending and ending.kill_at is not None and now >= ending.kill_at:
            ending.kill_at = None
            self._child.signal(signal.SIGKILL)
        if self._spool.unwritten and now >= self._retry_at:
            self._keep([])
        if self._notice_at is not None and now >= self._notice_at:
            self._notify()
        if self._is_settling and (not self._is_heard or now >= self._settle_until):
            self._settle(now)
        if ending and self._is_exit_told:
            self._finish(ending)

    # The kernel

    @property
    def _is_settling(self) -> bool:
        """Whether the kernel has ended, and what it last published is still on its way."""
        return self._child.returncode is not None and not self._is_exit_told

    @property
    def _is_heard(self) -> bool:
        return self._tap is not None and self._tap.is_connected

    def _check_child(self) -> None:
        """Notice the end of the kernel."""
        if self._child.check():
            self._settle_until = time.monotonic() + SETTLE_S

    def _hear(self, tap: IopubTap) -> None:
        messages = tap.receive()
        statuses = [frames for frames in messages if is_status(frames)]
        is_flood = self._is_flood(len(messages), has_status=bool(statuses))
        self._keep(messages, FLOOD_NOTICE_S if is_flood else NOTICE_S)
        for frames in statuses:
            self._busyness.take(frames)
        self._lease.set_busy(self._busyness.is_busy)
        if any(map(is_idle, statuses)):
            self._notify()

    def _is_flood(self, count: int, *, has_status: bool) -> bool:
        now = time.monotonic()
        if has_status:
            self._burst.reset(now)
            return False
        return self._burst.add(count, now)

    def _keep(self, messages: Sequence[Sequence[bytes]], notice_s: float = NOTICE_S) -> None:
        """Write them, and what waited; whoever follows is told afterwards, within a time."""
        written, now = self._spool.written, time.monotonic()
        self._spool.append(messages)
        if self._spool.unwritten:
            self._retry_at = now + RETRY_S
        if self._spool.written > written and self._notice_at is None:
            self._notice_at = now + notice_s

    def _notify(self) -> None:
        if self._notice_at is None:
            return  # nothing is new
        self._notice_at = None
        for connection in list(self._connections.values()):
            if connection.is_following:
                connection.notify()
                self._attend(connection)

    def _watch_tap(self, tap: IopubTap) -> None:
        tap.watch()
        if tap.is_connected and not self._was_heard:
            self._was_heard = True
            self._tell_all({"event": "listening"})

    def _copy_output(self) -> None:
        try:
            data = os.read(self._child.output, 1 << 16)
        except BlockingIOError:
            return
        if data:
            self._log.write(data)
        else:
            self._poller.unregister(self._child.output)
            os.close(self._child.output)
            self._child.output = -1

    def _settle(self, now: float) -> None:
        """The kernel has ended and its connection too: take in the rest, and say so when the disk has it."""
        if self._tap is not None:
            self._hear_out(self._tap)
        if self._spool.unwritten and now < self._settle_until + DISK_WITHIN_S:
            return
        self._lost = self._spool.give_up()
        if self._child.output >= 0:
            self._copy_output()
        self._is_exit_told = True
        self._lease.set_busy(False)
        self._write_exit()
        self._tell_all(self._exited())

    def _hear_out(self, tap: IopubTap) -> None:
        while messages := tap.receive():
            self._keep(messages)
        self._poller.unregister(tap.socket)
        self._poller.unregister(tap.monitor)
        tap.close()
        self._tap = None

    def _exited(self) -> dict[str, Any]:
        return {"event": "exited", "returncode": self._child.returncode, "lost": self._lost}

    def _write_exit(self) -> None:
        """Have the next server know how the kernel ended, however late it comes."""
        self._about["exit"] = {
            "returncode": self._child.returncode,
            "lost": self._lost,
            "reason": self._ended_for,
            "ended_us": time.time_ns() // 1000,
            "limits": self._limits,
        }
        try:
            kernel_directory.write_about(self._directory, self._about)
        except OSError:
            pass  # the disk is full, and the server reads what there is all the same

    def _end(self, reason: str) -> _Ending:
        """Begin to end the kernel, politely at first."""
        if self._ending is None:
            kill_at = time.monotonic() + self._grace_s
            self._ending = _Ending(kill_at, keeps_files=bool(self._launch["keeps_files"]))
            # It may have ended by itself just now: then that is how it ended, and not for this reason.
            self._check_child()
            if self._child.signal(signal.SIGTERM):
                self._ended_for = reason
        return self._ending

    def _finish(self, ending: _Ending) -> None:
        self._child.reap()
        self._spool.close()
        self._listener.close()
        if ending.keeps_files:
            kernel_directory.remove_socket(self._socket_path)
        else:
            connection_file = Path(self._about["connection_file"])
            kernel_directory.remove(
                self._directory, connection_file=connection_file, socket=self._socket_path
            )
        if self._lock is not None:
            os.close(self._lock)
        for connection, request_id in ending.asked:
            connection.send({"id": request_id, "ok": True})
        self._is_done = True

    # The servers

    def _accept(self) -> None:
        try:
            accepted, _ = self._listener.accept()
        except OSError:
            return
        self._add_connection(Connection(accepted))

    def _add_connection(self, connection: Connection) -> None:
        self._connections[connection.fileno()] = connection
        self._poller.register(connection.fileno(), zmq.POLLIN)
        self._lease.take()
        if self._was_heard:
            connection.send({"event": "listening"})
        if self._is_exit_told:
            connection.send(self._exited())

    def _serve_connection(self, connection: Connection, events: int) -> None:
        if events & zmq.POLLOUT:
            connection.flush()
        if events & ~zmq.POLLOUT:
            for line in connection.receive():
                self._answer(connection, line)
        self._attend(connection)

    def _attend(self, connection: Connection) -> None:
        """Wait for what the connection waits for, or let it go."""
        descriptor = connection.fileno()
        if not connection.is_closed:
            self._poller.register(descriptor, zmq.POLLIN | (zmq.POLLOUT if connection.has_unsent else 0))
        elif self._connections.pop(descriptor, None) is not None:
            self._poller.unregister(descriptor)
            connection.release()
            if not connection.is_following:
                self._lease.let_go()

    def _tell_all(self, event: dict[str, Any]) -> None:
        for connection in list(self._connections.values()):
            if not connection.is_following:
                connection.send(event)
                self._attend(connection)

    def _answer(self, connection: Connection, line: bytes) -> None:
        request_id = None
        try:
            request = json.loads(line)
            if not isinstance(request, dict):
                raise BadRequest("a request is a JSON object")
            request_id = request.get("id")
            answer = self._do(connection, request)
        except (BadRequest, ValueError, TypeError, KeyError, OSError, OverflowError) as error:
            connection.send({"id": request_id, "ok": False, "error": f"{type(error).__name__}: {error}"})
        else:
            if answer is not None:
                connection.send({"id": request_id, "ok": True, **answer})

    def _do(self, connection: Connection, request: dict[str, Any]) -> dict[str, Any] | None:
        """Serve one request; None if it is answered later."""
        match request.get("op"):
            case "hello":
                return self._hello()
            case "signal":
                return {"delivered": self._child.signal(_signum(request["signum"]))}
            case "stay":
                self._lease.stay(max(float(request["seconds"]), 0.0))
                return {}
            case "spool":
                return self._spool_state()
            case "follow":
                self._follow(connection)
                return {}
            case "launch":
                return {"launch": self._launch["launch"]}
            case "release":
                ending = self._end("a server released it")
                keeps_files = bool(request.get("keep_files"))
                ending.keeps_files = keeps_files or (ending.keeps_files and bool(ending.asked))
                ending.asked.append((connection, request.get("id")))
                return None
            case op:
                raise BadRequest(f"no such op: {op!r}")

    def _follow(self, connection: Connection) -> None:
        """From here on it is told that the spool grew. What it finds there after the answer was there before."""
        if not connection.is_following:
            connection.is_following = True
            # A server has another connection for that, by which it also hears of the end.
            self._lease.let_go()

    def _hello(self) -> dict[str, Any]:
        returncode = self._child.returncode
        state = {"alive": returncode is None, "returncode": returncode, "spool": self._spool_state()}
        return {**self._about, **state}

    def _spool_state(self) -> dict[str, Any]:
        if self._tap is not None:
            # What has come by now belongs to the answer.
            self._keep(self._tap.receive())
        spool = self._spool
        return {
            "dir": str(spool.directory),
            "first": spool.first,
            "end": spool.end,
            "dropped": spool.dropped,
            "unwritten": spool.unwritten,
            "size_bytes": spool.size_bytes,
        }


def _signum(value: Any) -> int:
    # Not by the enumeration, which lacks most real-time signals, and 0, which only asks.
    if not isinstance(value, int) or not 0 <= value < signal.NSIG:
        raise BadRequest(f"no such signal: {value!r}")
    return value
