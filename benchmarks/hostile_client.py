"""An abusive client: raw sockets that send what no library would."""

import base64
import json
import os
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress

TOKEN = "the-token-of-the-benchmark"
TIMEOUT_S = 60.0


class UnexpectedAnswer(Exception):
    """The server's response turns the abuse into another one."""


def connected(port: int, *, receive_bytes: int = 0) -> socket.socket:
    made = socket.socket()
    if receive_bytes:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    made.settimeout(TIMEOUT_S)
    made.connect(("127.0.0.1", port))
    return made


def request(method: str, path: str, *, token: str | None = TOKEN, **headers: str) -> bytes:
    fields = {"Host": "127.0.0.1"} | {name.replace("_", "-"): value for name, value in headers.items()}
    if token is not None:
        fields["Authorization"] = f"Bearer {token}"
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def body_of(path: str, body: bytes) -> bytes:
    """Return a request that posts this JSON."""
    return request("POST", path, Content_Type="application/json", Content_Length=str(len(body))) + body


def post(port: int, path: str, body: bytes) -> None:
    """Send a JSON body, and wait for the beginning of a successful response."""
    with connected(port) as made:
        ignore_refusal(lambda: made.sendall(body_of(path, body)))
        expect(made, b" 200 ", b" 201 ")


def expect(made: socket.socket, *wanted: bytes, within_s: float = TIMEOUT_S) -> None:
    """Read a response, whose first line must contain one of these; otherwise the abuse does not do what its name says.

    No response, or a closed connection, is accepted as the server's defence.
    """
    made.settimeout(within_s)
    with suppress(OSError):
        line = made.recv(4096).partition(b"\r\n")[0]
        if line and not any(each in line for each in wanted):
            raise UnexpectedAnswer(f"the server answered {line!r}")


def websocket(port: int) -> socket.socket:
    made = connected(port)
    key = base64.b64encode(os.urandom(16)).decode()
    made.sendall(
        request(
            "GET",
            "/ws",
            Upgrade="websocket",
            Connection="Upgrade",
            Sec_WebSocket_Key=key,
            Sec_WebSocket_Version="13",
        )
    )
    made.recv(4096)
    return made


def frame(payload: bytes, first: int = 0x81) -> bytes:
    """Return a frame masked with zeros."""
    size = len(payload)
    head = struct.pack("!BB", first, 0x80 | size) if size < 126 else struct.pack("!BBH", first, 0xFE, size)
    return head + bytes(4) + payload


def command(**fields: object) -> bytes:
    return frame(json.dumps(fields).encode())


def read_to_end(made: socket.socket) -> threading.Thread:
    """Read and discard data until the connection ends."""

    def read() -> None:
        with suppress(OSError):
            while made.recv(1 << 20):
                pass

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    return thread


def ignore_refusal(work: Callable[[], object]) -> None:
    """Do work that the server may refuse by closing the connection."""
    with suppress(OSError):
        work()
