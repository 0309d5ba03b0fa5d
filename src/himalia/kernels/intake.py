"""Where a kernel's IOPub messages come in: from its spool while that is ahead, then live, without a gap or a repeat.

The keeper and this server hear the same messages in the same order. A server that comes back (or that had to stop
listening) subscribes first, holds what comes, and reads the spool: as soon as the spool reaches a message that is
held, everything before it has been read and everything after it is held or still to come.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

import msgspec

from himalia.kernels.broker import IopubBroker
from himalia.kernels.wire import DELIMITER, Fault, KernelMessage, Wire

logger = logging.getLogger("himalia.kernels.intake")

SPOOL_BATCH = 512
HELD_MAX = 100_000
PATIENCE_S = 2.0
"""How long a message that was heard live may be missing from the spool; then the keeper never heard it."""

ReadSpool = Callable[[int], Iterator[tuple[int, list[bytes]]]]


class _Header(msgspec.Struct, gc=False):
    msg_id: str = ""


_header_of = msgspec.json.Decoder(_Header).decode


def _never() -> bool:
    return False


class Intake:
    """The listener of one kernel; everything here runs in the IOPub thread.

    ``read_spool(after)`` yields what the spool holds after that number, and ends at its present end; None for a
    kernel without a keeper, which is always heard live. ``wanted`` is the id of the last message that is in the log
    already: the spool is read behind it. While ``is_blocked``, nothing is routed: it comes from the spool later.
    """

    def __init__(
        self,
        broker: IopubBroker,
        wire: Wire,
        *,
        read_spool: ReadSpool | None = None,
        wanted: str = "",
        is_blocked: Callable[[], bool] = _never,
        on_faults: Callable[[Sequence[Fault]], None] | None = None,
        on_gap: Callable[[int], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._broker = broker
        self._wire = wire
        self._read_spool = read_spool
        self._is_blocked = is_blocked
        self._on_faults = on_faults
        self._on_gap = on_gap
        self._clock = clock
        self.is_live = read_spool is None
        # The number in the spool of what was routed last. While live it is counted on: the keeper numbers whatever
        # it hears, whether the disk takes it or not.
        self._after = -1
        # The last number that is certain, because it was read.
        self._read_to = -1
        # What was heard live, in order, and may be in the spool.
        self._held: dict[str, KernelMessage | Fault] = {}
        self._held_since_s = 0.0
        # What came from the spool, to recognise it when it comes live as well.
        self._spooled: set[str] = set()
        self._last_routed = wanted
        # The message behind which the spool is to be read, until it was found there.
        self._wanted = wanted
        self._wanted_since_s = clock()
        self._on_finished: Callable[[], None] | None = None
        self._is_finished = False

    @property
    def last_routed(self) -> str:
        """The id of the last message that was routed, or of the one to go on behind."""
        return self._last_routed

    def received(self, messages: Sequence[KernelMessage]) -> None:
        if self._read_spool is None:
            self._route(messages)
        elif self._is_finished:
            pass  # the spool had it too
        elif self._is_blocked():
            self._fall_behind()
        elif self.is_live:
            self._after += len(messages)
            self._route(messages)
        else:
            self._receive_ahead(messages)

    def faulty(self, faults: Sequence[Fault]) -> None:
        """Frames that are no message."""
        if self.is_live:
            self._after += len(faults)
            self._report(faults)
        elif not self._is_blocked():
            for fault in faults:
                self._hold(f"fault {id(fault)}", fault)

    def periodic(self) -> None:
        self._broker.cleanup_if_due()
        if not self.is_live:
            self._catch_up()

    def finish(self, on_finished: Callable[[], None]) -> None:
        """The kernel has ended: route what the spool has of it. ``on_finished`` is called when that is done."""
        self._on_finished = on_finished
        if self._read_spool is None or self._is_finished:
            self._finish()
            return
        if self.is_live:
            self._read_on()
        self._catch_up()

    def _receive_ahead(self, messages: Sequence[KernelMessage]) -> None:
        """Live messages while the spool is still being read."""
        for at, message in enumerate(messages):
            if message.msg_id not in self._spooled:
                self._hold(message.msg_id, message)
            elif message.msg_id == self._last_routed and not self._held and self._on_finished is None:
                following = messages[at + 1 :]
                self._after += len(following)
                self._go_live(following)
                return
        self._catch_up()

    def _hold(self, key: str, heard: KernelMessage | Fault) -> None:
        if not self._held:
            self._held_since_s = self._clock()
        if len(self._held) >= HELD_MAX:
            # All of it is in the spool too: begin to hold anew.
            self._held.clear()
        self._held[key] = heard

    def _fall_behind(self) -> None:
        """Too much waits for the log: what comes now is read from the spool later."""
        self._held.clear()
        if self.is_live:
            self._read_on()

    def _read_on(self) -> None:
        """From live to the spool, behind what was routed last."""
        self.is_live = False
        self._wanted = self._last_routed
        self._wanted_since_s = self._clock()
        self._spooled = set()

    def _catch_up(self) -> None:
        try:
            self._read_spooled()
        except OSError:
            logger.exception("the spool of a kernel cannot be read")
            if self._on_finished is not None:
                self._finish()

    def _read_spooled(self) -> None:
        assert self._read_spool is not None
        if self._is_finished or self._is_blocked() or (self._wanted and not self._find_wanted()):
            return
        came = False
        spooled = self._read_spool(self._after)
        while batch := list(islice(spooled, SPOOL_BATCH)):
            came = True
            if self._route_spooled(batch) or self._is_blocked():
                return
        if self._on_finished is not None:
            self._finish()
        elif self._held and not came and self._clock() - self._held_since_s > PATIENCE_S:
            logger.warning("%d messages are not in the keeper's spool", len(self._held))
            self._report(_faults(self._held.values()))
            self._go_live(_messages(self._held.values()))

    def _finish(self) -> None:
        """The spool was read to its end; what is held is not in it, since its keeper was killed."""
        assert self._on_finished is not None
        held, self._held = _messages(self._held.values()), {}
        self._route(held)
        self._is_finished = True
        self._on_finished()

    def _find_wanted(self) -> bool:
        """Go to the place in the spool where routing stopped; false if the keeper is not that far yet."""
        assert self._read_spool is not None
        near = next(self._read_spool(self._after - 1), None)
        found = near[0] if near is not None and _id_of(near[1]) == self._wanted else self._search()
        # The spool lets the oldest go when it is full.
        is_lost = near is not None and near[0] > self._after + 1
        if found is not None:
            self._after = found
        elif not is_lost and self._on_finished is None and self._waited_s <= PATIENCE_S:
            return False
        # Else the keeper never heard it, or its disk did not take it: the number tells where to go on.
        self._read_to = self._after
        self._wanted = ""
        return True

    @property
    def _waited_s(self) -> float:
        return self._clock() - self._wanted_since_s

    def _search(self) -> int | None:
        """The number of the message that is wanted, from all of the spool that can have it."""
        assert self._read_spool is not None
        for number, frames in self._read_spool(self._read_to):
            if _id_of(frames) == self._wanted:
                return number
        return None

    def _route_spooled(self, batch: Sequence[tuple[int, list[bytes]]]) -> bool:
        """Route what the spool says; true if it has reached what is held."""
        messages: list[KernelMessage] = []
        for number, frames in batch:
            if number > self._after + 1 and self._on_gap is not None:
                # The spool, or its disk, was full before this could be read.
                self._on_gap(number - self._after - 1)
            self._after = self._read_to = number
            message = self._wire.decode(frames)
            if isinstance(message, Fault):
                self._report([message])
                continue
            is_held = message.msg_id in self._held
            if is_held and self._on_finished is None:
                behind = list(self._held.values())[list(self._held).index(message.msg_id) + 1 :]
                self._after += len(behind)
                # Of those before this one the spool has told.
                self._report(_faults(behind))
                # In one go: were the log to be too slow for a part of it, the rest would be nowhere.
                self._go_live([*messages, *_messages(self._held.values())])
                return True
            if is_held:
                del self._held[message.msg_id]
            messages.append(message)
            self._spooled.add(message.msg_id)
        self._route(messages)
        return False

    def _route(self, messages: Sequence[KernelMessage]) -> None:
        if messages:
            self._last_routed = messages[-1].msg_id
            self._broker.route_messages(messages)

    def _go_live(self, messages: Sequence[KernelMessage]) -> None:
        """These, which are all that came so far, and then whatever comes."""
        self._held = {}
        self._spooled = set()
        self.is_live = True
        self._route(messages)

    def _report(self, faults: Sequence[Fault]) -> None:
        if faults and self._on_faults is not None:
            self._on_faults(faults)


def _messages(heard: Iterable[KernelMessage | Fault]) -> list[KernelMessage]:
    return [one for one in heard if isinstance(one, KernelMessage)]


def _faults(heard: Iterable[KernelMessage | Fault]) -> list[Fault]:
    return [one for one in heard if isinstance(one, Fault)]


def _id_of(frames: Sequence[bytes]) -> str:
    """The id of a spooled message, whoever signed it; empty if it has none."""
    try:
        return _header_of(frames[frames.index(DELIMITER) + 2]).msg_id
    except (ValueError, IndexError, msgspec.MsgspecError):
        return ""
