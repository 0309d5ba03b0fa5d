"""The keeper's IOPub socket: raw frames, which of them are urgent, and whether the kernel is busy."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from typing import Any

import zmq

MESSAGES_AT_ONCE = 1000
"""Received before the keeper looks at its other sockets."""
RECONNECT_AFTER_MS = 20
"""The socket connects before the kernel listens; the default of 100 ms could miss its first messages."""

_EVENT = struct.Struct("=HI")
_MONITOR_ADDRESS = "inproc://iopub-monitor"


class IopubSocket:
    """A SUB socket that subscribed before it connected, without a limit on what it holds."""

    def __init__(self, connection: dict[str, Any]) -> None:
        """Begin to connect to the kernel of a connection file."""
        self.is_connected = False
        self._context = zmq.Context()
        self.socket: zmq.Socket[bytes] = self._context.socket(zmq.SUB)
        self.socket.rcvhwm = 0
        self.socket.linger = 0
        self.socket.reconnect_ivl = RECONNECT_AFTER_MS
        if "curve_publickey" in connection:
            self._encrypt(connection)
        events = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED
        self.socket.monitor(_MONITOR_ADDRESS, events)
        self.monitor: zmq.Socket[bytes] = self._context.socket(zmq.PAIR)
        self.monitor.linger = 0
        self.monitor.connect(_MONITOR_ADDRESS)
        self.socket.subscribe(b"")
        self.socket.connect(_url(connection))

    def _encrypt(self, connection: dict[str, Any]) -> None:
        # A Jupyter connection file has one key pair, for both sides.
        self.socket.curve_publickey = connection["curve_publickey"].encode()
        self.socket.curve_secretkey = connection["curve_secretkey"].encode()
        self.socket.curve_serverkey = connection["curve_publickey"].encode()

    def receive(self) -> list[list[bytes]]:
        """Return what has come, up to a limit; empty if nothing has. Never blocks."""
        messages: list[list[bytes]] = []
        try:
            while len(messages) < MESSAGES_AT_ONCE:
                messages.append(self.socket.recv_multipart(zmq.NOBLOCK))
        except zmq.Again:
            pass
        return messages

    def update_connected(self) -> None:
        """Set ``is_connected`` by the monitor's events."""
        try:
            while True:
                event, _ = _EVENT.unpack(self.monitor.recv_multipart(zmq.NOBLOCK)[0])
                self.is_connected = event == zmq.EVENT_HANDSHAKE_SUCCEEDED
        except zmq.Again:
            pass

    def close(self) -> None:
        # In this order: an event that no socket reads would block ZeroMQ's I/O thread, and ``term`` would wait for it.
        self.socket.disable_monitor()
        self.monitor.close()
        self.socket.close()
        self._context.term()


def _url(connection: dict[str, Any]) -> str:
    transport, ip, port = connection.get("transport", "tcp"), connection["ip"], connection["iopub_port"]
    return f"{transport}://{ip}{':' if transport == 'tcp' else '-'}{port}"


REQUESTS_MAX = 1000
"""Requests that a kernel can be busy with; more are not counted."""
_DELIMITER = b"<IDS|MSG>"


def is_status(frames: Sequence[bytes]) -> bool:
    """Return whether this is a kernel's ``busy`` or ``idle``."""
    return b'"status"' in _part(frames, 2)


def is_idle(frames: Sequence[bytes]) -> bool:
    """Return whether this is the end of a request: a client waits for it."""
    return is_status(frames) and b'"idle"' in _part(frames, 5)


class KernelActivity:
    """Whether a kernel works on any request, by the ``busy`` and ``idle`` of each.

    The last of them alone is not enough: a kernel answers on its control channel while a cell runs, and is ``busy``
    and ``idle`` for that as well.
    """

    def __init__(self) -> None:
        self._running: dict[str, None] = {}

    @property
    def is_busy(self) -> bool:
        return bool(self._running)

    def apply(self, frames: Sequence[bytes]) -> None:
        """Apply a status message; any other message changes nothing."""
        state = _object(_part(frames, 5)).get("execution_state")
        request = str(_object(_part(frames, 3)).get("msg_id", ""))
        if state == "busy" and len(self._running) < REQUESTS_MAX:
            self._running[request] = None
        elif state == "idle":
            self._running.pop(request, None)


def _object(part: bytes) -> dict[str, Any]:
    try:
        value = json.loads(part)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _part(frames: Sequence[bytes], number: int) -> bytes:
    """Return a part of the message, counted from the delimiter; empty if there is none."""
    try:
        return frames[frames.index(_DELIMITER) + number]
    except (ValueError, IndexError):
        return b""
