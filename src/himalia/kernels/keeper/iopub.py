"""Listening to a kernel's IOPub: everything that it publishes, as raw frames."""

from __future__ import annotations

import struct
from typing import Any

import zmq

MESSAGES_AT_ONCE = 1000
"""Received before the keeper looks at its other sockets."""
RECONNECT_AFTER_MS = 20
"""The socket connects before the kernel listens; the default of 100 ms could miss its first messages."""

_EVENT = struct.Struct("=HI")
_MONITOR_ADDRESS = "inproc://iopub-monitor"


class IopubTap:
    """A SUB socket that subscribed before it connected, without a limit on what it holds."""

    def __init__(self, connection: dict[str, Any]) -> None:
        """Begin to connect, by what Jupyter's connection file says."""
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
        """What has come, up to a limit; empty if nothing has."""
        messages: list[list[bytes]] = []
        try:
            while len(messages) < MESSAGES_AT_ONCE:
                messages.append(self.socket.recv_multipart(zmq.NOBLOCK))
        except zmq.Again:
            pass
        return messages

    def watch(self) -> None:
        """Bring ``is_connected`` up to date."""
        try:
            while True:
                event, _ = _EVENT.unpack(self.monitor.recv_multipart(zmq.NOBLOCK)[0])
                self.is_connected = event == zmq.EVENT_HANDSHAKE_SUCCEEDED
        except zmq.Again:
            pass

    def close(self) -> None:
        self.socket.disable_monitor()
        self.monitor.close()
        self.socket.close()
        self._context.term()


def _url(connection: dict[str, Any]) -> str:
    transport, ip, port = connection.get("transport", "tcp"), connection["ip"], connection["iopub_port"]
    return f"{transport}://{ip}{':' if transport == 'tcp' else '-'}{port}"
