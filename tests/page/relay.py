"""A network that can be cut, between the browser and a server."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self

from tests.client.faulty_relay import FaultyRelay
from tests.servers import DEADLINE_S, RunningServer


class CuttableNetwork:
    """A relay on the server's own loop. ``url`` leads to the server; ``cut`` breaks every connection."""

    def __init__(self, server: RunningServer) -> None:
        self._server = server

    def __enter__(self) -> Self:
        self._relay = FaultyRelay(self._server.port)
        self._on_loop(self._relay.__aenter__())
        self.url = self._relay.url
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._on_loop(self._relay.__aexit__(None, None, None))

    def _on_loop(self, work: Coroutine[Any, Any, Any]) -> None:
        assert self._server.loop is not None
        asyncio.run_coroutine_threadsafe(work, self._server.loop).result(DEADLINE_S)

    def cut(self) -> None:
        """Every connection breaks, and new ones are refused until ``mend``."""
        self._relay.port = 1
        self._server.on_loop(self._relay.cut)

    def mend(self) -> None:
        self._relay.port = self._server.port
