"""A relay between clients and a server that fails as networks do: it cuts connections and loses replies."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self


class FaultyRelay:
    """Forwards bytes both ways. Set ``port`` to another server; set ``drops_replies`` to lose the server's bytes."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.drops_replies = False
        self.lost = asyncio.Event()
        self.connections = 0
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._relay, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._server.close()
        self.cut()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def cut(self) -> None:
        """Abort every connection."""
        for writer in self._writers:
            writer.transport.abort()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._tasks.add(asyncio.current_task())
        try:
            there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self.port)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, there_writer}
        await asyncio.gather(
            self._pass_on(reader, there_writer),
            self._pass_on(there_reader, writer, answers=True),
            return_exceptions=True,
        )
        self._writers -= {writer, there_writer}

    async def _pass_on(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, answers: bool = False
    ) -> None:
        try:
            while data := await reader.read(1 << 16):
                if answers and self.drops_replies:
                    self.lost.set()
                    continue
                writer.write(data)
                await writer.drain()
        finally:
            writer.transport.abort()
