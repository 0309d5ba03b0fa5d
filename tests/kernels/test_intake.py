"""The intake: whatever the spool and the socket bring, and when, each message is routed once and in order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from himalia.kernels.broker import IopubBroker
from himalia.kernels.intake import PATIENCE_S, Intake
from himalia.kernels.wire import Fault, KernelMessage, Wire


class Log:
    """Takes what is routed, as the bridge does: no more than so much until it has been stored."""

    def __init__(self, room: int = 1 << 30) -> None:
        self.got: list[int] = []
        self.missed: list[int] = []
        self._room = room
        self._waiting = 0

    @property
    def is_full(self) -> bool:
        return self._waiting > self._room

    def offer(self, messages: Sequence[KernelMessage]) -> bool:
        numbers = [int(message.msg_id.removeprefix("m")) for message in messages]
        (self.missed if self.is_full else self.got).extend(numbers)
        self._waiting += len(messages)
        return True

    def store(self) -> None:
        self._waiting = 0


class World:
    """A kernel that publishes m0, m1, ..., the keeper's spool, and the server's socket."""

    def __init__(self, *, wanted: int = -1, live_from: int = 0, room: int = 1 << 30) -> None:
        self._wire = Wire(b"key", bytes_max=1000)
        self.spool: list[tuple[int, list[bytes]]] = []
        self.heard_by_keeper = 0
        self.heard_live = live_from
        self.now_s = 0.0
        self.log = Log(room)
        self.gaps: list[int] = []
        self.faults: list[Fault] = []
        self.finished = False
        broker = IopubBroker()
        broker.add_global_subscriber(self.log)
        self.intake = Intake(
            broker,
            self._wire,
            read_spool=self._read,
            wanted=f"m{wanted}" if wanted >= 0 else "",
            is_blocked=lambda: self.log.is_full,
            on_faults=self.faults.extend,
            on_gap=self.gaps.append,
            clock=lambda: self.now_s,
        )

    def _read(self, after: int) -> Iterator[tuple[int, list[bytes]]]:
        return iter([entry for entry in self.spool if entry[0] > after])

    def frames(self, number: int, *, size: int = 1) -> list[bytes]:
        return self._wire.encode("stream", {"text": "x" * size}, msg_id=f"m{number}")[1]

    def keeper_hears(self, count: int = 1, *, disk_is_full: bool = False) -> None:
        for _ in range(count):
            if not disk_is_full:
                self.spool.append((self.heard_by_keeper, self.frames(self.heard_by_keeper)))
            self.heard_by_keeper += 1

    def socket_hears(self, count: int = 1) -> None:
        messages = []
        for number in range(self.heard_live, self.heard_live + count):
            message = self._wire.decode(self.frames(number))
            assert isinstance(message, KernelMessage)
            messages.append(message)
        self.heard_live += count
        if messages:
            self.intake.received(messages)

    def finish(self) -> None:
        def finished() -> None:
            self.finished = True

        self.intake.finish(finished)
        while not self.finished:
            self.log.store()
            self.intake.periodic()


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("keeper"), st.integers(1, 5)),
        st.tuples(st.just("socket"), st.integers(1, 5)),
        st.tuples(st.just("periodic"), st.just(0)),
        st.tuples(st.just("store"), st.just(0)),
    ),
    max_size=60,
)


def play(world: World, steps: list[tuple[str, int]], published: int) -> None:
    for step, count in steps:
        match step:
            case "keeper":
                world.keeper_hears(min(count, published - world.heard_by_keeper))
            case "socket":
                world.socket_hears(min(count, published - world.heard_live))
            case "periodic":
                world.intake.periodic()
            case "store":
                world.log.store()
    world.keeper_hears(published - world.heard_by_keeper)
    world.socket_hears(published - world.heard_live)


@settings(max_examples=1000, deadline=None)
@given(
    steps=STEPS,
    published=st.integers(0, 40),
    wanted=st.integers(-1, 20),
    live_after=st.integers(0, 10),
    room=st.integers(0, 12),
    ends=st.booleans(),
)
def test_any_interleaving_gives_each_message_once_in_order(
    steps: list[tuple[str, int]], published: int, wanted: int, live_after: int, room: int, ends: bool
) -> None:
    """However spool and socket interleave, and however slow the log is: each message once, in order, none missed."""
    wanted = min(wanted, published - 1)
    world = World(wanted=wanted, live_from=min(wanted + 1 + live_after, published), room=room)
    # An earlier server has stored these, so the kernel has said them; the keeper may not have heard of all yet.
    play(world, steps, published)
    if ends:
        world.finish()
    else:
        for _ in range(published + 2):
            world.log.store()
            world.intake.periodic()
    assert world.log.got == list(range(wanted + 1, published))
    assert not world.log.missed and not world.gaps and not world.faults


@settings(max_examples=300, deadline=None)
@given(steps=STEPS, published=st.integers(1, 30), bad=st.sets(st.integers(0, 29), max_size=5))
def test_messages_that_are_refused_do_not_disturb(
    steps: list[tuple[str, int]], published: int, bad: set[int]
) -> None:
    """Messages that are too large are left out and told of at least once; all others are routed once, in order."""
    world = World()
    frames = world.frames
    world.frames = lambda number, *, size=1: frames(number, size=2000 if number in bad else 1)  # type: ignore

    def socket_hears(count: int = 1) -> None:
        decoded = [
            world._wire.decode(world.frames(n)) for n in range(world.heard_live, world.heard_live + count)
        ]
        world.heard_live += count
        messages = [message for message in decoded if isinstance(message, KernelMessage)]
        faults = [fault for fault in decoded if isinstance(fault, Fault)]
        if messages:
            world.intake.received(messages)
        if faults:
            world.intake.faulty(faults)

    world.socket_hears = socket_hears  # type: ignore[method-assign]
    play(world, steps, published)
    world.finish()
    bad = {number for number in bad if number < published}
    assert world.log.got == [number for number in range(published) if number not in bad]
    assert len(world.faults) >= len(bad)


def test_blocked_and_resumed() -> None:
    """What comes while the log is full is neither kept in memory nor lost: it is read from the spool later."""
    world = World(room=3)
    for _ in range(50):
        world.keeper_hears()
        world.socket_hears()
    assert world.log.got == [0, 1, 2, 3]
    world.log.store()
    world.intake.periodic()
    for _ in range(50):
        world.keeper_hears()
        world.socket_hears()
        world.log.store()
        world.intake.periodic()
    for _ in range(200):
        world.log.store()
        world.intake.periodic()
    assert world.log.got == list(range(100)) and not world.log.missed


def test_live_again_after_being_blocked() -> None:
    """Having caught up, the intake is live again: the keeper may then be as slow as it likes."""
    world = World(room=1)
    world.keeper_hears(10)
    world.socket_hears(10)
    for _ in range(20):
        world.log.store()
        world.intake.periodic()
    world.keeper_hears()
    world.socket_hears()
    assert world.intake.is_live
    world.log.store()
    world.socket_hears()
    assert world.log.got == list(range(12))


def test_spool_that_lost_its_beginning() -> None:
    """A spool that let go of what had not been read: the number of what is missing is told, the rest is routed."""
    world = World(wanted=4)
    world.keeper_hears(20)
    del world.spool[:10]
    world.heard_live = 20
    world.intake.periodic()
    assert world.log.got == list(range(10, 20))
    assert sum(world.gaps) >= 5
    world.keeper_hears()
    world.socket_hears()
    assert world.log.got == list(range(10, 21))


def test_gap_of_a_running_server_is_exact() -> None:
    """A server that fell behind for so long that the spool overflowed tells exactly how many are missing."""
    world = World(room=9)
    world.keeper_hears(5)
    world.socket_hears(5)
    world.intake.periodic()
    assert world.intake.is_live
    world.keeper_hears(5)
    world.socket_hears(5)  # now it is full
    world.keeper_hears(40)
    world.socket_hears(40)
    del world.spool[:30]
    world.log.store()
    for _ in range(100):
        world.intake.periodic()
        world.log.store()
    assert world.log.got == [*range(10), *range(30, 50)]
    assert world.gaps == [20]


def test_disk_of_the_keeper_was_full() -> None:
    """If the spool has not what was routed last, the numbers tell where to go on: nothing comes twice."""
    world = World(room=9)
    world.keeper_hears(5)
    world.socket_hears(5)
    world.intake.periodic()
    world.keeper_hears(5, disk_is_full=True)
    world.socket_hears(5)
    world.keeper_hears(10)
    world.socket_hears(10)
    world.log.store()
    world.intake.periodic()
    world.now_s += PATIENCE_S + 1
    for _ in range(20):
        world.intake.periodic()
        world.log.store()
    assert world.log.got == list(range(20)) and not world.gaps


def test_keeper_that_hears_nothing() -> None:
    """A keeper that hears nothing does not keep the server from hearing."""
    world = World()
    world.socket_hears(3)
    assert world.log.got == []
    world.now_s += PATIENCE_S + 1
    world.intake.periodic()
    assert world.log.got == [0, 1, 2]
    world.socket_hears(3)
    assert world.log.got == list(range(6))


def test_keeper_that_was_killed() -> None:
    """What came live and is in no spool, because the keeper was killed, is routed when the kernel has ended."""
    world = World()
    world.keeper_hears(3)
    world.socket_hears(5)
    world.finish()
    assert world.log.got == list(range(5))
    world = World()
    world.socket_hears(5)
    world.finish()
    assert world.log.got == list(range(5))


def test_spool_that_cannot_be_read(caplog: pytest.LogCaptureFixture) -> None:
    """A spool that cannot be read does not keep the end of a kernel from being told."""
    world = World()

    def broken(after: int) -> Iterator[tuple[int, list[bytes]]]:
        raise OSError("the disk is gone")

    world.intake._read_spool = broken
    world.socket_hears(2)
    world.finish()
    assert world.log.got == [0, 1]


def test_without_a_keeper_all_is_live() -> None:
    """A foreign kernel's messages are routed as they come, whether the log is full or not: the bridge tells."""
    broker = IopubBroker()
    log = Log(room=0)
    broker.add_global_subscriber(log)
    intake = Intake(broker, Wire(b"key"), is_blocked=lambda: log.is_full)
    world = World()
    for number in range(3):
        message = world._wire.decode(world.frames(number))
        assert isinstance(message, KernelMessage)
        intake.received([message])
    finished: list[bool] = []
    intake.finish(lambda: finished.append(True))
    assert (log.got, log.missed, finished) == ([0], [1, 2], [True])
