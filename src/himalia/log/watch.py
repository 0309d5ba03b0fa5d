"""Watches of a log that lives in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from himalia.log.api import Change, ChangeKind


class Watchers:
    """The open watches of one log. Used on the event loop only."""

    def __init__(self) -> None:
        self._open: set[LocalWatch] = set()
        self._ended = False

    def add(self) -> LocalWatch:
        watch = LocalWatch(self)
        if self._ended:
            watch.close()
        else:
            self._open.add(watch)
        return watch

    def notify(self, changes: Sequence[Change]) -> None:
        for watch in self._open:
            watch._add(changes)

    def end(self) -> None:
        """The log is closed: every watch, also a later one, ends after what it has not told yet."""
        self._ended = True
        for watch in list(self._open):
            watch.close()

    def _forget(self, watch: LocalWatch) -> None:
        self._open.discard(watch)


class LocalWatch:
    """See ``himalia.log.api.Watch``. Meant for one reader."""

    def __init__(self, watchers: Watchers) -> None:
        self._watchers = watchers
        self._pending: list[Change] = []
        # Epochs with an append among the pending changes. An epoch ends with its deletion, so an append can
        # be folded into an earlier one of its epoch without passing a creation or a deletion.
        self._appended: set[str] = set()
        self._stirred = asyncio.Event()
        self._closed = False

    def __aiter__(self) -> LocalWatch:
        return self

    async def __anext__(self) -> Sequence[Change]:
        while not self._pending:
            if self._closed:
                raise StopAsyncIteration
            self._stirred.clear()
            await self._stirred.wait()
        changes, self._pending = self._pending, []
        self._appended.clear()
        return changes

    def close(self) -> None:
        self._closed = True
        self._watchers._forget(self)
        self._stirred.set()

    def _add(self, changes: Iterable[Change]) -> None:
        for change in changes:
            if change.kind is ChangeKind.APPENDED:
                if change.epoch in self._appended:
                    continue
                self._appended.add(change.epoch)
            self._pending.append(change)
        self._stirred.set()
