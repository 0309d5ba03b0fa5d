"""Queries of tables: few at a time, fewer per caller, each in a process of its own with bounded memory and time."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from himalia.errors import HimaliaError, QueryTooLarge, RateLimited, ShuttingDown, WarehouseNotFound
from himalia.server.identity import Principal
from himalia.tables.tables import Tables
from himalia.tables.worker import Question
from himalia.tables.worker_client import QueryProcess

WAITING_MAX = 16
"""Queries of one caller that may wait for a slot."""


class QuerySlots:
    """A free slot goes to the caller that has the fewest, and among those to the query that has waited longest.

    ``per_caller`` is less than ``total``, so one caller never has all slots, whatever it asks for.
    """

    def __init__(self, total: int, per_caller: int) -> None:
        self._total = total
        self._per_caller = per_caller
        self._held: Counter[str] = Counter()
        # In the order in which they came; with how many slots their caller may have.
        self._waiting: dict[asyncio.Future[None], tuple[str, int]] = {}

    async def acquire(self, caller: str, wait_s: float, own_limit: int | None = None) -> None:
        """Wait for a slot; ``QueryTooLarge`` if none comes in time. ``own_limit`` replaces ``per_caller``."""
        if own_limit == 0:
            raise RateLimited(f"{caller!r} may not query tables: its limit 'queries' is 0", limit=0)
        most = self._per_caller if own_limit is None else own_limit
        if sum(1 for name, _ in self._waiting.values() if name == caller) >= WAITING_MAX:
            raise QueryTooLarge(f"{WAITING_MAX} queries of {caller!r} wait already; ask again in a moment")
        turn = asyncio.get_running_loop().create_future()
        self._waiting[turn] = caller, most
        self._grant()
        try:
            done, _ = await asyncio.wait([turn], timeout=wait_s)
        except asyncio.CancelledError:
            self._give_up(turn, caller)
            raise
        if not done:
            self._give_up(turn, caller)
            if own_limit is not None and self._held[caller] >= own_limit:
                raise RateLimited(
                    f"{own_limit} queries of {caller!r} run, its limit 'queries'; ask again when one has ended",
                    limit=own_limit,
                )
            raise QueryTooLarge("the server is busy with other queries; ask again in a moment")

    def _give_up(self, turn: asyncio.Future[None], caller: str) -> None:
        if self._waiting.pop(turn, None) is None:  # granted in the same moment
            self.release(caller)

    def release(self, caller: str) -> None:
        self._held[caller] -= 1
        self._held += Counter()  # without those that hold none
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


TIME_S = 10.0
BYTES_MAX = 16 << 20
LIMIT_MAX = 10_000
IDLE_S = 60.0
"""How long a process waits for the next query: starting one takes as long as many queries do."""


class Querying:
    """Lives on the event loop. Nothing runs before something is asked, and nothing of the engine is imported here."""

    def __init__(self, warehouse: Path, queries_max: int, queries_per_caller: int) -> None:
        self._warehouse = warehouse.expanduser()
        self._slots = QuerySlots(queries_max, queries_per_caller)
        # Of its own, so that slow queries leave the threads that everything else shares; one more is for the listing.
        self._threads = ThreadPoolExecutor(queries_max + 1, "himalia-tables")
        self._idle: list[QueryProcess] = []
        self._asking: dict[asyncio.Future[bytes], QueryProcess] = {}
        # The one listing under way, which all who ask for it share; it needs no slot.
        self._listing: asyncio.Future[bytes] | None = None
        self._resting: asyncio.TimerHandle | None = None
        self._is_closing = False

    async def describe(self) -> bytes:
        """What tables there are, as JSON; none if the pipeline has not run yet."""
        if self._is_closing:
            raise _shutting_down()
        if self._listing is None or self._listing.done():
            self._listing = self._start(Question(str(self._warehouse), time_s=TIME_S))
        try:
            return await self._answer(self._listing)
        except WarehouseNotFound:
            return b'{"tables":[]}'

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
        """Rows of a table, as JSON. Raises what ``Tables`` raises, and ``QueryTooLarge`` when it takes too long.

        ``on_begin`` is called when it has a slot, just before it runs.
        """
        await self._slots.acquire(caller.name, TIME_S, caller.limits.queries)
        if self._is_closing:
            self._slots.release(caller.name)
            raise _shutting_down()
        on_begin()
        asking = self._start(
            Question(str(self._warehouse), name, where, order, columns, limit, BYTES_MAX, TIME_S)
        )
        # With the query and not with its caller, who may go away before.
        asking.add_done_callback(lambda _: self._slots.release(caller.name))
        return await self._answer(asking)

    async def close(self) -> None:
        """End the queries that run, whose callers are told, and the processes that wait for some. Twice is fine."""
        self._is_closing = True
        for process in self._asking.values():
            process.kill()
        await asyncio.gather(*self._asking, return_exceptions=True)
        if self._resting is not None:
            self._resting.cancel()
        self._rest()
        self._threads.shutdown(wait=False)

    def _start(self, question: Question) -> asyncio.Future[bytes]:
        process = self._idle.pop() if self._idle else QueryProcess()
        # Not awaited by its caller alone, who may go away: until the process has answered no other can ask it.
        asking = asyncio.get_running_loop().run_in_executor(self._threads, _ask_process, process, question)
        self._asking[asking] = process
        asking.add_done_callback(self._done)
        return asking

    async def _answer(self, asking: asyncio.Future[bytes]) -> bytes:
        try:
            return await asyncio.shield(asking)
        except HimaliaError:
            if self._is_closing:
                raise _shutting_down() from None
            raise

    def _done(self, asking: asyncio.Future[bytes]) -> None:
        self._idle.append(self._asking.pop(asking))
        if not asking.cancelled():
            asking.exception()  # its caller gets it; if that has gone, it is not an accident to warn of
        if self._resting is not None:
            self._resting.cancel()
        self._resting = asyncio.get_running_loop().call_later(IDLE_S, self._rest)

    def _rest(self) -> None:
        """Nothing was asked for a while: let the processes go."""
        while self._idle:
            self._idle.pop().close()


def _shutting_down() -> ShuttingDown:
    return ShuttingDown("the server is shutting down; ask again in a moment")


def _ask_process(process: QueryProcess, question: Question) -> bytes:
    # Looked for here first: no process is started to say that there is nothing.
    if not Tables(question.path).names():
        raise WarehouseNotFound(question.path)
    return process.ask(question)
