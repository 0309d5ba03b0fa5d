"""The server's end of a keeper's protocol: holds a kernel's lease, reports its end, reads its spool."""

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
from typing import Any, TypeVar

import msgspec

from himalia.errors import HimaliaError
from himalia.file_lock import lock_directory
from himalia.keeper import kernel_directory
from himalia.keeper.launch import kernel_environment
from himalia.keeper.log_file import log_tail
from himalia.keeper.server_protocol import (
    KeeperEvent,
    KeeperInfo,
    KeeperOp,
    KernelExit,
    Launch,
    ProcessState,
    SpoolState,
    from_fields,
)
from himalia.keeper.spool import Spooled, read_spool
from himalia.local_server import make_private
from himalia.ndjson import LineSplitter

__all__ = [
    "KeeperClient",
    "KeeperGone",
    "KeeperInfo",
    "KeeperRefused",
    "KernelExit",
    "KernelNotStarted",
    "Launch",
    "SpoolState",
    "Spooled",
    "list_keeper_directories",
    "log_tail",
    "open_spool_notices",
    "read_exit",
    "read_owner",
    "read_spool",
    "remove_stale_directory",
]

logger = logging.getLogger("himalia.keeper.client")

ANSWER_WITHIN_S = 10.0
START_WITHIN_S = 60.0


class KeeperGone(HimaliaError):
    """There is no keeper for this kernel, or it has ended."""


class KeeperRefused(HimaliaError):
    """The keeper refused a request; the message is its own."""


class KernelNotStarted(HimaliaError):
    """The keeper, or the kernel's command, could not be run. ``data["log"]`` is the end of their output."""


