"""One WebSocket connection: opened, spoken over and closed in our words and with our errors."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException

from himalia.client.discovery import Address
from himalia.client.errors import error_from_answer, translating
from himalia.client.server_proof import connected_socket
from himalia.errors import ConnectionFailed, HimaliaError, InternalError
from himalia.protocol import ClientMessage, ServerMessage, encode
from himalia.tls import client_context

FRAME_BYTES_MAX = 64 * 1024 * 1024 + 64 * 1024
"""The largest record that a server stores, a kernel's, and what stands around it."""
FRAMES_QUEUED = (64, 16)
"""Frames read ahead of the application: above the first number the socket is not read, below the second again."""
OPEN_TIMEOUT_S = 10.0
CLOSE_TIMEOUT_S = 1.0
QUIET_S = 30.0
_PROXIES = ("ws", "socks", "https", "http")
"""The settings of the environment by which websockets chooses a proxy."""
_SECURE_PROXIES = ("wss", "socks", "https")

_PING = encode(ClientMessage("ping"))
_decode = msgspec.json.Decoder(ServerMessage).decode


class Connection:
    """The client's half of ``/ws``. Many may send; only one task may receive at a time.

    Back-pressure is the caller's own pace: what it does not receive is soon not read from the socket either, and
    the server's policy for slow consumers applies.
    """

    def __init__(self, socket: ClientConnection, url: str) -> None:
        self.url = url
        self._socket = socket
        # Whether the caller waits for a message: while it does not, silence means nothing.
        self._is_waiting = False
        self._heard_at = asyncio.get_running_loop().time()
        self._is_silent = False
        self._watching = asyncio.create_task(self._watch())

    @classmethod
    async def open(cls, address: Address, tls: ssl.SSLContext | None = None) -> Connection:
        """Connect. Raises the server's refusal (``Unauthorized``, ...) or ``ConnectionFailed``."""
        with translating(address.url, OSError, TimeoutError, WebSocketException):
            try:
                is_proxied = address.is_proxied(*(_SECURE_PROXIES if address.is_secure else _PROXIES))
                # Proven on the very connection that the token is then sent over.
                is_checked = address.needs_proof and not is_proxied
                socket = await connect(
                    address.websocket_url,
                    sock=await connected_socket(address) if is_checked else None,
                    additional_headers=address.headers,
                    compression=None,
                    proxy=True if is_proxied else None,
                    ssl=(tls or client_context()) if address.is_secure else None,
                    open_timeout=OPEN_TIMEOUT_S,
                    close_timeout=CLOSE_TIMEOUT_S,
                    # A pong would come behind everything that a slow application has not read yet, so the
                    # library's way of noticing a dead peer does not do; see _watch.
                    ping_interval=None,
                    max_size=FRAME_BYTES_MAX,
                    max_queue=FRAMES_QUEUED,
                )
            except InvalidStatus as error:
                answer = error.response
                raise error_from_answer(address.url, answer.status_code, bytes(answer.body or b"")) from None
        return cls(socket, address.url)

    async def send(self, message: bytes) -> None:
        """Send one message; comes back when the socket has room for the next."""
        with translating(self.url, OSError, WebSocketException):
            await self._socket.send(message, text=True)

    async def receive(self) -> ServerMessage:
        """The next message. Being cancelled loses none. Raises ``ConnectionFailed`` at the end of the connection."""
        self._is_waiting = True
        try:
            data = await self._socket.recv(decode=False)
            self._heard_at = asyncio.get_running_loop().time()
        except ConnectionClosed as closed:
            raise ConnectionFailed(
                f"the connection to {self.url} ended: {self._reason(closed)}", url=self.url
            ) from None
        finally:
            self._is_waiting = False
        try:
            return _decode(data)
        except msgspec.MsgspecError as error:
            raise InternalError(f"{self.url} says what this client does not understand: {error}") from None

    async def _watch(self) -> None:
        """End a connection whose server is silent for too long, and does not answer when it is asked."""
        loop = asyncio.get_running_loop()
        asked_at = self._heard_at - 1
        while True:
            await asyncio.sleep(QUIET_S / 2)
            now = loop.time()
            if not self._is_waiting:
                continue
            if asked_at < self._heard_at:
                if now - self._heard_at >= QUIET_S:
                    asked_at = now
                    with suppress(HimaliaError):
                        await self.send(_PING)
            elif now - asked_at >= QUIET_S:
                self._is_silent = True
                self._socket.transport.abort()
                return

    def _reason(self, closed: ConnectionClosed) -> str:
        if self._is_silent:
            return "the server does not answer"
        if closed.rcvd is None:
            return "it broke"
        return closed.rcvd.reason or f"close code {closed.rcvd.code}"

    async def close(self) -> None:
        """End the connection, in order where the peer plays along. Never fails."""
        self._watching.cancel()
        await self._socket.close()
