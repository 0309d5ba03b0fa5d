"""Publishing many messages: as fast as the server acknowledges, with a bound on what is under way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable
from typing import Any

from himalia.client.events import Outgoing, Published
from himalia.client.publisher import Publisher, Unacknowledged
from himalia.errors import HimaliaError

IN_FLIGHT_MAX = 1024
IN_FLIGHT_BYTES_MAX = 16 * 1024 * 1024

Window = asyncio.Queue[Unacknowledged | None]


class Bulk:
    """One call of ``publish_many``: a feeder hands over what the source gives, a settler takes the answers in order."""

    def __init__(
        self,
        publisher: Publisher,
        topic: str,
        timeout_s: float,
        on_published: Callable[[Published], None] | None,
    ) -> None:
        self._publisher = publisher
        self._topic = topic
        self._timeout_s = timeout_s
        self._on_published = on_published
        self._window: Window = asyncio.Queue(IN_FLIGHT_MAX)
        self._in_flight_bytes = 0

    async def publish(self, source: Iterable[Any] | AsyncIterable[Any]) -> int:
        """Publish all; returns how many. If the source fails, what it gave before is stored, then its error raised."""
        feeding = asyncio.create_task(self._feed(source))
        settling = asyncio.create_task(self._settle())
        try:
            await asyncio.wait({feeding, settling}, return_when=asyncio.FIRST_COMPLETED)
            if not settling.done():
                await self._window.put(None)
            # Comes first: a message that was refused came before whatever the source failed on.
            count = await settling
            await feeding
            return count
        finally:
            await self._stop(feeding, settling)

    async def _feed(self, source: Iterable[Any] | AsyncIterable[Any]) -> None:
        async for item in _each(source):
            outgoing = item if isinstance(item, Outgoing) else Outgoing(item)
            waiting = self._publisher.submit(self._topic, outgoing, self._timeout_s)
            self._in_flight_bytes += len(waiting.frame)
            await self._window.put(waiting)
            if self._in_flight_bytes > IN_FLIGHT_BYTES_MAX:
                # When the newest is answered, next to nothing is under way any more.
                await asyncio.wait([waiting.answer])

    async def _settle(self) -> int:
        count = 0
        while (waiting := await self._window.get()) is not None:
            try:
                published = await self._publisher.settle(waiting)
            except HimaliaError as error:
                error.data["index"] = count
                raise
            count += 1
            self._in_flight_bytes -= len(waiting.frame)
            if self._on_published is not None:
                self._on_published(published)
        return count

    async def _stop(self, *tasks: asyncio.Task[Any]) -> None:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        while not self._window.empty():
            waiting = self._window.get_nowait()
            if waiting is not None:
                waiting.answer.cancel()


async def _each(source: Iterable[Any] | AsyncIterable[Any]) -> AsyncIterator[Any]:
    if isinstance(source, AsyncIterable):
        async for item in source:
            yield item
    else:
        for item in source:
            yield item
