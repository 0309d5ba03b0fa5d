"""Reading tables for a server: few queries at a time, each bounded and in a process of its own."""

from __future__ import annotations

import asyncio
from pathlib import Path

from himalia.errors import HimaliaError, QueryTooLarge, ShuttingDown, WarehouseNotFound
from himalia.tables.process import QueryProcess
from himalia.tables.warehouse import Tables
from himalia.tables.worker import Question

QUERIES_MAX = 2
TIME_S = 10.0
BYTES_MAX = 16 << 20
LIMIT_MAX = 10_000
IDLE_S = 60.0
"""How long a process waits for the next query: starting one takes as long as many queries do."""


class Querying:
    """Lives on the event loop. Nothing runs before something is asked, and nothing of the engine is imported here."""

    def __init__(self, warehouse: Path) -> None:
        self._warehouse = warehouse.expanduser()
        self._slots = asyncio.Semaphore(QUERIES_MAX)
        self._idle: list[QueryProcess] = []
        self._asking: dict[asyncio.Task[bytes], QueryProcess] = {}
        self._resting: asyncio.TimerHandle | None = None
        self._is_closing = False

    async def describe(self) -> bytes:
        """What tables there are, as JSON; none if the pipeline has not run yet."""
        try:
            return await self._ask(Question(str(self._warehouse), time_s=TIME_S))
        except WarehouseNotFound:
            return b'{"tables":[]}'

    async def read(
        self, name: str, *, where: str | None, order: str | None, columns: list[str] | None, limit: int
    ) -> bytes:
        """Rows of a table, as JSON. Raises what ``Tables`` raises, and ``QueryTooLarge`` when it takes too long."""
        return await self._ask(
            Question(str(self._warehouse), name, where, order, columns, limit, BYTES_MAX, TIME_S)
        )

    async def close(self) -> None:
        """End the queries that run, whose callers are told, and the processes that wait for some. Twice is fine."""
        self._is_closing = True
        for process in self._asking.values():
            process.kill()
        await asyncio.gather(*self._asking, return_exceptions=True)
        if self._resting is not None:
            self._resting.cancel()
        self._rest()

    async def _ask(self, question: Question) -> bytes:
        try:
            async with asyncio.timeout(TIME_S):
                await self._slots.acquire()
        except TimeoutError:
            raise QueryTooLarge("the server is busy with other queries; ask again in a moment") from None
        try:
            return await self._answer(question)
        except HimaliaError:
            if self._is_closing:
                raise ShuttingDown("the server is shutting down; ask again in a moment") from None
            raise

    async def _answer(self, question: Question) -> bytes:
        process = self._idle.pop() if self._idle else QueryProcess()
        # A task of its own: whoever asks may go away, but until the process has answered nobody else can ask it.
        asking = asyncio.create_task(asyncio.to_thread(_ask_process, process, question))
        self._asking[asking] = process
        asking.add_done_callback(self._done)
        return await asyncio.shield(asking)

    def _done(self, asking: asyncio.Task[bytes]) -> None:
        self._idle.append(self._asking.pop(asking))
        self._slots.release()
        if not asking.cancelled():
            asking.exception()  # whoever asked is told; if they have gone, it is not an accident to warn of
        if self._resting is not None:
            self._resting.cancel()
        self._resting = asyncio.get_running_loop().call_later(IDLE_S, self._rest)

    def _rest(self) -> None:
        """Nothing was asked for a while: let the processes go."""
        while self._idle:
            self._idle.pop().close()


def _ask_process(process: QueryProcess, question: Question) -> bytes:
    # Looked for here first: no process is started to say that there is nothing.
    if not Tables(question.path).names():
        raise WarehouseNotFound(question.path)
    return process.ask(question)
