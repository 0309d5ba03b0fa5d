"""The server's side of a keeper: holding a kernel's lease, hearing of its end, reading its spool."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from himalia.errors import HimaliaError
from himalia.file_lock import lock_directory
from himalia.keeper import kernel_directory
from himalia.keeper.launch import kernel_environment
from himalia.keeper.limits import Limits
from himalia.keeper.log_file import log_tail
from himalia.keeper.spool import SPOOL_BYTES_MAX, Spooled, read_spool
from himalia.local_server import make_private
from himalia.ndjson import LineSplitter

__all__ = [
    "Keeper",
    "KeeperGone",
    "KeeperInfo",
    "KeeperRefused",
    "KernelExit",
    "KernelNotStarted",
    "Launch",
    "SpoolState",
    "Spooled",
    "follow",
    "found_keepers",
    "left_exit",
    "left_owner",
    "log_tail",
    "read_spool",
    "remove_leftovers",
]

logger = logging.getLogger("himalia.keeper.client")

KEEP_S = 600.0
BUSY_KEEP_S = 86400.0
GRACE_S = 5.0
ANSWER_WITHIN_S = 10.0
START_WITHIN_S = 60.0


class KeeperGone(HimaliaError):
    """No keeper answers for this kernel (any more)."""


class KeeperRefused(HimaliaError):
    """The keeper cannot do what it was asked; the message is its own."""


class KernelNotStarted(HimaliaError):
    """The keeper, or the kernel's command, could not be run. ``data["log"]`` is what they had written."""


class Launch(msgspec.Struct, kw_only=True, omit_defaults=False):
    """What a keeper is told about the kernel to start."""

    kernel_id: str
    argv: list[str]
    env: dict[str, str]
    cwd: str
    connection_file: str
    kernel_name: str = ""
    owner: str = ""
    """The caller whose kernel it is; empty for none."""
    display_name: str = ""
    interrupt_mode: str = "signal"
    launch: dict[str, Any] = {}
    """What a later server needs to start the kernel again. The keeper only remembers it, and not on disk."""
    keep_s: float = KEEP_S
    """How long to keep the kernel while no server is connected."""
    busy_keep_s: float = BUSY_KEEP_S
    """The same while it is busy, if that is longer; 0 for ever."""
    keeps_files: bool = True
    """Whether a later server can come for what the keeper leaves when it ends by itself."""
    spool_bytes_max: int = SPOOL_BYTES_MAX
    grace_s: float = GRACE_S
    """How long a kernel may take to end after SIGTERM, before SIGKILL."""
    memory_max: int = 0
    """Most bytes of address space; 0 for no limit."""
    cpu_s_max: int = 0
    """Most seconds of CPU time; 0 for no limit."""
    descriptors: int = 0
    """Open files, which the kernel may raise itself; 0 for the keeper's own limit."""


class SpoolState(msgspec.Struct, frozen=True):
    """Seqs ``first`` to ``end`` (not included) can be read, but for what was ``dropped`` among them."""

    dir: str
    first: int
    end: int
    dropped: int
    """Messages that made room for later ones, or that the disk never took, since this keeper started."""
    size_bytes: int
    unwritten: int = 0
    """The last messages that cannot be read yet: they wait for a disk that is full."""


class KeeperInfo(msgspec.Struct, frozen=True):
    """What a keeper says of itself and its kernel when a server connects."""

    kernel_id: str
    kernel_name: str
    display_name: str
    interrupt_mode: str
    connection_file: str
    argv: list[str]
    cwd: str
    pid: int
    """The kernel's process, and its process group."""
    keeper_pid: int
    socket: str
    started_us: int
    version: str
    grace_s: float
    alive: bool
    returncode: int | None
    spool: SpoolState
    owner: str = ""
    keeps_files: bool = False
    """Whether it leaves the spool and the exit code for a later server when its lease is over; that of 0.1 does not."""