class KeeperClient:
    """A connection to one keeper, which holds its lease: the kernel lives at least as long as this.

    All of it is used in one event loop. Every request raises ``KeeperGone`` if the keeper has ended.
    """

    def __init__(self, directory: Path, sock: socket.socket) -> None:
        """Use ``connect`` or ``start``."""
        self.directory = directory
        # Not a stream: a write that fails there discards what was received and not read yet.
        self._socket = sock
        self._write_lock = asyncio.Lock()
        self._loop = asyncio.get_running_loop()
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._requests = 0
        self._hello: tuple[KeeperInfo, ProcessState] | None = None
        self._exit: asyncio.Future[int] = self._loop.create_future()
        self._listening = asyncio.Event()
        self._is_closing = False
        self.lost = 0
        """How many of the last messages of a kernel that has ended are not in the spool."""
        self._reading = self._loop.create_task(self._read())

    @classmethod
    async def connect(cls, directory: Path) -> KeeperClient:
        """Hold the lease of the kernel in a directory. Raises ``KeeperGone`` if there is no keeper."""
        info = kernel_directory.read_info(directory)
        if info is None:
            raise KeeperGone(f"no kernel is kept in {directory}", directory=str(directory))
        sock = socket.socket(socket.AF_UNIX)
        sock.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(sock, info["socket"])
        except BaseException as error:
            sock.close()
            if not isinstance(error, (OSError, KeyError)):
                raise
            message = f"the keeper of kernel {directory.name} has gone ({error!r})"
            raise KeeperGone(message, directory=str(directory)) from error
        keeper = cls(directory, sock)
        await keeper._handshake(KeeperOp.HELLO, {}, ANSWER_WITHIN_S)
        return keeper

    @classmethod
    async def start(cls, directory: Path, launch: Launch) -> KeeperClient:
        """Start a keeper, which starts the kernel. The connection file must exist.

        Raises ``KernelNotStarted`` if the command cannot be run. A kernel that runs and ends at once is started.
        """
        make_private(directory)
        keeper = cls(directory, _spawn(directory))
        try:
            await keeper._handshake(KeeperOp.START, launch._asdict(), START_WITHIN_S)
        except (KeeperGone, KeeperRefused) as error:
            log = log_tail(directory)
            raise KernelNotStarted(f"kernel {launch.kernel_id} cannot start: {error}", log=log) from error
        return keeper

    async def _handshake(self, op: KeeperOp, data: dict[str, Any], timeout_s: float) -> None:
        try:
            answer = await self._request(op, timeout_s, **data)
            state = _decode(ProcessState, answer)
            self._hello = _decode(KeeperInfo, answer), state
        except BaseException:
            if op is KeeperOp.START:
                # No other server knows of this kernel.
                _send_if_possible(self._socket, b'{"op":"release"}\n')
            await self.close()
            raise
        if state.returncode is not None:
            self._set_exit(state.returncode)

    @property
    def info(self) -> KeeperInfo:
        """The keeper and its kernel, as they were when this connected."""
        assert self._hello is not None, "connect and start set it"
        return self._hello[0]

    @property
    def process_state(self) -> ProcessState:
        """The kernel's process, as it was when this connected."""
        assert self._hello is not None, "connect and start set it"
        return self._hello[1]

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

    def add_exit_callback(self, callback: Callable[[int], None]) -> None:
        """Call ``callback`` with the return code, once, when the kernel has ended; soon, if it has ended already."""
        self._exit.add_done_callback(lambda exit_: callback(exit_.result()))

    async def wait(self) -> int:
        """Wait for the end of the kernel, and return how it ended; by then all that it published is in the spool.

        Raises ``KeeperGone`` if the lease is released before.
        """
        either: set[asyncio.Future[Any]] = {self._exit, self._reading}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not self._exit.done():
            raise self._gone("was released")
        return self._exit.result()

    async def wait_until_listening(self) -> None:
        """Wait until the keeper is connected to the kernel's IOPub, the kernel has ended, or the lease is released."""
        await self._listening.wait()

    async def signal(self, signum: int) -> bool:
        """Signal the kernel and what it started; return whether the kernel still ran."""
        return bool((await self._request(KeeperOp.SIGNAL, signum=int(signum)))["delivered"])

    async def set_lease(self, seconds: float) -> None:
        """Set how long the kernel is kept when no server is connected."""
        await self._request(KeeperOp.STAY, seconds=seconds)

    async def spool_state(self) -> SpoolState:
        """Return the state of the spool, with all that the keeper has received by now."""
        return _decode(SpoolState, await self._request(KeeperOp.SPOOL))

    async def launch(self) -> dict[str, Any]:
        """Return the ``launch`` of the ``Launch`` with which the kernel was started."""
        return dict((await self._request(KeeperOp.LAUNCH))["launch"])

    def log_tail(self) -> str:
        """Read the end of what the kernel and its keeper wrote to stdout and stderr."""
        return log_tail(self.directory)

    async def release(self, *, keep_files: bool = False) -> None:
        """End the kernel if it still runs, and the keeper; returns when both have ended. May be called again.

        The directory is removed with its spool, unless ``keep_files`` leaves it for another keeper.
        """
        timeout_s = self.info.grace_s + ANSWER_WITHIN_S
        try:
            await self._request(KeeperOp.RELEASE, timeout_s, keep_files=keep_files)
            await asyncio.wait({self._reading}, timeout=ANSWER_WITHIN_S)
        except KeeperGone:
            if self.is_connected:
                raise
        finally:
            await self.close()

    async def close(self) -> None:
        """Release the lease. The kernel lives on, for as long as its lease lasts."""
        self._is_closing = True
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)
        self._socket.close()

    async def _request(self, op: KeeperOp, timeout_s: float = ANSWER_WITHIN_S, **data: Any) -> dict[str, Any]:
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
            raise self._gone(f"did not answer {op.value!r} within {timeout_s:g} s") from None
        finally:
            del self._answers[number]

    async def _write(self, line: bytes) -> None:
        try:
            async with self._write_lock:
                await self._loop.sock_sendall(self._socket, line)
        except OSError as error:
            # The keeper has ended; what it sent before is read to its end.
            await asyncio.wait({self._reading})
            raise self._gone(f"has gone ({error})") from error

    def _gone(self, what: str) -> KeeperGone:
        return KeeperGone(f"the keeper of kernel {self.directory.name} {what}", directory=str(self.directory))

    async def _read(self) -> None:
        splitter = LineSplitter()
        try:
            while data := await self._loop.sock_recv(self._socket, 1 << 16):
                for line in splitter.feed(data):
                    self._on_message(json.loads(line))
        except (OSError, ValueError) as error:
            logger.warning("reading from the keeper of %s failed: %s", self.directory.name, error)
        finally:
            self._on_disconnect()

    def _on_message(self, message: dict[str, Any]) -> None:
        match message.get("event"):
            case KeeperEvent.EXITED:
                self.lost = message.get("lost", 0)
                self._set_exit(message["returncode"])
            case KeeperEvent.LISTENING:
                self._listening.set()
            case None:
                answer = self._answers.get(message["id"])
                if answer is not None and not answer.done():
                    _settle(answer, message)

    def _on_disconnect(self) -> None:
        """Fail what waits for an answer. If this end did not close the connection, the keeper has ended."""
        self._listening.set()
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(self._gone("has gone"))
                # The request may have failed before this, in writing.
                answer.exception()
        if not self._is_closing:
            self._set_exit(-signal.SIGKILL)

    def _set_exit(self, returncode: int) -> None:
        self._listening.set()
        if not self._exit.done():
            self._exit.set_result(returncode)


