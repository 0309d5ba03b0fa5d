"""One server that is connected: JSON lines in, JSON lines out, never waiting for it."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import Any

from himalia.ndjson import LineSplitter

LINE_BYTES_MAX = 16 << 20
"""The longest line is the launch of a kernel, with its whole environment."""
UNSENT_BYTES_MAX = 32 << 20


class Connection:
    def __init__(self, sock: socket.socket, received: bytes = b"") -> None:
        """A connected socket, and what was read from it already."""
        sock.setblocking(False)
        self._socket = sock
        self._received = received
        self._splitter = LineSplitter()
        self._unsent = bytearray()
        self.is_closed = False
        self.is_following = False
        """Whether it is there to be notified, and for nothing else."""

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def has_unsent(self) -> bool:
        return bool(self._unsent)

    def receive(self) -> list[bytes]:
        """The lines that are complete. The connection is closed if the server has gone, or never ends a line."""
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
        """Send now what the socket takes, the rest by ``flush``; a server that never reads is let go."""
        self._unsent += json.dumps(message).encode() + b"\n"
        self.flush()
        if len(self._unsent) > UNSENT_BYTES_MAX:
            self.close()

    def notify(self) -> None:
        """Send an empty line. If there is no room for it, one before it was not read yet, and will do."""
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
        # Only marked here: the descriptor must stay valid until it is out of the poller.

    def release(self) -> None:
        self._socket.close()


def listen(path: Path) -> socket.socket:
    """A socket to which servers connect, for this user only."""
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
