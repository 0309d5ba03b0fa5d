"""Queries of tables: bounded in number and per caller, each in a separate process with bounded memory and time."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from himalia.errors import HimaliaError, QueryTooLarge, RateLimited, ShuttingDown, WarehouseNotFound
from himalia.protocol import encode
from himalia.protocol.models import TableList
from himalia.server.identity import Principal
from himalia.tables.delta_tables import Tables
from himalia.tables.worker import QueryRequest
from himalia.tables.worker_client import QueryProcess

TIME_S = 10.0
BYTES_MAX = 16 << 20
LIMIT_MAX = 10_000
IDLE_S = 60.0
"""Worker processes that get no query for this long are stopped. Starting one takes as long as many queries."""
WAITING_MAX = 16
"""Most queries of one caller that may wait for a slot."""


class QuerySlots:
    """Assigns a free slot to the caller that holds the fewest; among several, to the query that has waited longest.

    ``per_caller`` is less than ``total``, so one caller cannot hold all slots.
    """

    def __init__(self, total: int, per_caller: int) -> None:
        self._total = total
        self._per_caller = per_caller
        self._held: Counter[str] = Counter()
        # In order of arrival; with the caller and the most slots that it may hold.
        self._waiting: dict[asyncio.Future[None], tuple[str, int]] = {}

    async def acquire(self, caller: str, wait_s: float, own_limit: int | None = None) -> None:
        """Wait for a slot. Raises ``QueryTooLarge`` if none is free in time. ``own_limit`` replaces ``per_caller``."""
        if own_limit == 0:
            raise RateLimited(f"{caller!r} may not query tables: its limit 'queries' is 0", limit=0)
        most = self._per_caller if own_limit is None else own_limit
        if sum(1 for name, _ in self._waiting.values() if name == caller) >= WAITING_MAX:
            raise QueryTooLarge(f"{WAITING_MAX} queries of {caller!r} are waiting already; retry in a moment")
        turn = asyncio.get_running_loop().create_future()
        self._waiting[turn] = caller, most
        self._grant()
        try:
            done, _ = await asyncio.wait([turn], timeout=wait_s)
        except asyncio.CancelledError:
            self._withdraw(turn, caller)
            raise
        if not done:
            self._withdraw(turn, caller)
            if own_limit is not None and self._held[caller] >= own_limit:
                raise RateLimited(
                    f"{own_limit} queries of {caller!r} are running, which is its limit 'queries'; retry after one",
                    limit=own_limit,
                )
            raise QueryTooLarge("the server is busy with other queries; retry in a moment")

    def _withdraw(self, turn: asyncio.Future[None], caller: str) -> None:
        if self._waiting.pop(turn, None) is None:  # granted meanwhile
            self.release(caller)

    def release(self, caller: str) -> None:
        self._held[caller] -= 1
        if not self._held[caller]:
            del self._held[caller]
        self._grant()

    def _grant(self) -> None:
        while self._held.total() < self._total:
            ready = [turn for turn, (caller, most) in self._waiting.items() if self._held[caller] < most]
            if not ready:
                return
            turn = min(ready, key=lambda turn: self._held[self._waiting[turn][0]])
            caller, _ = self._waiting.pop(turn)
            self._held[caller] += 1
            turn.set_result(None)


class QueryPool:
    """The worker processes for queries. Used on the event loop only; starts none before the first query."""

    def __init__(self, warehouse: Path, queries_max: int, queries_per_caller: int) -> None:
        self._warehouse = warehouse.expanduser()
        self._slots = QuerySlots(queries_max, queries_per_caller)
        # Not the loop's default executor, which slow queries would exhaust; one more thread is for the listing.
        self._threads = ThreadPoolExecutor(queries_max + 1, "himalia-tables")
        self._idle: list[QueryProcess] = []
        self._running: dict[asyncio.Future[bytes], QueryProcess] = {}
        # The listing in progress, which concurrent requests share; it needs no slot.
        self._listing: asyncio.Future[bytes] | None = None
        self._idle_timer: asyncio.TimerHandle | None = None
        self._is_closing = False

    async def describe(self) -> bytes:
        """Return the tables as JSON (``TableList``); none if the pipeline has not run yet."""
        if self._is_closing:
            raise _make_shutdown_error()
        if self._listing is None or self._listing.done():
            self._listing = self._start(QueryRequest(str(self._warehouse), time_s=TIME_S))
        try:
            return await self._wait(self._listing)
        except WarehouseNotFound:
            return encode(TableList([]))

    async def read(
        self,
        name: str,
        *,
        caller: Principal,
        where: str | None,
        order: str | None,
        columns: list[str] | None,
        limit: int,
        on_begin: Callable[[], None],
    ) -> bytes:
        """Return rows of a table as JSON (``TableRows``). Raises what ``Tables`` does; a timeout is ``QueryTooLarge``.

        ``on_begin`` is called when the query has a slot, just before it runs.
        """
        await self._slots.acquire(caller.name, TIME_S, caller.limits.queries)
        if self._is_closing:
            self._slots.release(caller.name)
            raise _make_shutdown_error()
        on_begin()
        query = self._start(
            QueryRequest(str(self._warehouse), name, where, order, columns, limit, BYTES_MAX, TIME_S)
        )
        # When the query ends, not its caller, who may disconnect before.
        query.add_done_callback(lambda _: self._slots.release(caller.name))
        return await self._wait(query)

    async def close(self) -> None:
        """Abort running queries, whose callers get an error, and stop the worker processes. Idempotent."""
        self._is_closing = True
        for process in self._running.values():
            process.kill()
        await asyncio.gather(*self._running, return_exceptions=True)
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        self._stop_idle()
        self._threads.shutdown(wait=False)

    def _start(self, request: QueryRequest) -> asyncio.Future[bytes]:
        process = self._idle.pop() if self._idle else QueryProcess()
        # A future of the pool, not of the caller, who may disconnect: the process stays busy until it has answered.
        query = asyncio.get_running_loop().run_in_executor(self._threads, _run_query, process, request)
        self._running[query] = process
        query.add_done_callback(self._on_done)
        return query

    async def _wait(self, query: asyncio.Future[bytes]) -> bytes:
        try:
            return await asyncio.shield(query)
        except HimaliaError:
            if self._is_closing:
                raise _make_shutdown_error() from None
            raise

    def _on_done(self, query: asyncio.Future[bytes]) -> None:
        self._idle.append(self._running.pop(query))
        if not query.cancelled():
            query.exception()  # retrieved: asyncio would log it if the caller has disconnected
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        self._idle_timer = asyncio.get_running_loop().call_later(IDLE_S, self._stop_idle)

    def _stop_idle(self) -> None:
        while self._idle:
            self._idle.pop().close()


def _make_shutdown_error() -> ShuttingDown:
    return ShuttingDown("the server is shutting down; retry when it has restarted")


def _run_query(process: QueryProcess, request: QueryRequest) -> bytes:
    # Checked here first, so that no process is started if there are no tables.
    if not Tables(request.path).names():
        raise WarehouseNotFound(request.path)
    return process.run(request)