def open_spool_notices(socket_path: str) -> socket.socket:
    """Open a socket that becomes readable, once at first and then whenever the spool of a keeper has grown.

    What can be read from it has no meaning. It does not hold the lease. Never blocks; raises OSError without a keeper.
    """
    sock = socket.socket(socket.AF_UNIX)
    sock.setblocking(False)
    try:
        sock.connect(socket_path)
        sock.sendall(json.dumps({"op": KeeperOp.FOLLOW, "id": 1}).encode() + b"\n")
    except BaseException:
        sock.close()
        raise
    return sock


def read_exit(directory: Path) -> KernelExit | None:
    """Read how the kernel in a directory ended; None if its keeper did not record that."""
    info = kernel_directory.read_info(directory) or {}
    try:
        return _decode(KernelExit, info["exit"])
    except (KeyError, TypeError, msgspec.ValidationError):
        return None


def read_owner(directory: Path) -> str | None:
    """Read whose the kernel in a directory is or was; None if that is not known."""
    return str((kernel_directory.read_info(directory) or {}).get("owner") or "") or None


def list_keeper_directories(runtime_dir: Path) -> list[Path]:
    """List the directories of kernels that are or were kept: ``<runtime_dir>/kernels/<kernel_id>``."""
    return sorted(path.parent for path in runtime_dir.glob(f"kernels/*/{kernel_directory.INFO_FILE}"))


def remove_stale_directory(directory: Path) -> bool:
    """Remove what a keeper that has ended left behind, its spool included; return False if a keeper lives there."""
    try:
        lock = lock_directory(directory)
    except FileNotFoundError:
        return True
    if lock is None:
        return False
    try:
        info = kernel_directory.read_info(directory) or {}
        kernel_directory.remove(
            directory,
            connection_file=Path(info["connection_file"]) if "connection_file" in info else None,
            socket=Path(info["socket"]) if "socket" in info else None,
        )
    finally:
        os.close(lock)
    return True


T = TypeVar("T", bound=tuple[Any, ...])


def _decode(kind: type[T], fields: dict[str, Any]) -> T:
    """Build a message from its fields, and check their types. Raises ``TypeError`` or ``msgspec.ValidationError``."""
    message: T = msgspec.convert(list(from_fields(kind, fields)), kind)
    return message


def _spawn(directory: Path) -> socket.socket:
    """Start a keeper that no signal to the server's terminal or group reaches; return a socket to it.

    That socket holds the lease from the first moment.
    """
    ours, theirs = socket.socketpair()
    log = os.open(
        directory / kernel_directory.LOG_FILE, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600
    )
    try:
        with theirs:
            process = subprocess.Popen(
                # -P: a file in the working directory must not hide a module.
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
    # It may outlive every object here, but must not stay a zombie while this process lives.
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
