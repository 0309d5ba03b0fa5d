"""``python -m himalia.keeper DIRECTORY DESCRIPTOR``: the descriptor is a socket to the server that starts a kernel."""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from himalia.keeper.process import KeeperProcess, SignalSocket
from himalia.keeper.server_connection import LINE_BYTES_MAX, KeeperConnection

LAUNCH_WITHIN_S = 60.0


def main(argv: Sequence[str]) -> int:
    """Read the launch from the server, start the kernel, and keep it."""
    signals = SignalSocket()
    directory = Path(argv[0])
    descriptor = int(argv[1])
    os.set_inheritable(descriptor, False)
    server = socket.socket(fileno=descriptor)
    received = _receive_launch(server)
    if received is None:
        return 1
    line, _, rest = received.partition(b"\n")
    request = json.loads(line)
    try:
        keeper = KeeperProcess(directory, KeeperConnection(server, rest), request, signals)
    except Exception as error:
        print(f"himalia keeper: {error}", file=sys.stderr, flush=True)
        _refuse(server, request, error)
        return 1
    keeper.run()
    return 0


def _receive_launch(server: socket.socket) -> bytes | None:
    """Read the ``start`` request, and what came with it; None if the server has gone before."""
    server.settimeout(LAUNCH_WITHIN_S)
    received = bytearray()
    try:
        while b"\n" not in received[-(1 << 16) :] and len(received) <= LINE_BYTES_MAX:
            data = server.recv(1 << 16)
            if not data:
                return None
            received += data
    except OSError:
        return None
    return bytes(received)


def _refuse(server: socket.socket, request: dict[str, Any], error: Exception) -> None:
    try:
        server.setblocking(True)
        server.sendall(
            json.dumps({"id": request.get("id"), "ok": False, "error": str(error)}).encode() + b"\n"
        )
    except OSError:
        pass


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
