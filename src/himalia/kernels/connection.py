"""The server's connection to one process of a kernel: its sockets, its heartbeat, and a probe before attaching."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Protocol

import zmq

from himalia.errors import BadRequest, KernelUnavailable
from himalia.iopub.broker import IopubBroker
from himalia.iopub.listener import BrokerListener, Feed, KernelFeed
from himalia.iopub.shell import Dealer, ShellClient, ShellPort
from himalia.jupyter.connection_file import PORTS, ConnectionInfo
from himalia.jupyter.wire import NOT_ON_IOPUB, Fault, FaultKind, KernelMessage, Wire
from himalia.keeper.kernel_process import KernelProcess
from himalia.keeper.spool_consumer import Bookmark, Intake, SpoolFeed
from himalia.kernels.context import Parts
from himalia.kernels.scheduler import RequestScheduler
from himalia.kernels.topic_writer import TopicWriter


class Owner(Protocol):
    """The kernel that a link belongs to, as far as the link knows it."""

    broker: IopubBroker
    topic_writer: TopicWriter
    scheduler: RequestScheduler
    bookmark: Bookmark

    def received(self, port: ShellPort, message: KernelMessage) -> None:
        """What came on the shell, control or stdin socket."""

    def beating(self, responding: bool) -> None:
        """Its heart stopped, or beats again."""

    def faulty(self, faults: Sequence[Fault]) -> None:
        """In the IOPub thread: what came, and was no message."""

    def gap(self, count: int | None) -> None:
        """In the IOPub thread: so many messages are missing before what comes next; None if that is not known."""

    def broken(self) -> None:
        """In the IOPub thread: the connection broke, and is there again."""


class Link:
    """Lives on the event loop; a restart of the kernel makes a new one.

    ``process`` is None for a foreign kernel, which is heard on a socket of our own. A kept one is heard by its keeper
    alone, since whoever listens costs the kernel a send for each message; its spool is read instead.
    """

    def __init__(
        self, owner: Owner, connection: ConnectionInfo, process: KernelProcess | None, parts: Parts
    ) -> None:
        key, scheme = connection.key.encode(), connection.signature_scheme
        bytes_max = parts.settings.kernel_message_bytes_max
        self._iopub = parts.iopub
        self._shell_wire = Wire(key, scheme=scheme, bytes_max=bytes_max)
        self._wire = Wire(key, scheme=scheme, bytes_max=bytes_max, refused_types=NOT_ON_IOPUB)
        self._intake: Intake | None = None
        self._feed: KernelFeed
        if process is None:
            self._feed = Feed(
                connection, self._wire, BrokerListener(owner.broker, owner.faulty), owner.broken
            )
        else:
            self._intake = self._intake_of(owner, process)
            self._feed = SpoolFeed(self._intake, process.keeper_socket)
        self._iopub.add(self._feed)
        self.shell = ShellClient(connection, self._shell_wire, parts.context, owner.received)
        self.heartbeat = Heartbeat(
            connection, parts.context, parts.settings.kernel_heartbeat_s, owner.beating, owner.scheduler.touch
        )

    def _intake_of(self, owner: Owner, process: KernelProcess) -> Intake:
        return Intake(
            owner.broker,
            self._wire,
            process.directory,
            owner.bookmark,
            is_blocked=lambda: owner.topic_writer.is_full,
            on_faults=owner.faulty,
            on_gap=owner.gap,
        )

    @property
    def faults(self) -> Counter[FaultKind]:
        # A copy first: the IOPub thread may be counting.
        return self._wire.faults.copy() + self._shell_wire.faults

    @property
    def is_behind(self) -> bool:
        """Whether the spool has messages that were not read yet."""
        return self._intake is not None and not self._intake.is_live

    async def close(self) -> None:
        self.heartbeat.close()
        self.shell.close()
        self._iopub.remove(self._feed)
        await asyncio.to_thread(self._feed.closed.wait)

    async def routed(self) -> None:
        """Returns when what is being routed now has reached all whom it is for."""
        await self._told_by(self._iopub.call)

    async def finish(self) -> None:
        """The process has ended: returns when all that its spool has is on its way to the log."""
        if self._intake is None:
            return
        intake = self._intake
        await self._told_by(lambda tell: self._iopub.call(lambda: intake.finish(tell)))

    def check(self) -> None:
        """Raises OSError if the spool could not be read to its end."""
        if self._intake is not None:
            self._intake.check()

    async def _told_by(self, ask: Callable[[Callable[[], None]], None]) -> None:
        """Give the IOPub thread a function to call, and wait for that."""
        loop, told = asyncio.get_running_loop(), asyncio.Event()

        def tell() -> None:
            loop.call_soon_threadsafe(told.set)

        ask(tell)
        await told.wait()


MISSES = 3


class Heartbeat:
    """Pings a kernel until closed. Lives on one event loop.

    ``responding`` turns false after three pings without an answer and true with the next answer;
    ``on_change`` is told of both, ``on_beat`` of every answer. It is true until the first pings have been missed.
    """

    def __init__(
        self,
        connection: ConnectionInfo,
        context: zmq.Context[zmq.Socket[bytes]],
        interval_s: float,
        on_change: Callable[[bool], None],
        on_beat: Callable[[], None],
    ) -> None:
        socket = context.socket(zmq.DEALER)
        connection.secure(socket)
        socket.connect(connection.endpoint("hb"))
        self.responding = True
        self._interval_s = interval_s
        self._on_change = on_change
        self._on_beat = on_beat
        self._missed = 0
        self._dealer = Dealer(socket, self._answered)
        self._task = asyncio.get_running_loop().create_task(self._beat())

    def close(self) -> None:
        self._task.cancel()
        self._dealer.close()

    async def _beat(self) -> None:
        while True:
            # The empty frame makes it what the kernel's REP socket expects.
            self._dealer.send([b"", b"ping"])
            await asyncio.sleep(self._interval_s)
            self._missed += 1
            if self._missed > MISSES and self.responding:
                self.responding = False
                self._on_change(False)

    def _answered(self, frames: list[bytes]) -> None:
        self._missed = 0
        self._on_beat()
        if not self.responding:
            self.responding = True
            self._on_change(True)


RETRY_S = 0.1
CONNECT_WITHIN_S = 3.0


async def check_listening(connection: ConnectionInfo, *, within_s: float) -> None:
    """``KernelUnavailable`` if nothing listens at the kernel's shell port within this time: it may be starting.

    ``BadRequest`` if there cannot be such a port. A kernel that listens and does not answer is not found out here.
    """
    if connection.transport not in ("tcp", "ipc") or not all(
        0 < getattr(connection, f"{port}_port") < 65536 for port in PORTS
    ):
        raise BadRequest("the connection file names an address that cannot be")
    deadline = asyncio.get_running_loop().time() + within_s
    while not await _is_listening(connection):
        if asyncio.get_running_loop().time() >= deadline:
            endpoint = connection.endpoint("shell")
            raise KernelUnavailable(f"nothing listens at {endpoint}: the kernel has ended", endpoint=endpoint)
        await asyncio.sleep(RETRY_S)


async def _is_listening(connection: ConnectionInfo) -> bool:
    if connection.transport == "ipc":
        return await asyncio.to_thread(os.path.exists, connection.endpoint("shell").removeprefix("ipc://"))
    try:
        async with asyncio.timeout(CONNECT_WITHIN_S):
            _, writer = await asyncio.open_connection(connection.ip, connection.shell_port)
    except (OSError, TimeoutError, ValueError):
        return False
    writer.close()
    return True
