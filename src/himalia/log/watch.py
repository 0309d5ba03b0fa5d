"""Watches of a log that lives in this process. Used on the event loop only."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from himalia.log.api import Change, ChangeKind


class WatchSet:
    """The open watches of one log."""

    def __init__(self) -> None:
        self._open: set[LocalWatch] = set()
        self._ended = False

    def add(self) -> LocalWatch:
        """Return a new watch; closed already if the log is."""
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
        """Close all watches; the log is closing."""
        self._ended = True
        for watch in list(self._open):
            watch.close()

    def _remove(self, watch: LocalWatch) -> None:
        self._open.discard(watch)


class LocalWatch:
    """See ``himalia.log.api.Watch``. For one reader."""

    def __init__(self, watches: WatchSet) -> None:
        self._watches = watches
        self._pending: list[Change] = []
        # Epochs with an append among the pending changes. An epoch ends with its deletion, so merging an append into
        # an earlier one of its epoch never moves it past a creation or a deletion.
        self._appended: set[str] = set()
        self._wakeup = asyncio.Event()
        self._closed = False

    def __aiter__(self) -> LocalWatch:
        return self

    async def __anext__(self) -> Sequence[Change]:
        while not self._pending:
            if self._closed:
                raise StopAsyncIteration
            self._wakeup.clear()
            await self._wakeup.wait()
        changes, self._pending = self._pending, []
        self._appended.clear()
        return changes

    def close(self) -> None:
        self._closed = True
        self._watches._remove(self)
        self._wakeup.set()

    def _add(self, changes: Iterable[Change]) -> None:
        for change in changes:
            if change.kind is ChangeKind.APPENDED:
                if change.epoch in self._appended:
                    continue
                self._appended.add(change.epoch)
            self._pending.append(change)
        self._wakeup.set()
