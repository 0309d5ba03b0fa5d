"""The state that the parts of one server share: settings, log, manager, kernels, callers, connections."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from starlette.types import Scope

from himalia.errors import Forbidden, ShuttingDown, TooManyConnections, TooManyReaders
from himalia.log import LogOptions, open_log
from himalia.log.api import Log
from himalia.pubsub import Outlet, PubSubManager
from himalia.record import Retention
from himalia.server.caller_usage import CallerUsages, ConnectionSlot
from himalia.server.http.admission import Admission, connections_within_descriptors
from himalia.server.http.body_budget import BodyBudget
from himalia.server.identity import OriginCheck, Principal
from himalia.server.identity.authenticator import Authenticator
from himalia.server.identity.failed_attempts import FailedAttempts
from himalia.server.observe.audit import Audit, AuditEvent
from himalia.server.observe.kernel_observer import KernelObserver
from himalia.server.observe.metrics import Metrics
from himalia.server.observe.pipeline_positions import PositionsForwarder
from himalia.server.observe.tracing import OpenTelemetryTracing, make_tracing
from himalia.server.rest.table_queries import QueryPool
from himalia.server.websocket.session import WebSocketSession
from himalia.settings import Settings

if TYPE_CHECKING:
    from himalia.kernels.host import KernelHost

logger = logging.getLogger("himalia.server")

SWEEP_EVERY_S = 10.0
"""How often the usage of idle callers is dropped."""
READERS_SHARE = 8
"""One in so many readers is reserved for callers that have none."""
CONNECTIONS_SHARE = 8
"""One in so many of ``connections_max`` is reserved for other callers than the one that has most."""
ENVELOPE_BYTES = 16 * 1024
"""What a message may need in addition to its payload and headers: type, topic, ids, a filter."""
ENCODINGS_AT_ONCE = 2


class ServerContext:
    """One server's state, made before the event loop runs and opened on it. Belongs to the event loop."""

    def __init__(self, settings: Settings, log: Log | None = None, *, kernel_descriptors: int = 0) -> None:
        self.settings = settings
        self.origin_check = OriginCheck(settings.host, settings.allowed_hosts, settings.allowed_origins)
        self.admission = Admission(
            connections_within_descriptors(settings.connections_max), settings.anonymous_connections_max
        )
        self.bodies = BodyBudget(settings.bodies_bytes_max, settings.body_idle_timeout_s)
        self.metrics = Metrics(self)
        self.log: Log = log or self._make_log()
        self.audit = Audit(
            self.log, Retention(settings.audit_retention_age_s, settings.audit_retention_bytes, count=0)
        )
        self.failed_attempts = FailedAttempts(self.audit, settings.refused_key_delay_s)
        self.identity = Authenticator(settings, self.log.url, self)
        tracing = make_tracing() if settings.tracing else None
        self.manager = PubSubManager(self.log, settings, tracing, on_published=self.resume_held)
        self.kernel_observer = KernelObserver(self.audit)
        self.kernel_host = self._make_kernel_host(tracing, kernel_descriptors) if settings.kernels else None
        """None if this server runs no kernels; see ``kernels``."""
        self.tables = QueryPool(settings.warehouse, settings.queries_max, settings.queries_per_caller)
        self._pipeline_positions = PositionsForwarder(self.log)
        self.usages = CallerUsages()
        self.connections: dict[WebSocketSession, None] = {}
        self.streams: dict[Outlet, None] = {}
        self._readers_of: Counter[str] = Counter()
        # Whether pyarrow is imported, and not only being imported: an import meanwhile would wait.
        self.has_arrow = False
        # Batches of Arrow that are made at a time: each thread more makes the event loop wait for the interpreter.
        self.encodings = asyncio.Semaphore(ENCODINGS_AT_ONCE)
        self.formatting = asyncio.Lock()
        self.draining = False
        self._stops_draining = False
        self.is_open = False
        self._held: dict[Callable[[], None], None] = {}
        self._heartbeats: asyncio.Task[None] | None = None

    def _make_log(self) -> Log:
        # Paused until the pipeline's positions have been read.
        return open_log(self.settings.log, LogOptions(self.settings, retention_paused=True))

    def _make_kernel_host(self, tracing: OpenTelemetryTracing | None, descriptors: int) -> KernelHost:
        # Imported here: a server without kernels does not need jupyter_client.
        from himalia.kernels.host import HostOptions, KernelHost

        options = HostOptions(tracing=tracing, descriptors=descriptors)
        return KernelHost(self.manager, self.settings, self.kernel_observer, options)

    async def open(self) -> None:
        """Open the log and everything that reads it. Raises ``HimaliaError`` if the log cannot be opened."""
        await self.log.open()
        try:
            await self.audit.open()
            await self.identity.open()
        except BaseException:
            await self.audit.close()
            await self.log.close()
            raise
        self.is_open = True
        await self._pipeline_positions.open()
        await self.manager.start()
        try:
            if self.kernel_host is not None:
                await self.kernel_host.open()
        except BaseException:
            await self.close()
            raise
        self._heartbeats = asyncio.create_task(self._beat())

    async def close(self) -> None:
        self.is_open = False
        if self._heartbeats is not None:
            self._heartbeats.cancel()
        await self.identity.close()
        if self.kernel_host is not None:
            await asyncio.wait({self.kernel_host.begin_close()}, timeout=self.settings.shutdown_s)
            await self.kernel_host.cancel_close()
        await self._pipeline_positions.close()
        await self.tables.close()
        self.failed_attempts.close()
        await self.audit.close()
        await self.manager.stop()
        await self.log.close()

    @property
    def kernels(self) -> KernelHost:
        """The kernel host; ``Forbidden`` if this server runs no kernels."""
        if self.kernel_host is None:
            raise Forbidden("this server runs no kernels: it was started with --no-kernels")
        return self.kernel_host

    @property
    def kernel_count(self) -> int:
        return len(self.kernel_host.kernels) if self.kernel_host is not None else 0

    @property
    def frame_bytes_max(self) -> int:
        """The largest frame, line or body with a single message."""
        return self.settings.message_bytes_max + self.settings.headers_bytes_max + ENVELOPE_BYTES

    async def authenticate(self, scope: Scope) -> Principal:
        """Return the caller of a request or handshake, by its head alone; ``Unauthorized`` without a valid key.

        The one place where credentials are checked: the HTTP middleware and the WebSocket endpoint call it once each,
        before a body is read.
        """
        return await self.identity.authenticate(scope)

    def on_identity_event(self, event: str, caller: str, fields: Mapping[str, object]) -> None:
        self.audit.record(AuditEvent(event), caller, **fields)

    async def on_refusal(self, scope: Scope) -> None:
        await self.failed_attempts.count(scope)

    @property
    def token(self) -> str | None:
        """The token that permits everything, if there is one; a generated one is known after ``open``."""
        return self.identity.token

    # Connections

    @property
    def connection_count(self) -> int:
        return len(self.connections) + len(self.streams)

    def admit(self, principal: Principal) -> ConnectionSlot:
        """Count a new WebSocket or event stream; refuse it beyond the server's or the caller's limit, and in shutdown.

        The last ones are reserved for other callers than the one that has most.
        """
        if self.draining:
            raise ShuttingDown("the server is shutting down; connect again in a moment")
        if self.connection_count >= self.settings.connections_max:
            raise TooManyConnections(
                f"{self.settings.connections_max} connections are open; try again later or raise connections_max"
            )
        usage, limit = self.usages.of(principal), self.settings.connections_max
        if len(usage.slots) >= limit - limit // CONNECTIONS_SHARE:
            raise TooManyConnections(
                f"{principal.name!r} has {len(usage.slots)} connections open, and the last of {limit} are reserved "
                "for others; close one first or raise connections_max"
            )
        return usage.open_slot()

    @property
    def readers(self) -> int:
        """Responses that are reading a topic now."""
        return self._readers_of.total()

    def admit_reader(self, caller: Principal) -> None:
        """Count a response that reads a topic, until ``release_reader``; refuse it beyond the limit.

        The last ones are reserved for callers that have none, so that one with slow readers does not block others.
        """
        limit = self.settings.readers_max
        mine = self._readers_of[caller.name]
        if self.readers >= limit - (limit // READERS_SHARE if mine else 0):
            raise TooManyReaders(
                f"{self.readers} responses are reading a topic, {mine} of them of {caller.name!r}; try again later or "
                "raise readers_max"
            )
        self._readers_of[caller.name] += 1

    def release_reader(self, caller: Principal) -> None:
        self._readers_of[caller.name] -= 1
        if not self._readers_of[caller.name]:
            del self._readers_of[caller.name]

    async def _beat(self) -> None:
        """Let every connection check its liveness, several times within the shortest timeout."""
        loop = asyncio.get_running_loop()
        pause = (
            min(
                self.settings.heartbeat_s,
                self.settings.heartbeat_timeout_s,
                self.settings.stall_timeout_s,
                4.0,
            )
            / 4
        )
        next_sweep = loop.time() + SWEEP_EVERY_S
        while True:
            await asyncio.sleep(pause)
            now = loop.time()
            for connection in list(self.connections):
                connection.check_liveness(now)
            if now >= next_sweep:
                next_sweep = now + SWEEP_EVERY_S
                self.usages.sweep()

    # Admission of publishes

    @property
    def is_full(self) -> bool:
        """Whether so many bytes are uncommitted that no more publishes should be read."""
        return self.manager.in_flight_bytes >= self.settings.in_flight_bytes_max

    def hold(self, resume: Callable[[], None]) -> None:
        """Call ``resume`` once, when there is room again."""
        self._held[resume] = None

    def resume_held(self) -> None:
        """Called after commits: call the ``resume`` of all on hold if half of the room is free again."""
        if self._held and self.manager.in_flight_bytes <= self.settings.in_flight_bytes_max // 2:
            held, self._held = self._held, {}
            for resume in held:
                resume()

    async def wait_for_room(self) -> None:
        """Return when there is room for more publishes."""
        while self.is_full:
            room = asyncio.get_running_loop().create_future()
            self.hold(lambda room=room: room.done() or room.set_result(None))  # type: ignore[misc]
            await room

    # Shutdown

    async def drain(self, close_code: int) -> None:
        """Commit and acknowledge accepted publishes, deliver pending records, then close all connections."""
        self.draining = True
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.settings.shutdown_s
        for connection in list(self.connections):
            connection.announce_shutdown()
        for stream in list(self.streams):
            stream.close(ShuttingDown("the server is shutting down; connect again in a moment"))
        # Subscribers still get the end of their kernels.
        ending = self.kernel_host.begin_close() if self.kernel_host is not None else None
        await self.tables.close()
        calm = 0
        # Twice in succession, because a commit is delivered only in the next turn of the loop.
        while calm < 2 and not self._stops_draining and loop.time() < deadline:
            await asyncio.sleep(0.01)
            calm = calm + 1 if (ending is None or ending.done()) and self._is_drained() else 0
        if self.kernel_host is not None:
            await self.kernel_host.cancel_close()
        for connection in list(self.connections):
            connection.close(close_code, "server shutdown")
        while self.connections and not self._stops_draining and loop.time() < deadline + 1:
            await asyncio.sleep(0.01)
        for connection in list(self.connections):
            connection.abort()

    def stop_draining(self) -> None:
        """Wait for no client any longer; accepted publishes are stored nevertheless."""
        self._stops_draining = True

    def _is_drained(self) -> bool:
        return self.manager.is_idle and all(connection.is_drained for connection in self.connections)
