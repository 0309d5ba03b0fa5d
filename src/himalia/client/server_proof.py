"""Verifies that a server knows the token before the token is sent to it; see ``himalia.token_proof``.

The proof is requested on the connection that the token is then sent over, once for each connection.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

import msgspec

from himalia.client.discovery import Address
from himalia.client.errors import make_response_error
from himalia.errors import ConnectionFailed, ErrorCode, HimaliaError
from himalia.protocol.models import ProofResponse
from himalia.token_proof import ANSWER_BYTES_MAX, Challenge, is_same_machine, not_proven

PROOF_TIMEOUT_S = 10.0
_RAISED_AS_SENT = (
    ErrorCode.UNAUTHORIZED,
    ErrorCode.FORBIDDEN,
    ErrorCode.TOO_MANY_CONNECTIONS,
    ErrorCode.SHUTTING_DOWN,
)
"""Errors that a server may return instead of a proof; the token is not sent after any of them."""

Send = Callable[[bytes], Awaitable[None]]
Receive = Callable[[], Awaitable[bytes]]


async def prove(address: Address, send: Send, receive: Receive) -> None:
    """Request the proof on a new connection. Raises the server's error, or ``ConnectionFailed`` if it is not valid."""
    assert address.token is not None
    challenge = Challenge(address.token)
    parts = urlsplit(address.url)
    head = f"GET {parts.path}{challenge.path} HTTP/1.1\r\nHost: {parts.netloc}\r\nAccept: application/json\r\n\r\n"
    await send(head.encode("ascii", "replace"))
    status, body = await _receive_response(address, receive)
    if status != 200:
        raise _refusal(address, status, body)
    try:
        proof = msgspec.json.decode(body, type=ProofResponse).proof
    except msgspec.MsgspecError:
        proof = ""
    if not challenge.is_met(proof):
        raise ConnectionFailed(not_proven(address.url), url=address.url)


def _refusal(address: Address, status: int, body: bytes) -> HimaliaError:
    error = make_response_error(address.url, status, body)
    if error.data.get("code") in _RAISED_AS_SENT:
        return error
    return ConnectionFailed(not_proven(address.url), url=address.url)


async def _receive_response(address: Address, receive: Receive) -> tuple[int, bytes]:
    """Receive one HTTP response with a Content-Length, as a Himalia server sends it; return status and body."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += await _receive_more(address, receive, data)
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {
        name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)
    }
    try:
        status, length = int(first.split(" ")[1]), int(headers["content-length"])
    except (LookupError, ValueError):
        raise ConnectionFailed(not_proven(address.url), url=address.url) from None
    while len(body) < length:
        body += await _receive_more(address, receive, body)
    return status, body


async def _receive_more(address: Address, receive: Receive, so_far: bytes) -> bytes:
    data = await receive()
    if not data or len(so_far) > ANSWER_BYTES_MAX:
        raise ConnectionFailed(not_proven(address.url), url=address.url)
    return data


def is_local(own: Any, peer: Any) -> bool:
    """Return whether both ends of a connection, given as socket addresses, are on this machine."""
    return is_same_machine(own[0], peer[0])


async def connect_verified(address: Address) -> socket.socket:
    """Connect a socket to a server. A server on this machine must prove that it knows the token."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(PROOF_TIMEOUT_S):
        connected = await _open_socket(address)
        try:
            if is_local(connected.getsockname(), connected.getpeername()):
                await prove(
                    address,
                    lambda data: loop.sock_sendall(connected, data),
                    lambda: loop.sock_recv(connected, 65536),
                )
        except BaseException:
            connected.close()
            raise
    return connected


async def _open_socket(address: Address) -> socket.socket:
    loop = asyncio.get_running_loop()
    parts = urlsplit(address.url)
    found = await loop.getaddrinfo(parts.hostname, parts.port or 80, type=socket.SOCK_STREAM)
    for number, (family, kind, protocol, _, where) in enumerate(found, 1):
        opened = socket.socket(family, kind, protocol)
        try:
            opened.setblocking(False)
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await loop.sock_connect(opened, where)
        except BaseException as error:
            opened.close()
            # A name may have IPv4 and IPv6 addresses, and the server may listen on one of them only.
            if not isinstance(error, OSError) or number == len(found):
                raise
        else:
            return opened
    raise ConnectionFailed(f"{parts.hostname} has no address", url=address.url)
