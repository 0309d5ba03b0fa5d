"""The servers that are connected to a keeper: JSON lines in, JSON lines out, never waiting for any of them."""

from __future__ import annotations

import json
import os
import socket
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import zmq

from himalia.keeper.event_loop import EventLoop
from himalia.keeper.lease import Lease
from himalia.ndjson import LineSplitter

LINE_BYTES_MAX = 16 << 20
"""The longest line is the launch of a kernel, with its whole environment."""
UNSENT_BYTES_MAX = 32 << 20


class KeeperConnection:
    """A socket to one server."""

    def __init__(self, sock: socket.socket, received: bytes = b"") -> None:
        """Use a connected socket, from which some bytes may have been read already."""
        sock.setblocking(False)
        self._socket = sock
        self._received = received
        self._splitter = LineSplitter()
        self._unsent = bytearray()
        self.is_closed = False
        self.is_following = False
        """Whether it only gets notices that the spool has grown."""

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def has_unsent(self) -> bool:
        return bool(self._unsent)

    def receive(self) -> list[bytes]:
        """Return the lines that are complete. Closes the connection if the server has gone, or never ends a line."""
        try:
            data = self._socket.recv(1 << 16)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        earlier, self._received = self._received, b""
        lines = self._splitter.feed(earlier + data)
        if not data or self._splitter.pending_bytes > LINE_BYTES_MAX:
            self.close()
        return lines

    def send(self, message: dict[str, Any]) -> None:
        """Send now what the socket accepts, the rest by ``flush``; a server that never reads is disconnected."""
        self._unsent += json.dumps(message).encode() + b"\n"
        self.flush()
        if len(self._unsent) > UNSENT_BYTES_MAX:
            self.close()

    def notify(self) -> None:
        """Send an empty line. If there is no room for it, an earlier one was not read yet, and is enough."""
        if self._unsent:
            return
        try:
            self._socket.send(b"\n")
        except BlockingIOError:
            pass
        except OSError:
            self.close()

    def flush(self) -> None:
        try:
            while self._unsent and not self.is_closed:
                del self._unsent[: self._socket.send(self._unsent)]
        except BlockingIOError:
            pass
        except OSError:
            self.close()

    def close(self) -> None:
        self.is_closed = True
        self._unsent.clear()
        # Only marked here: the descriptor must stay valid until it is out of the event loop.

    def release(self) -> None:
        """Close the socket itself."""
        self._socket.close()


class ConnectionListener(Protocol):
    """Gets the events of all connections, in the keeper's one thread."""

    def connected(self, connection: KeeperConnection) -> None:
        """A server has connected."""

    def request_received(self, connection: KeeperConnection, line: bytes) -> None:
        """A server has sent a line."""


class ServerConnections:
    """Every server that is connected, and the lease that they hold: all of them, except followers of the spool."""

    def __init__(self, path: Path, loop: EventLoop, lease: Lease, listener: ConnectionListener) -> None:
        """Accept servers on a socket at ``path``. Raises OSError."""
        self._loop = loop
        self._lease = lease
        self._listener = listener
        self._connections: dict[int, KeeperConnection] = {}
        self._socket = listen(path)
        loop.add(self._socket.fileno(), lambda _: self._accept())

    def add(self, connection: KeeperConnection) -> None:
        """Serve a connection; from now on it holds the lease."""
        self._connections[connection.fileno()] = connection
        self._loop.add(connection.fileno(), partial(self._serve, connection))
        self._lease.acquire()
        self._listener.connected(connection)

    def make_follower(self, connection: KeeperConnection) -> None:
        """Send it a notice whenever the spool has grown, and nothing else.

        It no longer holds the lease: its server has another connection, by which it also learns of the kernel's end.
        """
        if not connection.is_following:
            connection.is_following = True
            self._lease.release()

    def broadcast(self, event: dict[str, Any]) -> None:
        """Send an event to every server, but not to followers."""
        for connection in list(self._connections.values()):
            if not connection.is_following:
                connection.send(event)
                self._update(connection)

    def notify_followers(self) -> None:
        for connection in list(self._connections.values()):
            if connection.is_following:
                connection.notify()
                self._update(connection)

    def close(self) -> None:
        """Accept no more servers."""
        self._loop.remove(self._socket.fileno())
        self._socket.close()

    def _accept(self) -> None:
        try:
            accepted, _ = self._socket.accept()
        except OSError:
            return
        self.add(KeeperConnection(accepted))

    def _serve(self, connection: KeeperConnection, events: int) -> None:
        if events & zmq.POLLOUT:
            connection.flush()
        if events & ~zmq.POLLOUT:
            for line in connection.receive():
                self._listener.request_received(connection, line)
        self._update(connection)

    def _update(self, connection: KeeperConnection) -> None:
        """Wait for what the connection waits for; remove one that is closed."""
        descriptor = connection.fileno()
        if not connection.is_closed:
            events = zmq.POLLIN | (zmq.POLLOUT if connection.has_unsent else 0)
            self._loop.add(descriptor, partial(self._serve, connection), events)
        elif self._connections.pop(descriptor, None) is not None:
            self._loop.remove(descriptor)
            connection.release()
            if not connection.is_following:
                self._lease.release()


def listen(path: Path) -> socket.socket:
    """Bind a socket to which servers connect, for this user only."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        path.unlink(missing_ok=True)
        listener.bind(str(path))
        os.chmod(path, 0o600)
        listener.listen()
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    return listener
