"""Having a server prove that it knows the token before the token is sent to it; see ``himalia.token_proof``.

The proof is asked for on the very connection that the token is then sent over, once for each connection.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

import msgspec

from himalia.client.discovery import Address
from himalia.client.errors import error_from_answer
from himalia.errors import ConnectionFailed, ErrorCode, HimaliaError
from himalia.token_proof import ANSWER_BYTES_MAX, Challenge, is_same_machine, not_proven

PROOF_TIMEOUT_S = 10.0
_PASSED_ON = (
    ErrorCode.UNAUTHORIZED,
    ErrorCode.FORBIDDEN,
    ErrorCode.TOO_MANY_CONNECTIONS,
    ErrorCode.SHUTTING_DOWN,
)
"""What a server may answer instead of a proof. Nothing is sent to it either way."""

Send = Callable[[bytes], Awaitable[None]]
Receive = Callable[[], Awaitable[bytes]]


class _Proof(msgspec.Struct):
    proof: str


async def prove(address: Address, send: Send, receive: Receive) -> None:
    """Ask over a new connection. Raises the server's refusal, or ``ConnectionFailed`` if there is no valid proof."""
    assert address.token is not None
    challenge = Challenge(address.token)
    parts = urlsplit(address.url)
    head = f"GET {parts.path}{challenge.path} HTTP/1.1\r\nHost: {parts.netloc}\r\nAccept: application/json\r\n\r\n"
    await send(head.encode("ascii", "replace"))
    status, body = await _answer(address, receive)
    if status != 200:
        raise _refusal(address, status, body)
    try:
        proof = msgspec.json.decode(body, type=_Proof).proof
    except msgspec.MsgspecError:
        proof = ""
    if not challenge.is_met(proof):
        raise ConnectionFailed(not_proven(address.url), url=address.url)


def _refusal(address: Address, status: int, body: bytes) -> HimaliaError:
    error = error_from_answer(address.url, status, body)
    if error.data.get("code") in _PASSED_ON:
        return error
    return ConnectionFailed(not_proven(address.url), url=address.url)


async def _answer(address: Address, receive: Receive) -> tuple[int, bytes]:
    """Status and body of one answer of known length, which is what a Himalia server sends."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += await _more(address, receive, data)
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
        body += await _more(address, receive, body)
    return status, body


async def _more(address: Address, receive: Receive, so_far: bytes) -> bytes:
    data = await receive()
    if not data or len(so_far) > ANSWER_BYTES_MAX:
        raise ConnectionFailed(not_proven(address.url), url=address.url)
    return data


def is_here(own: Any, peer: Any) -> bool:
    """Whether a connection ends on this machine; the arguments are the socket addresses of its ends."""
    return is_same_machine(own[0], peer[0])


async def connected_socket(address: Address) -> socket.socket:
    """A socket that is connected to a server; if that is on this machine, it has proven that it knows the token."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(PROOF_TIMEOUT_S):
        connected = await _connected(address)
        try:
            if is_here(connected.getsockname(), connected.getpeername()):
                await prove(
                    address,
                    lambda data: loop.sock_sendall(connected, data),
                    lambda: loop.sock_recv(connected, 65536),
                )
        except BaseException:
            connected.close()
            raise
    return connected


async def _connected(address: Address) -> socket.socket:
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
            # A name may have addresses of both kinds, of which a server listens on one.
            if not isinstance(error, OSError) or number == len(found):
                raise
        else:
            return opened
    raise ConnectionFailed(f"{parts.hostname} has no address", url=address.url)
