"""What the parts of one running server share: settings, log, manager, kernels, keys, connections."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from himalia.errors import ShuttingDown, TooManyConnections
from himalia.log import open_log
from himalia.log.contract import Log
from himalia.pubsub import Outlet, PubSubManager
from himalia.pubsub.manager import Limits
from himalia.record import Retention
from himalia.server.connection import Connection
from himalia.server.hosting import Hosting
from himalia.server.metrics import Metrics
from himalia.server.pipeline_reading import PipelineReading
from himalia.server.querying import Querying
from himalia.server.tracing import make_tracing
from himalia.server.trust import Frontier, Keyring, make_keyring
from himalia.settings import Settings

logger = logging.getLogger("himalia.server")

ENVELOPE_BYTES = 16 * 1024
"""What a message may need beside its payload and headers: type, topic, ids, a filter."""


class Broker:
    """One server's state, made before the event loop runs and opened on it."""

    def __init__(self, settings: Settings, log: Log | None = None) -> None:
        self.settings = settings
        self.keyring: Keyring
        self.keyring, self.token = make_keyring(settings)
        self.frontier = Frontier(settings.host, settings.allowed_hosts, settings.allowed_origins)
        self.metrics = Metrics(self)
        self.log: Log = log or self._make_log()
        tracing = make_tracing() if settings.tracing else None
        self.manager = PubSubManager(self.log, _limits(settings), tracing)
        self.kernels = Hosting(self.manager, settings, tracing)
        self.tables = Querying(settings.warehouse)
        self._reading = PipelineReading(self.log)
        self.manager.on_published = self.let_go
        self.connections: dict[Connection, None] = {}
        self.streams: dict[Outlet, None] = {}
        self.draining = False
        self._hurried = False
        self.is_open = False
        self._held: dict[Callable[[], None], None] = {}
        self._heartbeats: asyncio.Task[None] | None = None

    def _make_log(self) -> Log:
        settings = self.settings
        return open_log(
            settings.log,
            retention=Retention(settings.retention_age_s, settings.retention_bytes, settings.retention_count),
            dedup_window_s=settings.dedup_window_s,
            retention_wait=settings.retention_wait,
            retention_paused=True,
            dedup_ids_max=settings.dedup_ids_max,
            topics_max=settings.topics_max,
        )

    async def open(self) -> None:
        """Open the log and begin to follow it. Raises what the log raises, in words for people."""
        await self.log.open()
        self.is_open = True
        await self._reading.open()
        await self.manager.start()
        try:
            await self.kernels.open()
        except BaseException:
            await self.close()
            raise
        self._heartbeats = asyncio.create_task(self._beat())

    async def close(self) -> None:
        self.is_open = False
        if self._heartbeats is not None:
            self._heartbeats.cancel()
        await asyncio.wait({self.kernels.close()}, timeout=self.settings.shutdown_s)
        await self.kernels.cancel_close()
        await self._reading.close()
        await self.tables.close()
        await self.manager.stop()
        await self.log.close()

    @property
    def frame_bytes_max(self) -> int:
        """The largest frame, line or body in which a single message can come."""
        return self.settings.message_bytes_max + self.settings.headers_bytes_max + ENVELOPE_BYTES

    # Connections

    @property
    def connection_count(self) -> int:
        return len(self.connections) + len(self.streams)

    def admit(self) -> None:
        """Refuse a new WebSocket or stream beyond the limit, or during shutdown."""
        if self.draining:
            raise ShuttingDown("the server is shutting down; connect again in a moment")
        if self.connection_count >= self.settings.connections_max:
            raise TooManyConnections(
                f"{self.settings.connections_max} connections are open; try again later or raise connections_max"
            )

    async def _beat(self) -> None:
        """Ping every connection in its own rhythm and end those that are dead."""
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
        while True:
            await asyncio.sleep(pause)
            now = loop.time()
            for connection in list(self.connections):
                connection.beat(now)

    # Admission of publishes

    @property
    def is_full(self) -> bool:
        """Whether so much waits for its commit that nobody should read more publishes."""
        return self.manager.in_flight_bytes >= self.settings.in_flight_bytes_max

    def hold(self, resume: Callable[[], None]) -> None:
        """Call ``resume`` when there is room again."""
        self._held[resume] = None

    def let_go(self) -> None:
        """Something was committed: resume those on hold if half of the room is free again."""
        if self._held and self.manager.in_flight_bytes <= self.settings.in_flight_bytes_max // 2:
            held, self._held = self._held, {}
            for resume in held:
                resume()

    async def until_admitted(self) -> None:
        """For callers that can wait: come back when there is room."""
        while self.is_full:
            room = asyncio.get_running_loop().create_future()
            self.hold(lambda room=room: room.done() or room.set_result(None))  # type: ignore[misc]
            await room

    # Shutdown

    async def drain(self, close_code: int) -> None:
        """Say goodbye: commit and acknowledge what came in, deliver what is pending, close. Bounded in time."""
        self.draining = True
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.settings.shutdown_s
        for connection in list(self.connections):
            connection.announce_shutdown()
        for stream in list(self.streams):
            stream.close(ShuttingDown("the server is shutting down; connect again in a moment"))
        # Those who watch see the end of their kernels too.
        ending = self.kernels.close()
        await self.tables.close()
        calm = 0
        # Twice in a row, because a commit is followed by its delivery only in the next turn of the loop.
        while calm < 2 and not self._hurried and loop.time() < deadline:
            await asyncio.sleep(0.01)
            calm = calm + 1 if ending.done() and self._is_drained() else 0
        await self.kernels.cancel_close()
        for connection in list(self.connections):
            connection.shut(close_code, "server shutdown")
        while self.connections and not self._hurried and loop.time() < deadline + 1:
            await asyncio.sleep(0.01)
        for connection in list(self.connections):
            connection.abort()

    def hurry(self) -> None:
        """Wait for no peer any longer; what was accepted is stored all the same."""
        self._hurried = True

    def _is_drained(self) -> bool:
        return self.manager.is_idle and all(connection.is_drained for connection in self.connections)


def _limits(settings: Settings) -> Limits:
    return Limits(
        cursors_max=settings.cursors_max,
        filters_max=settings.filters_max,
        chunk_bytes=settings.chunk_bytes,
        tail_records=settings.tail_records,
        tail_bytes=settings.tail_bytes,
    )
