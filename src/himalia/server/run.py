"""Runs the server: one process, one event loop, until SIGTERM or SIGINT."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import ssl
from collections.abc import Callable
from types import FrameType

import anyio
import msgspec
import uvicorn

from himalia.errors import ConfigurationError
from himalia.local_server import RunningServer, write_runtime_file
from himalia.record import now_us
from himalia.server import performance
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


class Server(uvicorn.Server):
    """uvicorn's server. Drains connections before it closes them, and exits with 0 after SIGTERM or SIGINT."""

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
        # SIGTERM comes from a supervisor, which mostly starts the server again; Ctrl-C from a person.
        self._close_code = CLOSE_SERVICE_RESTART

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen with ``Listener``: uvicorn's server counts no connections and has no timeout for TLS handshakes."""
        settings = self._context.settings
        await self.lifespan.startup()
        # The first use imports many modules, and would delay the first streaming response.
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
        # uvicorn's method would raise the signal again at the end; here the exit code is 0.
        if self.should_exit and sig == signal.SIGINT:
            self.force_exit = True
            self._context.stop_draining()
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
    """Run until SIGTERM or SIGINT. Raises a ``HimaliaError`` if the server cannot start.

    ``on_started`` is called with the URL and the token as soon as connections are accepted.
    """
    if settings.workers != 1:
        raise ConfigurationError(
            "one process owns an embedded log, so --workers is 1; for several servers a distributed log "
            "(nats://) is planned"
        )
    log_config.configure(settings.log_level, settings.log_format)
    performance.tune_process(settings)
    context = ServerContext(settings, kernel_descriptors=raise_descriptor_limit())
    listener = listen(settings.host, settings.port)
    if not is_loopback(settings.host) and settings.ssl_certfile is None:
        logger.warning("listening on %s without TLS: keys and messages are sent unencrypted", settings.host)

    def on_listening(server: Server) -> None:
        performance.freeze_imports(settings)
        if on_started is not None:
            on_started(server.url, context.token)

    try:
        with asyncio.Runner(loop_factory=lambda: performance.make_event_loop(settings)) as runner:
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
    """Serve on a listening socket until a signal; meanwhile the runtime file shows the server to other programs."""
    await context.open()
    try:
        server = Server(_config(context), context, _url(context.settings, listener), on_listening)
        running = RunningServer(server.url, context.token, os.getpid(), context.log.url, now_us())
        announced = write_runtime_file(running)
        context.identity.watch_token(
            lambda token: _update_runtime_file(msgspec.structs.replace(running, token=token))
        )
        try:
            await server.serve(sockets=[listener])
        finally:
            announced.unlink(missing_ok=True)
    finally:
        await context.close()


def _update_runtime_file(running: RunningServer) -> None:
    """Publish a new token to other programs of this user."""
    try:
        write_runtime_file(running)
    except ConfigurationError as error:
        logger.warning("%s", error.message)


def _check_tls(settings: Settings) -> None:
    """Raise ``ConfigurationError`` for TLS settings that have no effect without others."""
    verifies = settings.ssl_cert_reqs != "none"
    if settings.ssl_certfile is None and (verifies or settings.ssl_keyfile or settings.ssl_ca_certs):
        raise ConfigurationError(
            "ssl_keyfile, ssl_ca_certs and ssl_cert_reqs need ssl_certfile: without it the server does not speak TLS"
        )
    if verifies and settings.ssl_ca_certs is None:
        raise ConfigurationError(
            f"ssl_cert_reqs is {settings.ssl_cert_reqs}, but ssl_ca_certs names no authority to verify certificates"
        )
    if settings.ssl_ca_certs is not None and not verifies:
        raise ConfigurationError(
            "ssl_ca_certs names authorities of client certificates, but ssl_cert_reqs is none, so none is requested"
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
        # Read the certificate now: uvicorn would do so when it serves, and an error would be a traceback.
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
