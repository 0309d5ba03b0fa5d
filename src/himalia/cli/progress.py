"""How far a notebook has come: a bar below its output."""

from __future__ import annotations

import asyncio
import time
from types import TracebackType
from typing import Self

from himalia.cli.quantities import show_duration
from himalia.cli.screen import Screen, Stream

WIDTH = 24
REFRESH_S = 1.0


class CellProgress:
    """A bar on the line of the screen that stays below, while it is entered; nothing where there is no terminal."""

    def __init__(self, screen: Screen, total: int, *, is_shown: bool) -> None:
        self._screen = screen
        self._total = total
        self._done = 0
        self._started_s = time.monotonic()
        self._is_shown = is_shown and screen.is_terminal(Stream.ERR)
        self._refreshing: asyncio.Task[None] | None = None

    def __enter__(self) -> Self:
        if self._is_shown:
            self._refreshing = asyncio.create_task(self._refresh())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._refreshing is not None:
            self._refreshing.cancel()
            self._screen.show_status("")

    def advance(self) -> None:
        self._done += 1
        self._show()

    async def _refresh(self) -> None:
        while True:
            self._show()
            await asyncio.sleep(REFRESH_S)

    def _show(self) -> None:
        if self._is_shown:
            filled = WIDTH * self._done // max(self._total, 1)
            bar = self._screen.styled("━" * filled, "32", Stream.ERR) + "━" * (WIDTH - filled)
            elapsed = show_duration(time.monotonic() - self._started_s)
            self._screen.show_status(f"{bar} {self._done}/{self._total} cells, {elapsed}")
