"""The server's connection to one process of a kernel: its sockets, its heartbeat, and a probe before attaching."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Callable
from typing import Protocol

import zmq

from himalia.errors import BadRequest, KernelUnavailable
from himalia.iopub.listener import BrokerListener, Feed, KernelFeed
from himalia.iopub.shell import Dealer, ShellClient, ShellPort
from himalia.jupyter.connection_file import PORTS, ConnectionInfo
from himalia.jupyter.wire import NOT_ON_IOPUB, FaultKind, KernelMessage, Wire, WireLimits
from himalia.keeper.kernel_process import KernelProcess
from himalia.keeper.spool_consumer import SpoolConsumer, SpoolFeed
from himalia.kernels.context import KernelContext
from himalia.kernels.output import KernelOutput


class KernelConnectionListener(Protocol):
    """The kernel, as its connection reports to it. Called on the event loop."""

    def on_shell_message(self, port: ShellPort, message: KernelMessage) -> None:
        """A message came on the shell, control or stdin socket."""

    def on_heartbeat(self) -> None:
        """The kernel answered a ping."""

    def on_responding(self, responding: bool) -> None:
        """The kernel stopped answering pings, or answers again."""

    def on_exit(self, returncode: int) -> None:
        """Its process has ended. Called once or more often, not for an attached kernel."""


class KernelConnection:
    """The sockets to one process of a kernel; each restart makes a new connection. Lives on the event loop.

    Without a ``process`` the kernel is attached, and its IOPub socket is read here. The output of a kernel of our own
    is read from its keeper's spool: each further subscriber would cost the kernel a send for each message.
    """

    def __init__(
        self,
        connection: ConnectionInfo,
        process: KernelProcess | None,
        output: KernelOutput,
        context: KernelContext,
        listener: KernelConnectionListener,
    ) -> None:
        key, scheme = connection.key.encode(), connection.signature_scheme
        bytes_max = context.settings.kernel_message_bytes_max
        self._iopub = context.iopub
        self._shell_wire = Wire(key, scheme=scheme, limits=WireLimits(bytes_max))
        self._wire = Wire(key, scheme=scheme, limits=WireLimits(bytes_max, NOT_ON_IOPUB))
        self._consumer: SpoolConsumer | None = None
        self._feed: KernelFeed
        if process is None:
            self._feed = Feed(
                connection, self._wire, BrokerListener(output.broker, output.on_faults), output.on_reconnect
            )
        else:
            self._consumer = SpoolConsumer(
                output.broker, self._wire, process.directory, output.position, output
            )
            self._feed = SpoolFeed(self._consumer, process.keeper_socket)
        self._iopub.add(self._feed)
        self.shell = ShellClient(connection, self._shell_wire, context.sockets, listener.on_shell_message)
        self.heartbeat = Heartbeat(connection, context.sockets, context.settings.kernel_heartbeat_s, listener)

    @property
    def faults(self) -> Counter[FaultKind]:
        """Messages refused since the connection was made, by what was wrong with them."""
        # A copy first: the IOPub thread may be counting.
        return self._wire.faults.copy() + self._shell_wire.faults

    @property
    def is_behind(self) -> bool:
        """Whether the spool has messages that were not read yet."""
        return self._consumer is not None and not self._consumer.is_caught_up

    async def close(self) -> None:
        """Close all sockets; returns when the IOPub thread no longer reads."""
        self.heartbeat.close()
        self.shell.close()
        self._iopub.remove(self._feed)
        await asyncio.to_thread(self._feed.closed.wait)

    async def wait_routed(self) -> None:
        """Wait until the messages that the IOPub thread routes now have reached every request and subscriber."""
        await _wait_called(self._iopub.call)

    async def finish(self) -> None:
        """The process has ended: wait until everything in its spool is on its way to the log."""
        if self._consumer is None:
            return
        consumer = self._consumer
        await _wait_called(lambda notify: self._iopub.call(lambda: consumer.finish(notify)))

    def check_spool(self) -> None:
        """Raise ``OSError`` if the spool could not be read to its end."""
        if self._consumer is not None:
            self._consumer.check()


async def _wait_called(pass_on: Callable[[Callable[[], None]], None]) -> None:
    """Pass on a function for another thread to call, and wait for the call."""
    loop, called = asyncio.get_running_loop(), asyncio.Event()

    def notify() -> None:
        loop.call_soon_threadsafe(called.set)

    pass_on(notify)
    await called.wait()


MISSES = 3


class Heartbeat:
    """Pings a kernel until closed, and reports to the listener. Lives on one event loop.

    ``is_responding`` turns false after three pings without an answer, and true with the next answer. It is true until
    the first pings have been missed.
    """

    def __init__(
        self,
        connection: ConnectionInfo,
        sockets: zmq.Context[zmq.Socket[bytes]],
        interval_s: float,
        listener: KernelConnectionListener,
    ) -> None:
        socket = sockets.socket(zmq.DEALER)
        connection.secure(socket)
        socket.connect(connection.endpoint("hb"))
        self.is_responding = True
        self._interval_s = interval_s
        self._listener = listener
        self._missed = 0
        self._dealer = Dealer(socket, self._on_answer)
        self._task = asyncio.get_running_loop().create_task(self._ping())

    def close(self) -> None:
        self._task.cancel()
        self._dealer.close()

    async def _ping(self) -> None:
        while True:
            # The empty frame makes it what the kernel's REP socket expects.
            self._dealer.send([b"", b"ping"])
            await asyncio.sleep(self._interval_s)
            self._missed += 1
            if self._missed > MISSES and self.is_responding:
                self.is_responding = False
                self._listener.on_responding(False)

    def _on_answer(self, frames: list[bytes]) -> None:
        self._missed = 0
        self._listener.on_heartbeat()
        if not self.is_responding:
            self.is_responding = True
            self._listener.on_responding(True)


RETRY_S = 0.1
CONNECT_WITHIN_S = 3.0


async def check_listening(connection: ConnectionInfo, *, within_s: float) -> None:
    """Raise ``KernelUnavailable`` if nothing listens at the kernel's shell port within this time: it may be starting.

    ``BadRequest`` for an address that cannot exist. A kernel that listens but does not answer is not detected here.
    """
    if connection.transport not in ("tcp", "ipc") or not all(
        0 < getattr(connection, f"{port}_port") < 65536 for port in PORTS
    ):
        raise BadRequest("the connection file has an invalid address or port")
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
