"""Where the messages of a kept kernel come in: from its spool, each once and in order.

Its keeper is the only one who hears the kernel. What the keeper wrote down has a number, and to go on is to read behind
the last number that was routed: nothing is missed or repeated, however slow the log is and however late the server.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from himalia.kernels.broker import IopubBroker
from himalia.kernels.keeper.spool import Spooled, SpoolReader
from himalia.kernels.seldom import Seldom
from himalia.kernels.wire import DELIMITER, Fault, KernelMessage, Wire

logger = logging.getLogger("himalia.kernels.intake")

BATCH_MAX = 512
"""Messages routed before another kernel has its turn."""
BATCH_BYTES_MAX = 8 << 20
SPOOL_WAS_FULL = "the spool was full"
"""Why messages are missing, as the topic has it."""


class _Header(msgspec.Struct, gc=False):
    msg_id: str = ""


_header_of = msgspec.json.Decoder(_Header).decode


def _never() -> bool:
    return False


class Bookmark:
    """Where the reading of a spool stands; it outlives the processes of the kernel, as the spool does."""

    def __init__(self, *, wanted: str = "") -> None:
        """``wanted`` is the id of the last message that an earlier server has stored: its number is not known."""
        self.after = -1
        """The number of what was routed last."""
        self.wanted = wanted
        """Until it was found in the spool; then empty."""


class Intake:
    """Routes what a spool has behind a bookmark, and moves that on. All of it runs in one thread at a time.

    While ``is_blocked`` nothing is read: it stays where it is. ``on_gap`` is told how many messages the spool had to
    give up before they were read, ``on_faults`` of those that are no messages.
    """

    def __init__(
        self,
        broker: IopubBroker,
        wire: Wire,
        directory: Path,
        bookmark: Bookmark,
        *,
        is_blocked: Callable[[], bool] = _never,
        on_faults: Callable[[Sequence[Fault]], None] | None = None,
        on_gap: Callable[[int], None] | None = None,
    ) -> None:
        self._broker = broker
        self._wire = wire
        self._directory = directory
        self._bookmark = bookmark
        self._is_blocked = is_blocked
        self._on_faults = on_faults
        self._on_gap = on_gap
        self._on_finished: Callable[[], None] | None = None
        self._reader = SpoolReader(directory, bookmark.after)
        self._complaint = Seldom()
        self._refusal = Seldom()
        self.is_live = False
        """Whether the spool was read to its end."""

    def read(self) -> bool:
        """Route what has come, up to a batch; says whether there may be more that can be routed now."""
        if self._is_blocked():
            return False
        try:
            batch = self._reader.read(BATCH_MAX, BATCH_BYTES_MAX)
        except OSError as error:
            self._fail(error)
            return False
        if self._bookmark.wanted:
            batch = self._behind_wanted(batch)
        self._route(batch)
        self.is_live = self._reader.is_at_end
        if self.is_live:
            self._tell_finished()
        return not self.is_live

    def periodic(self) -> bool:
        """Called now and then, whether anything is known to have come or not; says what ``read`` does."""
        self._broker.cleanup_if_due()
        return self.read()

    def finish(self, on_finished: Callable[[], None]) -> None:
        """The kernel has ended. ``on_finished`` is called by the ``read`` that comes to the end of the spool."""
        self._on_finished = on_finished
        self.read()

    def close(self) -> None:
        self._reader.close()

    def _fail(self, error: OSError) -> None:
        self.is_live = False
        if self._complaint.is_due():
            logger.error("the spool in %s cannot be read: %s", self._directory, error)
        # A kernel's end is told all the same.
        self._tell_finished()

    def _tell_finished(self) -> None:
        on_finished, self._on_finished = self._on_finished, None
        if on_finished is not None:
            on_finished()

    def _behind_wanted(self, batch: list[Spooled]) -> list[Spooled]:
        """Of these, what comes behind the message that is wanted."""
        bookmark = self._bookmark
        for at, entry in enumerate(batch):
            if _id_of(entry.frames) == bookmark.wanted:
                bookmark.after, bookmark.wanted = entry.seq, ""
                return batch[at + 1 :]
        if self._reader.is_at_end:
            # The spool had no room for it any more: what it has came later, and that is all of it.
            bookmark.wanted = ""
            self._reader.close()
            self._reader = SpoolReader(self._directory)
        return []

    def _route(self, batch: Sequence[Spooled]) -> None:
        messages: list[KernelMessage] = []
        bookmark = self._bookmark
        for seq, frames in batch:
            if seq > bookmark.after + 1 and self._on_gap is not None:
                self._on_gap(seq - bookmark.after - 1)
            bookmark.after = seq
            decoded = self._wire.decode(frames)
            if isinstance(decoded, KernelMessage):
                messages.append(decoded)
            else:
                self._refuse(decoded)
        # In one go: were the log to be full after a part of it, the rest would be nowhere.
        self._broker.route_messages(messages)

    def _refuse(self, fault: Fault) -> None:
        if self._refusal.is_due():
            logger.warning("%s: a message was refused: %s (%s)", self._directory, fault.kind, fault.detail)
        if self._on_faults is not None:
            self._on_faults([fault])


def _id_of(frames: Sequence[bytes]) -> str:
    """The id of a spooled message, whoever signed it; empty if it has none."""
    try:
        return _header_of(frames[frames.index(DELIMITER) + 2]).msg_id
    except (ValueError, IndexError, msgspec.MsgspecError):
        return ""
