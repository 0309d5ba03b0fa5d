"""The client of a kernel's shell, control and stdin sockets, on the event loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import zmq

from himalia.jupyter.connection_file import ConnectionInfo
from himalia.jupyter.wire import Fault, KernelMessage, Wire

logger = logging.getLogger("himalia.iopub.shell")

ShellPort = Literal["shell", "control", "stdin"]
RECONNECT_AFTER_MS = 20
"""A kernel that starts does not listen yet, and by default ZeroMQ connects again only after 100 ms."""
PORTS: tuple[ShellPort, ...] = ("shell", "control", "stdin")


class Dealer:
    """A DEALER socket: sends without waiting, and calls ``on_frames`` for each message. Lives on one event loop."""

    def __init__(self, socket: zmq.Socket[bytes], on_frames: Callable[[list[bytes]], None]) -> None:
        self._socket = socket
        self._on_frames = on_frames
        self._loop = asyncio.get_running_loop()
        self._descriptor = int(socket.getsockopt(zmq.FD))
        self._loop.add_reader(self._descriptor, self._drain)
        # A message may have come before the loop waited for the descriptor.
        self._loop.call_soon(self._drain)

    def send(self, frames: Sequence[bytes]) -> bool:
        """Send a message; return False if a thousand earlier ones were not sent yet."""
        if self._socket.closed:
            return False
        try:
            self._socket.send_multipart(frames, zmq.NOBLOCK)
        except zmq.Again:
            return False
        # The descriptor is edge-triggered, and sending may have consumed the edge.
        self._loop.call_soon(self._drain)
        return True

    def close(self) -> None:
        if not self._socket.closed:
            self._loop.remove_reader(self._descriptor)
            self._socket.close(linger=0)

    def _drain(self) -> None:
        while not self._socket.closed and int(self._socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._on_frames(frames)


class PendingReply(NamedTuple):
    """A request that was sent, and its reply. Cancel the reply when it is no longer wanted."""

    id: str
    reply: asyncio.Future[KernelMessage]


class ShellClient:
    """One client of one kernel. ``on_message`` gets every message, replies to ``request`` included."""

    def __init__(
        self,
        connection: ConnectionInfo,
        wire: Wire,
        context: zmq.Context[zmq.Socket[bytes]],
        on_message: Callable[[ShellPort, KernelMessage], None] | None = None,
    ) -> None:
        self._wire = wire
        self._on_message = on_message
        self._replies: dict[str, asyncio.Future[KernelMessage]] = {}
        self.stdin_connected = asyncio.Event()
        """Set when the stdin socket is connected: before that, an ``input_request`` of the kernel would be lost."""
        self._dealers = {port: self._open(connection, context, port) for port in PORTS}

    def send(
        self,
        port: ShellPort,
        msg_type: str,
        content: dict[str, Any],
        *,
        msg_id: str | None = None,
        username: str | None = None,
    ) -> KernelMessage:
        """Send a request, and return it as it was sent."""
        message, frames = self._wire.encode(msg_type, content, msg_id=msg_id, username=username)
        if not self._dealers[port].send(frames):
            logger.warning("%s was not sent: the kernel does not read its requests", msg_type)
        return message

    def request(self, port: ShellPort, msg_type: str, content: dict[str, Any] | None = None) -> PendingReply:
        message = self.send(port, msg_type, content or {})
        future: asyncio.Future[KernelMessage] = asyncio.get_running_loop().create_future()
        self._replies[message.msg_id] = future
        future.add_done_callback(lambda _: self._replies.pop(message.msg_id, None))
        return PendingReply(message.msg_id, future)

    def send_execute_request(
        self,
        code: str,
        *,
        msg_id: str | None = None,
        username: str | None = None,
        silent: bool = False,
        store_history: bool = True,
        user_expressions: dict[str, Any] | None = None,
        allow_stdin: bool = False,
        stop_on_error: bool = True,
    ) -> KernelMessage:
        """Have the kernel run code. The request's id is the message's ``msg_id``: register it before sending.

        ``username`` names the caller, ``himalia`` by default.
        """
        content = {
            "code": code,
            "silent": silent,
            "store_history": store_history,
            "user_expressions": user_expressions or {},
            "allow_stdin": allow_stdin,
            "stop_on_error": stop_on_error,
        }
        return self.send("shell", "execute_request", content, msg_id=msg_id, username=username)

    def send_input_reply(
        self, value: str, request: KernelMessage, *, username: str | None = None
    ) -> KernelMessage:
        """Answer an ``input_request``."""
        message, frames = self._wire.encode(
            "input_reply", {"value": value}, parent=request, username=username
        )
        self._dealers["stdin"].send(frames)
        return message

    def close(self) -> None:
        # In this order: an event without a reader would block ZeroMQ's one I/O thread, and with it every kernel.
        if not self._watched.closed:
            self._watched.disable_monitor()
        self._monitor.close()
        for dealer in self._dealers.values():
            dealer.close()
        for future in list(self._replies.values()):
            future.cancel()

    def _open(
        self, connection: ConnectionInfo, context: zmq.Context[zmq.Socket[bytes]], port: ShellPort
    ) -> Dealer:
        socket = context.socket(zmq.DEALER)
        # A kernel asks for input where the request came from, so the sockets share one identity.
        socket.setsockopt(zmq.IDENTITY, self._wire.session.encode())
        socket.rcvhwm = 0
        socket.reconnect_ivl = RECONNECT_AFTER_MS
        connection.secure(socket)
        if port == "stdin":
            self._watched = socket
            monitor = socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
            self._monitor = Dealer(monitor, lambda _: self.stdin_connected.set())
        socket.connect(connection.endpoint(port))
        return Dealer(socket, partial(self._on_frames, port))

    def _on_frames(self, port: ShellPort, frames: list[bytes]) -> None:
        message = self._wire.decode(frames)
        if isinstance(message, Fault):
            logger.warning("a kernel's %s message was refused: %s", port, message.detail)
            return
        future = self._replies.pop(message.parent_id, None)
        if future is not None and not future.done():
            future.set_result(message)
        if self._on_message is not None:
            self._on_message(port, message)


def send_execute_request(shell: ShellClient, code: str, **options: Any) -> str:
    """Have the kernel run code, and return the request's id."""
    return shell.send_execute_request(code, **options).msg_id