class Keeper:
    """A connection to one keeper, which is holding its lease: the kernel lives at least as long as this.

    All of it is used in one event loop. Every method that asks the keeper raises ``KeeperGone`` if it has gone.
    """

    info: KeeperInfo

    def __init__(self, directory: Path, sock: socket.socket) -> None:
        """Use ``connect`` or ``start``."""
        self.directory = directory
        # Not a stream: there, a write that fails would take what has come, and was not read yet, along.
        self._socket = sock
        self._writing = asyncio.Lock()
        self._loop = asyncio.get_running_loop()
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._requests = 0
        self._exit: asyncio.Future[int] = self._loop.create_future()
        self._heard = asyncio.Event()
        self._is_closing = False
        self._on_exit: Callable[[int], None] | None = None
        self.lost = 0
        """How many of the last messages of a kernel that has ended its disk did not take."""
        self._reading = self._loop.create_task(self._read())

    @classmethod
    async def connect(cls, directory: Path) -> Keeper:
        """Hold the lease of the kernel in a directory. Raises ``KeeperGone`` if nobody listens there."""
        about = kernel_directory.read_about(directory)
        if about is None:
            raise KeeperGone(f"no kernel is kept in {directory}", directory=str(directory))
        sock = socket.socket(socket.AF_UNIX)
        sock.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(sock, about["socket"])
        except BaseException as error:
            sock.close()
            if not isinstance(error, (OSError, KeyError)):
                raise
            message = f"the keeper of kernel {directory.name} has gone ({error!r})"
            raise KeeperGone(message, directory=str(directory)) from error
        keeper = cls(directory, sock)
        await keeper._introduce("hello", {}, ANSWER_WITHIN_S)
        return keeper

    @classmethod
    async def start(cls, directory: Path, launch: Launch) -> Keeper:
        """Start a keeper, and by it a kernel; the connection file must be there already.

        Raises ``KernelNotStarted`` if the command cannot be run. A kernel that runs and ends at once is started.
        """
        make_private(directory)
        keeper = cls(directory, _spawn(directory))
        try:
            await keeper._introduce("start", msgspec.to_builtins(launch), START_WITHIN_S)
        except (KeeperGone, KeeperRefused) as error:
            log = log_tail(directory)
            raise KernelNotStarted(f"kernel {launch.kernel_id} cannot start: {error}", log=log) from error
        return keeper

    async def _introduce(self, op: str, data: dict[str, Any], timeout_s: float) -> None:
        try:
            self.info = msgspec.convert(await self._ask(op, timeout_s, **data), KeeperInfo)
        except BaseException:
            if op == "start":
                # Whoever asked has given up, and nobody else knows of this kernel.
                _send_if_possible(self._socket, b'{"op":"release"}\n')
            await self.close()
            raise
        if self.info.returncode is not None:
            self._set_exit(self.info.returncode)

    @property
    def returncode(self) -> int | None:
        """How the kernel ended, as ``subprocess`` has it; None while it runs.

        If the keeper itself is killed its kernel is too, and this is ``-SIGKILL``.
        """
        return self._exit.result() if self._exit.done() else None

    @property
    def is_connected(self) -> bool:
        """Whether the lease is held."""
        return not self._reading.done()

    @property
    def on_exit(self) -> Callable[[int], None] | None:
        """Called in the event loop, once, when the kernel has ended; soon, if it has ended already."""
        return self._on_exit

    @on_exit.setter
    def on_exit(self, callback: Callable[[int], None] | None) -> None:
        self._on_exit = callback
        if self._exit.done():
            self._loop.call_soon(self._call_on_exit)

    async def wait(self) -> int:
        """Wait for the end of the kernel; when it comes, all that the kernel published is in the spool.

        Raises ``KeeperGone`` if the lease is let go before: nobody would tell.
        """
        either: set[asyncio.Future[Any]] = {self._exit, self._reading}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not self._exit.done():
            raise self._gone("was let go")
        return self._exit.result()

    async def wait_until_listening(self) -> None:
        """Wait until the keeper hears the kernel's IOPub, or the kernel has ended, or the lease was let go."""
        await self._heard.wait()

    async def signal(self, signum: int) -> bool:
        """Signal the kernel and what it started; says whether the kernel still ran."""
        return bool((await self._ask("signal", signum=int(signum)))["delivered"])

    async def stay(self, seconds: float) -> None:
        """Have the kernel kept for so long when no server is connected."""
        await self._ask("stay", seconds=seconds)

    async def spool_state(self) -> SpoolState:
        """What can be read from the spool now: all that the keeper has received."""
        return msgspec.convert(await self._ask("spool"), SpoolState)

    async def launch(self) -> dict[str, Any]:
        """What the ``Launch`` said under ``launch``."""
        return dict((await self._ask("launch"))["launch"])

    def log_tail(self) -> str:
        """The end of what the kernel and its keeper wrote to stdout and stderr."""
        return log_tail(self.directory)

    async def release(self, *, keep_files: bool = False) -> None:
        """End the kernel if it still runs, and the keeper; returns when both have ended. May be called again.

        The directory is removed with its spool, unless another keeper is to go on with it.
        """
        timeout_s = self.info.grace_s + ANSWER_WITHIN_S
        try:
            await self._ask("release", timeout_s, keep_files=keep_files)
            await asyncio.wait({self._reading}, timeout=ANSWER_WITHIN_S)
        except KeeperGone:
            if self.is_connected:
                raise
        finally:
            await self.close()

    async def close(self) -> None:
        """Let the lease go. The kernel lives on, for as long as it was told to stay."""
        self._is_closing = True
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)
        self._socket.close()

    async def _ask(self, op: str, timeout_s: float = ANSWER_WITHIN_S, **data: Any) -> dict[str, Any]:
        if self._reading.done() or self._is_closing:
            raise self._gone("is not connected")
        self._requests += 1
        number = self._requests
        answer: asyncio.Future[dict[str, Any]] = self._loop.create_future()
        self._answers[number] = answer
        line = json.dumps({"op": op, "id": number, **data}).encode() + b"\n"
        try:
            async with asyncio.timeout(timeout_s):
                await self._write(line)
                return await answer
        except TimeoutError:
            raise self._gone(f"did not answer {op!r} within {timeout_s:g} s") from None
        finally:
            del self._answers[number]

    async def _write(self, line: bytes) -> None:
        try:
            async with self._writing:
                await self._loop.sock_sendall(self._socket, line)
        except OSError as error:
            # The keeper has gone; it may have said more before, which is read to its end.
            await asyncio.wait({self._reading})
            raise self._gone(f"has gone ({error})") from error

    def _gone(self, what: str) -> KeeperGone:
        return KeeperGone(f"the keeper of kernel {self.directory.name} {what}", directory=str(self.directory))

    async def _read(self) -> None:
        splitter = LineSplitter()
        try:
            while data := await self._loop.sock_recv(self._socket, 1 << 16):
                for line in splitter.feed(data):
                    self._take(json.loads(line))
        except (OSError, ValueError) as error:
            logger.warning("reading from the keeper of %s failed: %s", self.directory.name, error)
        finally:
            self._lose()

    def _take(self, message: dict[str, Any]) -> None:
        match message.get("event"):
            case "exited":
                self.lost = message.get("lost", 0)
                self._set_exit(message["returncode"])
            case "listening":
                self._heard.set()
            case None:
                answer = self._answers.get(message["id"])
                if answer is not None and not answer.done():
                    _settle(answer, message)

    def _lose(self) -> None:
        """The connection has ended; if we did not end it, the keeper has."""
        self._heard.set()
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(self._gone("has gone"))
                # Whoever asked may have failed before this, in writing.
                answer.exception()
        if not self._is_closing:
            self._set_exit(-signal.SIGKILL)

    def _set_exit(self, returncode: int) -> None:
        self._heard.set()
        if not self._exit.done():
            self._exit.set_result(returncode)
            self._loop.call_soon(self._call_on_exit)

    def _call_on_exit(self) -> None:
        callback, self._on_exit = self._on_exit, None
        if callback is not None:
            callback(self._exit.result())


