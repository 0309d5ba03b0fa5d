"""The server's connection to one process of a kernel: what it hears of it, and what it asks it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Protocol

from himalia.kernels.bridge import Bridge
from himalia.kernels.broker import IopubBroker
from himalia.kernels.connection_file import ConnectionInfo
from himalia.kernels.following import SpoolFeed
from himalia.kernels.heartbeat import Heartbeat
from himalia.kernels.intake import Bookmark, Intake
from himalia.kernels.iopub import BrokerListener, Feed, KernelFeed
from himalia.kernels.parts import Parts
from himalia.kernels.process import KernelProcess
from himalia.kernels.runner import Runner
from himalia.kernels.shell import ShellClient, ShellPort
from himalia.kernels.wire import NOT_ON_IOPUB, Fault, FaultKind, KernelMessage, Wire


class Owner(Protocol):
    """The kernel that a link belongs to, as far as the link knows it."""

    broker: IopubBroker
    bridge: Bridge
    runner: Runner
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
            connection, parts.context, parts.settings.kernel_heartbeat_s, owner.beating, owner.runner.touch
        )

    def _intake_of(self, owner: Owner, process: KernelProcess) -> Intake:
        return Intake(
            owner.broker,
            self._wire,
            process.directory,
            owner.bookmark,
            is_blocked=lambda: owner.bridge.overflowed,
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
