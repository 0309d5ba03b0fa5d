"""Accepts connections, in the place of uvloop's server, which does not report that no file descriptor is left.

It also counts a connection from the moment it is accepted, before a TLS handshake that may never end.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import resource
import socket
import ssl
from collections.abc import Callable

from himalia.server.http.admission import Admission, Admitted, Refusal
from himalia.server.http.protocol import plain_response

logger = logging.getLogger("himalia.server")

ACCEPTED_AT_ONCE = 8
"""Connections accepted in one turn of the event loop: each may take a millisecond, while others wait."""
PAUSE_S = 0.2
"""How long to wait for a file descriptor. Clients wait meanwhile in the backlog of the socket."""
EXHAUSTED = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
FULL = plain_response(503, "TOO_MANY_CONNECTIONS", "too many connections are open; try again later")

MakeProtocol = Callable[[Admitted], asyncio.Protocol]


class Listener:
    """A listening socket, in the place of an ``asyncio.Server``."""

    def __init__(
        self,
        listening: socket.socket,
        admission: Admission,
        make_protocol: MakeProtocol,
        *,
        tls: ssl.SSLContext | None,
        handshake_timeout_s: float,
    ) -> None:
        self._listening = listening
        self._admission = admission
        self._make_protocol = make_protocol
        self._tls = tls
        self._handshake_timeout_s = handshake_timeout_s
        self._loop = asyncio.get_running_loop()
        self._connecting: set[asyncio.Task[None]] = set()
        self._resume_timer: asyncio.TimerHandle | None = None
        self._closed = False
        listening.setblocking(False)
        self._loop.add_reader(listening, self._accept)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._resume_timer is not None:
            self._resume_timer.cancel()
        self._loop.remove_reader(self._listening)
        self._listening.close()
        for task in self._connecting:
            task.cancel()

    async def wait_closed(self) -> None:
        await asyncio.gather(*self._connecting, return_exceptions=True)

    def _accept(self) -> None:
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                connection, peer = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._pause(error)
                return
            self._start(connection, peer[0])

    def _pause(self, error: OSError) -> None:
        if error.errno in EXHAUSTED:
            self._admission.refuse(
                Refusal.DESCRIPTORS,
                "no connection can be accepted: %s (this process may open %d files; see `ulimit -n`); clients wait",
                error.strerror,
                resource.getrlimit(resource.RLIMIT_NOFILE)[0],
            )
        else:
            logger.error("accepting a connection failed: %s", error)
        self._loop.remove_reader(self._listening)
        self._resume_timer = self._loop.call_later(PAUSE_S, self._resume_accepting)

    def _resume_accepting(self) -> None:
        self._resume_timer = None
        self._loop.add_reader(self._listening, self._accept)

    def _start(self, connection: socket.socket, address: str) -> None:
        connection.setblocking(False)
        admitted = self._admission.admit(address)
        if admitted is None:
            self._refuse(connection)
            return
        task = self._loop.create_task(self._connect(connection, admitted))
        admitted.abort = task.cancel
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)
        # A task that is cancelled before its first step does not close the connection.
        task.add_done_callback(lambda done: connection.close() if done.cancelled() else None)

    def _refuse(self, connection: socket.socket) -> None:
        with connection:
            if self._tls is None:
                try:
                    connection.send(FULL)
                except OSError:
                    pass

    async def _connect(self, connection: socket.socket, admitted: Admitted) -> None:
        """Make the transport and, under TLS, wait for the handshake."""
        try:
            await self._loop.connect_accepted_socket(
                lambda: self._make_protocol(admitted),
                connection,
                ssl=self._tls,
                ssl_handshake_timeout=self._handshake_timeout_s if self._tls else None,
            )
        except (OSError, asyncio.CancelledError) as error:  # ssl.SSLError and a timeout are an OSError too
            was_open = admitted.open
            admitted.release()
            connection.close()
            if isinstance(error, asyncio.CancelledError):
                raise
            if self._tls is not None and was_open:
                self._admission.refuse(Refusal.TLS, "a TLS handshake failed: %s", error or "it took too long")
        except BaseException:
            admitted.release()
            connection.close()
            raise