def follow(socket_path: str) -> socket.socket:
    """A socket that becomes readable whenever the spool of a keeper grew; what it brings says nothing more.

    It brings something at once, too. It does not hold the lease. Never blocks; raises OSError if nobody listens.
    """
    sock = socket.socket(socket.AF_UNIX)
    sock.setblocking(False)
    try:
        sock.connect(socket_path)
        sock.sendall(b'{"op":"follow","id":1}\n')
    except BaseException:
        sock.close()
        raise
    return sock


class KernelExit(msgspec.Struct, frozen=True):
    """How a kernel ended, as its keeper left it for a later server."""

    returncode: int | None = None
    lost: int = 0
    """How many of its last messages the disk did not take."""
    reason: str = ""
    """Why the keeper ended it; empty if it ended by itself."""
    ended_us: int | None = None
    limits: Limits = Limits()


def left_exit(directory: Path) -> KernelExit | None:
    """How the kernel in a directory ended; None if its keeper could not tell."""
    about = kernel_directory.read_about(directory) or {}
    try:
        return msgspec.convert(about["exit"], KernelExit)
    except (KeyError, msgspec.ValidationError):
        return None


def left_owner(directory: Path) -> str | None:
    """Whose the kernel in a directory is or was; None if that is not known."""
    return str((kernel_directory.read_about(directory) or {}).get("owner") or "") or None


