"""A WebSocket client made by hand, which can do everything wrong that a client can do wrong."""

from __future__ import annotations

import base64
import json
import os
import socket
import struct
import time
import uuid
from collections.abc import Callable
from types import TracebackType
from typing import Any

from tests.servers import DEADLINE_S, RunningServer

CONT, TEXT, BINARY, CLOSE, PING, PONG = 0x0, 0x1, 0x2, 0x8, 0x9, 0xA


def until(condition: Callable[[], Any], deadline_s: float = DEADLINE_S) -> Any:
    """Look until the condition holds, and return what it gave; the deadline is the only failure."""
    end = time.monotonic() + deadline_s
    while not (found := condition()):
        assert time.monotonic() < end, f"not so within {deadline_s} s: {condition}"
        time.sleep(0.005)
    return found


def frame(
    payload: bytes, opcode: int = TEXT, *, fin: bool = True, masked: bool = True, reserved: int = 0
) -> bytes:
    """One frame as a client would send it, or as it should not."""
    first = (0x80 if fin else 0) | reserved << 4 | opcode
    mask_bit = 0x80 if masked else 0
    size = len(payload)
    if size < 126:
        head = struct.pack("!BB", first, mask_bit | size)
    elif size < 65536:
        head = struct.pack("!BBH", first, mask_bit | 126, size)
    else:
        head = struct.pack("!BBQ", first, mask_bit | 127, size)
    if not masked:
        return head + payload
    mask = os.urandom(4)
    repeated = mask * (size // 4 + 1)
    body = int.from_bytes(payload, "big") ^ int.from_bytes(repeated[:size], "big")
    return head + mask + body.to_bytes(size, "big")


def handshake(port: int, path: str = "/ws", **headers: str) -> bytes:
    """The request that opens a WebSocket; a header given as ``""`` is left out."""
    fields = {
        "Host": f"127.0.0.1:{port}",
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Key": base64.b64encode(os.urandom(16)).decode(),
        "Sec-WebSocket-Version": "13",
    }
    fields |= {name.replace("_", "-"): value for name, value in headers.items()}
    lines = [f"GET {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items() if value)]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


class Wire:
    """A connected socket with a buffer; every read has a deadline."""

    def __init__(self, port: int, *, receive_bytes: int = 0) -> None:
        self.socket = socket.socket()
        if receive_bytes:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self.socket.settimeout(DEADLINE_S)
        self.socket.connect(("127.0.0.1", port))
        self._unread = b""

    def __enter__(self) -> Wire:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def receive(self) -> bytes:
        """Something, or nothing at the end. A reset is an end too."""
        if self._unread:
            data, self._unread = self._unread, b""
            return data
        try:
            return self.socket.recv(65536)
        except ConnectionError:
            return b""

    def exactly(self, size: int) -> bytes:
        data, self._unread = self._unread, b""
        while len(data) < size:
            part = self.receive()
            if not part:
                raise EOFError("the server closed the connection")
            data += part
        self._unread = data[size:]
        return data[:size]

    def until_end(self) -> bytes:
        """Everything up to the server's end of the connection."""
        parts = []
        while part := self.receive():
            parts.append(part)
        return b"".join(parts)

    def response(self) -> tuple[int, dict[str, str], bytes]:
        """One HTTP response: status, headers, body."""
        data = b""
        while b"\r\n\r\n" not in data:
            part = self.receive()
            if not part:
                raise EOFError(f"the server closed the connection after {data!r}")
            data += part
        head, _, self._unread = data.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        pairs = (line.partition(":") for line in lines)
        headers = {name.lower(): value.strip() for name, _, value in pairs}
        return int(first.split()[1]), headers, self.exactly(int(headers.get("content-length", 0)))

    def reset(self) -> None:
        """Vanish: the peer gets a reset, not an orderly end."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()


class RawWebSocket(Wire):
    """A WebSocket that is open."""

    def __init__(self, server: RunningServer, *, receive_bytes: int = 0, path: str = "/ws") -> None:
        super().__init__(server.port, receive_bytes=receive_bytes)
        headers = {"X_API_Key": server.token} if server.token else {}
        self.send(handshake(server.port, path, **headers))
        status, _, body = self.response()
        assert status == 101, (status, body)

    def __enter__(self) -> RawWebSocket:
        return self

    def next_frame(self) -> tuple[int, bytes]:
        """Opcode and payload of the server's next frame; ``EOFError`` at the end."""
        first, size = self.exactly(2)
        assert not size & 0x80, "a server does not mask"
        if size == 126:
            size = int.from_bytes(self.exactly(2), "big")
        elif size == 127:
            size = int.from_bytes(self.exactly(8), "big")
        return first & 0x0F, self.exactly(size)

    def hear(self) -> dict[str, Any]:
        """The next message; pings and pongs of the WebSocket are skipped."""
        while True:
            opcode, payload = self.next_frame()
            if opcode == TEXT:
                return json.loads(payload)  # type: ignore[no-any-return]
            assert opcode in (PING, PONG), (opcode, payload)

    def hear_pong(self) -> bytes:
        while True:
            opcode, payload = self.next_frame()
            if opcode == PONG:
                return payload

    def close_code(self) -> int:
        """The code of the server's close frame, whatever comes before it; then waits for the end."""
        while True:
            opcode, payload = self.next_frame()
            if opcode == CLOSE:
                self.socket.settimeout(DEADLINE_S)
                try:
                    self.send(frame(payload, CLOSE))
                except OSError:
                    pass
                assert self.until_end() is not None
                return int.from_bytes(payload[:2], "big")

    def say(self, **message: Any) -> None:
        if "from_" in message:
            message["from"] = message.pop("from_")
        self.send(frame(json.dumps(message).encode()))

    def ask(self, **message: Any) -> dict[str, Any]:
        """Send a message and return the answer to it, skipping what else comes meanwhile."""
        request_id = message.setdefault("request_id", str(uuid.uuid4()))
        self.say(**message)
        while True:
            answer = self.hear()
            if answer.get("request_id") == request_id:
                return answer

    def is_alive(self) -> bool:
        return self.ask(type="ping")["type"] == "pong"


class Witness:
    """Another client, who was there before and must notice nothing of what happens to others."""

    def __init__(self, server: RunningServer) -> None:
        self._topic = f"witness-{uuid.uuid4()}"
        server.create(self._topic)
        self._viewer = RawWebSocket(server)
        self._publisher = RawWebSocket(server)
        ack = self._viewer.ask(type="subscribe", topic=self._topic, client_id="witness")
        assert ack["type"] == "ack", ack
        self._next = 0

    def check(self) -> None:
        """What is published is acknowledged and delivered, in order and without a hole."""
        message = {"id": str(uuid.uuid4()), "payload": self._next}
        ack = self._publisher.ask(type="publish", topic=self._topic, message=message)
        assert (ack["type"], ack["offset"]) == ("ack", self._next), ack
        while (event := self._viewer.hear())["type"] == "info":
            assert event["msg"] == "ping", event
        assert (event["type"], event["offset"], event["message"]["payload"]) == (
            "event",
            self._next,
            self._next,
        )
        self._next += 1

    def close(self) -> None:
        self._viewer.socket.close()
        self._publisher.socket.close()
