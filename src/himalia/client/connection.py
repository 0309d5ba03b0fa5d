"""One WebSocket connection to ``/ws``, with the protocol's messages and Himalia's errors."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException

from himalia.client.discovery import Address
from himalia.client.errors import make_response_error, translate_errors
from himalia.client.server_proof import connect_verified
from himalia.errors import ConnectionFailed, HimaliaError, InternalError
from himalia.protocol import ClientMessage, ServerMessage, encode
from himalia.tls import client_context

FRAME_BYTES_MAX = 64 * 1024 * 1024 + 64 * 1024
"""The largest record that a server stores, which is a kernel's, and its envelope."""
FRAMES_QUEUED = (64, 16)
"""High and low water mark of the frames read ahead of the application."""
OPEN_TIMEOUT_S = 10.0
CLOSE_TIMEOUT_S = 1.0
PING_AFTER_S = 30.0
_PROXIES = ("ws", "socks", "https", "http")
"""The proxy settings of the environment that websockets considers."""
_SECURE_PROXIES = ("wss", "socks", "https")

_PING = encode(ClientMessage("ping"))
_decode = msgspec.json.Decoder(ServerMessage).decode


class WebSocketConnection:
    """The client's half of ``/ws``. Any task may send; only one task may receive at a time.

    Back-pressure is the caller's own pace: if it does not receive, the socket is soon not read either, and the server
    applies the subscription's policy for slow consumers.
    """

    def __init__(self, socket: ClientConnection, url: str) -> None:
        self.url = url
        self._socket = socket
        # True while the caller waits for a message; otherwise silence says nothing about the server.
        self._is_receiving = False
        self._received_at = asyncio.get_running_loop().time()
        self._timed_out = False
        self._watchdog = asyncio.create_task(self._watch())

    @classmethod
    async def open(cls, address: Address, tls: ssl.SSLContext | None = None) -> WebSocketConnection:
        """Connect. Raises the error with which the server refuses (``Unauthorized``, ...), or ``ConnectionFailed``."""
        with translate_errors(address.url, OSError, TimeoutError, WebSocketException):
            try:
                is_proxied = address.is_proxied(*(_SECURE_PROXIES if address.is_secure else _PROXIES))
                # The server proves itself on the connection that the token is then sent over.
                is_checked = address.needs_proof and not is_proxied
                socket = await connect(
                    address.websocket_url,
                    sock=await connect_verified(address) if is_checked else None,
                    additional_headers=address.headers,
                    compression=None,
                    proxy=True if is_proxied else None,
                    ssl=(tls or client_context()) if address.is_secure else None,
                    open_timeout=OPEN_TIMEOUT_S,
                    close_timeout=CLOSE_TIMEOUT_S,
                    # A pong arrives behind all frames that a slow application has not read, so the library's
                    # keepalive would drop such a connection; see _watch.
                    ping_interval=None,
                    max_size=FRAME_BYTES_MAX,
                    max_queue=FRAMES_QUEUED,
                )
            except InvalidStatus as error:
                refusal = error.response
                content = bytes(refusal.body or b"")
                raise make_response_error(address.url, refusal.status_code, content) from None
        return cls(socket, address.url)

    async def send(self, message: bytes) -> None:
        """Send one message; returns when the socket has room for the next."""
        with translate_errors(self.url, OSError, WebSocketException):
            await self._socket.send(message, text=True)

    async def receive(self) -> ServerMessage:
        """Receive the next message. Cancelling loses none. Raises ``ConnectionFailed`` when the connection closes."""
        self._is_receiving = True
        try:
            data = await self._socket.recv(decode=False)
            self._received_at = asyncio.get_running_loop().time()
        except ConnectionClosed as closed:
            raise ConnectionFailed(
                f"the connection to {self.url} closed: {self._describe_close(closed)}", url=self.url
            ) from None
        finally:
            self._is_receiving = False
        try:
            return _decode(data)
        except msgspec.MsgspecError as error:
            raise InternalError(f"cannot decode a message from {self.url}: {error}") from None

    async def _watch(self) -> None:
        """Ping a server that has been silent for ``PING_AFTER_S``; drop the connection if it does not reply."""
        loop = asyncio.get_running_loop()
        pinged_at = self._received_at - 1
        while True:
            await asyncio.sleep(PING_AFTER_S / 2)
            now = loop.time()
            if not self._is_receiving:
                continue
            if pinged_at < self._received_at:
                if now - self._received_at >= PING_AFTER_S:
                    pinged_at = now
                    with suppress(HimaliaError):
                        await self.send(_PING)
            elif now - pinged_at >= PING_AFTER_S:
                self._timed_out = True
                self._socket.transport.abort()
                return

    def _describe_close(self, closed: ConnectionClosed) -> str:
        if self._timed_out:
            return "the server did not respond"
        if closed.rcvd is None:
            return "connection lost"
        return closed.rcvd.reason or f"close code {closed.rcvd.code}"

    async def close(self) -> None:
        """Close the connection, with a closing handshake if the server responds. Never raises."""
        self._watchdog.cancel()
        await self._socket.close()
