"""Running the server: one process, one event loop, until it is told to stop."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
import ssl
import sys
from collections.abc import Callable
from types import FrameType

import anyio
import msgspec
import uvicorn
import uvloop

from himalia.errors import ConfigurationError
from himalia.local_server import RunningServer, write_runtime_file
from himalia.malloc import release_freed_memory, tune_malloc
from himalia.record import now_us
from himalia.server.app import create_app
from himalia.server.context import ServerContext
from himalia.server.http.admission import Admitted, raise_descriptor_limit
from himalia.server.http.listener import Listener
from himalia.server.http.protocol import HttpOptions, HttpProtocol
from himalia.server.identity import is_loopback
from himalia.server.observe import log_config
from himalia.server.websocket.transport import CLOSE_GOING_AWAY, CLOSE_SERVICE_RESTART
from himalia.server.websocket.uvicorn_protocol import WebSocketProtocol
from himalia.settings import Settings

logger = logging.getLogger("himalia.server")

SWITCH_INTERVAL_S = 0.0005
"""How long the log's writer waits for a busy event loop. Python's 5 ms would be longer than the commit itself."""


class Server(uvicorn.Server):
    """uvicorn's server, which says goodbye before it closes and ends without an error when told to stop."""

    def __init__(
        self, config: uvicorn.Config, context: ServerContext, url: str, on_listening: Callable[[Server], None]
    ) -> None:
        super().__init__(config)
        self._http_options = HttpOptions(
            context.settings.handshake_timeout_s,
            context.settings.stall_timeout_s,
            context.manager.time_slices,
        )
        self.url = url
        self._context = context
        self._on_listening = on_listening
        # A supervisor's SIGTERM is mostly followed by a new start; a person's Ctrl-C is not.
        self._close_code = CLOSE_SERVICE_RESTART

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen in our own way: uvicorn's counts no connection, and names no deadline for a TLS handshake."""
        settings = self._context.settings
        await self.lifespan.startup()
        # Imports much when it is first used, which would be in the first answer that streams.
        async with anyio.create_task_group():
            pass
        self.servers = [
            Listener(  # type: ignore[misc]
                listening,
                self._context.admission,
                self._make_protocol,
                tls=self.config.ssl,
                handshake_timeout_s=settings.handshake_timeout_s,
            )
            for listening in sockets or []
        ]
        self.started = True
        self._on_listening(self)

    def _make_protocol(self, admitted: Admitted) -> HttpProtocol:
        return HttpProtocol(self.config, self.server_state, self.lifespan.state, self._http_options, admitted)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        # Unlike uvicorn's, this does not raise the signal again at the end: the exit code is 0.
        if self.should_exit and sig == signal.SIGINT:
            self.force_exit = True
            self._context.hurry()
        if sig == signal.SIGINT:
            self._close_code = CLOSE_GOING_AWAY
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        logger.info("shutting down")
        for server in self.servers:
            server.close()
        await self._context.drain(self._close_code)
        await super().shutdown(sockets)


def serve(settings: Settings, on_started: Callable[[str, str | None], None] | None = None) -> None:
    """Run until SIGTERM or SIGINT. Raises a ``HimaliaError`` that says what to do if it cannot start.

    ``on_started`` is called with the address and the token as soon as connections are accepted.
    """
    if settings.workers != 1:
        raise ConfigurationError(
            "one process owns an embedded log, so --workers is 1; for several servers a distributed log "
            "(nats://) is planned"
        )
    log_config.configure(settings.log_level, settings.log_format)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    tune_malloc()
    release_freed_memory()
    context = ServerContext(settings, kernel_descriptors=raise_descriptor_limit())
    listener = listen(settings.host, settings.port)
    if not is_loopback(settings.host) and settings.ssl_certfile is None:
        logger.warning(
            "listening on %s without TLS: keys and messages cross the network in the clear", settings.host
        )

    def on_listening(server: Server) -> None:
        # What was imported stays for good: a full collection that walks through it stops everything for 60 ms.
        gc.collect()
        gc.freeze()
        if on_started is not None:
            on_started(server.url, context.token)

    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve_on(context, listener, on_listening))
    finally:
        listener.close()


def listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=4096)
    except OSError as error:
        raise ConfigurationError(
            f"cannot listen on {host}:{port}: {error.strerror or error}; choose another with --host and --port "
            "(HIMALIA_PORT), or --port 0 for a free one"
        ) from None


async def serve_on(
    context: ServerContext, listener: socket.socket, on_listening: Callable[[Server], None]
) -> None:
    """Serve a context on a listening socket until the server is told to exit; tell other programs meanwhile."""
    await context.open()
    try:
        server = Server(_config(context), context, _url(context.settings, listener), on_listening)
        running = RunningServer(server.url, context.token, os.getpid(), context.log.url, now_us())
        announced = write_runtime_file(running)
        context.identity.on_token = lambda token: _announce_again(
            msgspec.structs.replace(running, token=token)
        )
        try:
            await server.serve(sockets=[listener])
        finally:
            announced.unlink(missing_ok=True)
    finally:
        await context.close()


def _announce_again(running: RunningServer) -> None:
    """Other programs of this user find the new token."""
    try:
        write_runtime_file(running)
    except ConfigurationError as error:
        logger.warning("%s", error.message)


def _check_tls(settings: Settings) -> None:
    """``ConfigurationError`` for settings by which an operator would expect more than the server does."""
    asks = settings.ssl_cert_reqs != "none"
    if settings.ssl_certfile is None and (asks or settings.ssl_keyfile or settings.ssl_ca_certs):
        raise ConfigurationError(
            "ssl_keyfile, ssl_ca_certs and ssl_cert_reqs need ssl_certfile: without it the server does not speak TLS"
        )
    if asks and settings.ssl_ca_certs is None:
        raise ConfigurationError(
            f"ssl_cert_reqs is {settings.ssl_cert_reqs}, but ssl_ca_certs names no authority to check certificates by"
        )
    if settings.ssl_ca_certs is not None and not asks:
        raise ConfigurationError(
            "ssl_ca_certs names authorities of client certificates, but ssl_cert_reqs is none, so none is asked for"
        )


def _config(context: ServerContext) -> uvicorn.Config:
    settings = context.settings
    _check_tls(settings)
    try:
        config = uvicorn.Config(
            create_app(context=context),
            ws=WebSocketProtocol,
            http=HttpProtocol,
            lifespan="off",  # the context is open already, and closed after the server
            ws_max_size=context.frame_bytes_max,
            ws_per_message_deflate=False,
            ws_ping_interval=None,
            access_log=False,
            log_config=None,
            server_header=False,
            date_header=False,
            timeout_graceful_shutdown=max(1, round(settings.shutdown_s)),
            ssl_certfile=settings.ssl_certfile,
            ssl_keyfile=settings.ssl_keyfile,
            ssl_keyfile_password=settings.ssl_keyfile_password,
            ssl_ca_certs=str(settings.ssl_ca_certs) if settings.ssl_ca_certs else None,
            ssl_cert_reqs=ssl.VerifyMode[f"CERT_{settings.ssl_cert_reqs.upper()}"],
        )
        # uvicorn would read the certificate only when it serves, where its error would be a traceback.
        config.load()
    except OSError as error:
        raise ConfigurationError(f"the TLS certificate or key cannot be used: {error}") from None
    return config


def _url(settings: Settings, listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    if host in ("0.0.0.0", "::"):
        host = "127.0.0.1" if host == "0.0.0.0" else "::1"
    scheme = "https" if settings.ssl_certfile else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
