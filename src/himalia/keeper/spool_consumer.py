"""Reads a kept kernel's spool: each message once, in order, whenever the keeper reports that it grew.

Only the keeper receives what the kernel publishes. Every message that it wrote has a number, and a server continues
behind the last number that it routed: nothing is missed or repeated, however slow the log is or late the server.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import zmq

from himalia.iopub.broker import IopubBroker
from himalia.jupyter.wire import DELIMITER, Fault, KernelMessage, Wire
from himalia.keeper.client import open_spool_notices
from himalia.keeper.spool import Spooled, SpoolReader
from himalia.throttle import LogThrottle

logger = logging.getLogger("himalia.keeper.spool_consumer")

BATCH_MAX = 512
"""Messages routed before another kernel has its turn."""
BATCH_BYTES_MAX = 8 << 20
SPOOL_WAS_FULL = "the spool was full"
"""Why messages are missing, as the topic has it."""
OnGap = Callable[[int | None], None]


class _Header(msgspec.Struct, gc=False):
    msg_id: str = ""


_header_of = msgspec.json.Decoder(_Header).decode


def _never() -> bool:
    return False


class Bookmark:
    """Where the reading of a spool stands; it outlives the processes of the kernel, as the spool does."""

    def __init__(self, after: int = -1, *, wanted: str = "") -> None:
        """``after`` is the number of the last message that an earlier server has stored.

        Records of 0.1 do not tell it; then ``wanted`` is the id of that message.
        """
        self.after = after
        """The number of what was routed last."""
        self.wanted = wanted
        """Until it was found in the spool; then empty."""


class Intake:
    """Routes what a spool has behind a bookmark, and moves that on. All of it runs in one thread at a time.

    While ``is_blocked`` nothing is read: it stays where it is. ``on_gap`` is told how many messages the spool had to
    give up before they were read, None if that is not known, before the message behind the gap is routed;
    ``on_faults`` is told of what is no message.
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
        on_gap: OnGap | None = None,
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
        # Read, and not routed yet: it stands behind a gap.
        self._held: list[Spooled] = []
        self._complaint = LogThrottle()
        self._refusal = LogThrottle()
        self._error: OSError | None = None
        self.is_live = False
        """Whether the spool was read to its end."""

    def read(self) -> bool:
        """Route what has come, up to a batch; says whether there may be more that can be routed now."""
        if self._is_blocked():
            return False
        try:
            batch, self._held = self._held or self._reader.read(BATCH_MAX, BATCH_BYTES_MAX), []
        except OSError as error:
            self._fail(error)
            return False
        self._error = None
        if self._bookmark.wanted:
            batch = self._behind_wanted(batch)
        self._route(self._up_to_gap(batch))
        self.is_live = self._reader.is_at_end and not self._held
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

    def check(self) -> None:
        """Raises OSError if the spool could not be read when that was last tried."""
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        self._reader.close()

    def _fail(self, error: OSError) -> None:
        self.is_live = False
        self._error = error
        if self._complaint.allow():
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
            self._skip_to_first()
        return []

    def _skip_to_first(self) -> None:
        """The number of what was stored last is not known, so how many are missing is not either."""
        first = self._reader.read(1)
        self._reader.close()
        self._reader = SpoolReader(self._directory)
        if first:
            self._bookmark.after = first[0].seq - 1
            self._tell_gap(None)

    def _up_to_gap(self, batch: list[Spooled]) -> list[Spooled]:
        """What stands before the first gap within a batch; the rest has the next turn, behind the record of the gap."""
        for at in range(1, len(batch)):
            if batch[at].seq > batch[at - 1].seq + 1:
                self._held = batch[at:]
                return batch[:at]
        return batch

    def _tell_gap(self, count: int | None) -> None:
        if self._on_gap is not None:
            self._on_gap(count)

    def _route(self, batch: Sequence[Spooled]) -> None:
        messages: list[KernelMessage] = []
        bookmark = self._bookmark
        for seq, frames in batch:
            if seq > bookmark.after + 1:
                self._tell_gap(seq - bookmark.after - 1)
            bookmark.after = seq
            decoded = self._wire.decode(frames, seq)
            if isinstance(decoded, KernelMessage):
                messages.append(decoded)
            else:
                self._refuse(decoded)
        # In one go: were the log to be full after a part of it, the rest would be nowhere.
        self._broker.route_messages(messages)

    def _refuse(self, fault: Fault) -> None:
        if self._refusal.allow():
            logger.warning("%s: a message was refused: %s (%s)", self._directory, fault.kind, fault.detail)
        if self._on_faults is not None:
            self._on_faults([fault])


def _id_of(frames: Sequence[bytes]) -> str:
    """The id of a spooled message, whoever signed it; empty if it has none."""
    try:
        return _header_of(frames[frames.index(DELIMITER) + 2]).msg_id
    except (ValueError, IndexError, msgspec.MsgspecError):
        return ""


class SpoolFeed:
    """A feed of the IOPub thread. Without its keeper's notices it reads all the same, every now and then."""

    is_flooding = False
    """The keeper lets messages gather: here it would only take longer."""

    def __init__(self, intake: Intake, keeper_socket: str) -> None:
        self.name = keeper_socket
        self.closed = threading.Event()
        self._intake = intake
        self._notices: socket.socket | None = None

    def open(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        try:
            self._notices = open_spool_notices(self.name)
        except OSError as error:
            # It has ended, and what it wrote is read all the same.
            logger.info("no keeper tells of what comes to its spool: %s (%s)", self.name, error)

    @property
    def source(self) -> int | None:
        return self._notices.fileno() if self._notices is not None else None

    def drain(self) -> bool:
        # First the notices: what comes while the spool is read brings another one.
        self._take_notices()
        return self._intake.read()

    def periodic(self) -> bool:
        return self._intake.periodic()

    def close(self) -> None:
        self._intake.close()
        if self._notices is not None:
            self._notices.close()
            self._notices = None

    def _take_notices(self) -> None:
        if self._notices is None:
            return
        try:
            is_open = bool(self._notices.recv(1 << 16))
        except BlockingIOError:
            return
        except OSError:
            is_open = False
        if not is_open:
            self._notices.close()
            self._notices = None