def found_keepers(runtime_dir: Path) -> list[Path]:
    """The directories of kernels that are or were kept: ``<runtime_dir>/kernels/<kernel_id>``."""
    return sorted(path.parent for path in runtime_dir.glob(f"kernels/*/{kernel_directory.ABOUT_FILE}"))


def remove_leftovers(directory: Path) -> bool:
    """Remove what a keeper that is gone left behind, its spool included; false if a keeper lives there."""
    try:
        lock = lock_directory(directory)
    except FileNotFoundError:
        return True
    if lock is None:
        return False
    try:
        about = kernel_directory.read_about(directory) or {}
        kernel_directory.remove(
            directory,
            connection_file=Path(about["connection_file"]) if "connection_file" in about else None,
            socket=Path(about["socket"]) if "socket" in about else None,
        )
    finally:
        os.close(lock)
    return True


def _spawn(directory: Path) -> socket.socket:
    """Start a keeper that no signal to the server's terminal or group reaches. Returns the socket to it.

    That socket holds the lease from the first moment: there is no time in which nobody does.
    """
    ours, theirs = socket.socketpair()
    log = os.open(
        directory / kernel_directory.LOG_FILE, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600
    )
    try:
        with theirs:
            process = subprocess.Popen(
                # -P: what lies in a working directory must not stand in for a module.
                [sys.executable, "-P", "-m", "himalia.keeper", str(directory), str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=directory,
                env=kernel_environment(os.environ),
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
    except BaseException:
        ours.close()
        raise
    finally:
        os.close(log)
    # It may outlive every object here, and still must not stay a zombie while this process lives.
    ours.setblocking(False)
    threading.Thread(target=process.wait, name=f"reaper of keeper {process.pid}", daemon=True).start()
    return ours


def _send_if_possible(sock: socket.socket, line: bytes) -> None:
    try:
        sock.send(line)
    except OSError:
        pass


def _settle(answer: asyncio.Future[dict[str, Any]], message: dict[str, Any]) -> None:
    if message.get("ok"):
        answer.set_result(message)
    else:
        answer.set_exception(KeeperRefused(str(message.get("error"))))
