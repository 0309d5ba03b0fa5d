"""Consumes a kept kernel's spool: each message once, in order, whenever the keeper reports that it has grown.

Only the keeper receives what the kernel publishes. Every message in the spool has a number, and a server continues
behind the last number that it routed: no message is missed or repeated, however slow the log is or late the server.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

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
"""The reason of a gap, as the topic records it."""


class _Header(msgspec.Struct, gc=False):
    msg_id: str = ""


_decode_header = msgspec.json.Decoder(_Header).decode


class SpoolListener(Protocol):
    """Where the messages of a spool go, apart from the broker. Called in the thread that reads the spool."""

    @property
    def is_blocked(self) -> bool:
        """Whether no message can be routed now. Nothing is read then, and the position stays."""

    def on_faults(self, faults: Sequence[Fault]) -> None:
        """Some frames were not a message."""

    def on_spool_gap(self, count: int | None) -> None:
        """The spool dropped so many messages before they were read; None if the number is not known.

        Called before the message behind the gap is routed.
        """


class SpoolPosition:
    """How far a spool was read. It outlives the processes of the kernel, as the spool does."""

    def __init__(self, after: int = -1, *, resume_after_id: str = "") -> None:
        """``after`` is the number of the last message that an earlier server has stored.

        Records of 0.1 do not have it; then ``resume_after_id`` is the id of that message.
        """
        self.after = after
        """The number of the last message that was routed."""
        self.resume_after_id = resume_after_id
        """Empty once that message was found in the spool."""


class SpoolConsumer:
    """Routes the messages of a spool behind a position, and advances it. Used in one thread at a time."""

    def __init__(
        self,
        broker: IopubBroker,
        wire: Wire,
        directory: Path,
        position: SpoolPosition,
        listener: SpoolListener | None = None,
    ) -> None:
        self._broker = broker
        self._wire = wire
        self._directory = directory
        self._position = position
        self._listener = listener
        self._on_finished: Callable[[], None] | None = None
        self._reader = SpoolReader(directory, position.after)
        # Read, but not routed yet: these messages are behind a gap.
        self._held: list[Spooled] = []
        self._error_log = LogThrottle()
        self._fault_log = LogThrottle()
        self._error: OSError | None = None
        self.is_caught_up = False
        """Whether the spool was read to its end."""

    def read(self) -> bool:
        """Route the next messages, up to a batch; return whether there may be more that can be routed now."""
        if self._listener is not None and self._listener.is_blocked:
            return False
        try:
            batch, self._held = self._held or self._reader.read(BATCH_MAX, BATCH_BYTES_MAX), []
        except OSError as error:
            self._fail(error)
            return False
        self._error = None
        if self._position.resume_after_id:
            batch = self._skip_to_resume_point(batch)
        self._route(self._hold_behind_gap(batch))
        self.is_caught_up = self._reader.is_at_end and not self._held
        if self.is_caught_up:
            self._report_finished()
        return not self.is_caught_up

    def periodic(self) -> bool:
        """Clean up the broker, and read, whether or not the keeper has sent a notice; return what ``read`` returns."""
        self._broker.cleanup_if_due()
        return self.read()

    def finish(self, on_finished: Callable[[], None]) -> None:
        """Call ``on_finished``, once, in the ``read`` that reaches the end of the spool: the kernel has ended."""
        self._on_finished = on_finished
        self.read()

    def check(self) -> None:
        """Raise OSError if the last ``read`` failed."""
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        self._reader.close()

    def _fail(self, error: OSError) -> None:
        self.is_caught_up = False
        self._error = error
        if self._error_log.allow():
            logger.error("the spool in %s cannot be read: %s", self._directory, error)
        # The end of a kernel is reported in any case.
        self._report_finished()

    def _report_finished(self) -> None:
        on_finished, self._on_finished = self._on_finished, None
        if on_finished is not None:
            on_finished()

    def _skip_to_resume_point(self, batch: list[Spooled]) -> list[Spooled]:
        """Return the messages behind the one with the id of the position."""
        position = self._position
        for at, entry in enumerate(batch):
            if _id_of(entry.frames) == position.resume_after_id:
                position.after, position.resume_after_id = entry.seq, ""
                return batch[at + 1 :]
        if self._reader.is_at_end:
            # The spool has dropped it: every message in the spool came later.
            position.resume_after_id = ""
            self._restart_from_first()
        return []

    def _restart_from_first(self) -> None:
        """Read the spool from its beginning, behind a gap of unknown length."""
        self._reader.close()
        self._reader = SpoolReader(self._directory)
        first = self._reader.read(1)
        self._reader.close()
        self._reader = SpoolReader(self._directory)
        if first:
            self._position.after = first[0].seq - 1
            self._report_gap(None)

    def _hold_behind_gap(self, batch: list[Spooled]) -> list[Spooled]:
        """Return the messages before the first gap; hold the rest for the next turn, behind the record of the gap."""
        for at in range(1, len(batch)):
            if batch[at].seq > batch[at - 1].seq + 1:
                self._held = batch[at:]
                return batch[:at]
        return batch

    def _report_gap(self, count: int | None) -> None:
        if self._listener is not None:
            self._listener.on_spool_gap(count)

    def _route(self, batch: Sequence[Spooled]) -> None:
        messages: list[KernelMessage] = []
        position = self._position
        for seq, frames in batch:
            if seq > position.after + 1:
                self._report_gap(seq - position.after - 1)
            position.after = seq
            decoded = self._wire.decode(frames, seq)
            if isinstance(decoded, KernelMessage):
                messages.append(decoded)
            else:
                self._report_fault(decoded)
        # In one call: if the log were full after a part of the batch, the rest would be lost.
        self._broker.route_messages(messages)

    def _report_fault(self, fault: Fault) -> None:
        if self._fault_log.allow():
            logger.warning("%s: a message was refused: %s (%s)", self._directory, fault.kind, fault.detail)
        if self._listener is not None:
            self._listener.on_faults([fault])


def _id_of(frames: Sequence[bytes]) -> str:
    """Decode the id of a spooled message, without checking its signature; empty if it has none."""
    try:
        return _decode_header(frames[frames.index(DELIMITER) + 2]).msg_id
    except (ValueError, IndexError, msgspec.MsgspecError):
        return ""


class SpoolFeed:
    """A feed of the IOPub thread. Without its keeper's notices it reads the spool periodically."""

    is_flooding = False
    """The keeper already batches messages."""

    def __init__(self, consumer: SpoolConsumer, keeper_socket: str) -> None:
        self.name = keeper_socket
        self.closed = threading.Event()
        self._consumer = consumer
        self._notices: socket.socket | None = None

    def open(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        try:
            self._notices = open_spool_notices(self.name)
        except OSError as error:
            # It has ended; what it wrote is read in any case.
            logger.info(
                "no spool notices from keeper %s (%s); reading periodically instead", self.name, error
            )

    @property
    def source(self) -> int | None:
        return self._notices.fileno() if self._notices is not None else None

    def drain(self) -> bool:
        # The notices first: a message that is written while the spool is read causes another one.
        self._read_notices()
        return self._consumer.read()

    def periodic(self) -> bool:
        return self._consumer.periodic()

    def close(self) -> None:
        self._consumer.close()
        if self._notices is not None:
            self._notices.close()
            self._notices = None

    def _read_notices(self) -> None:
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
