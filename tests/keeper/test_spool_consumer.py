"""The consumer of a spool: however the spool grows and the log lags, each message is routed once and in order."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from himalia.iopub.broker import IopubBroker
from himalia.jupyter.wire import Fault, KernelMessage, Wire, WireLimits
from himalia.keeper.spool import Spool
from himalia.keeper.spool_consumer import BATCH_MAX, SpoolConsumer, SpoolPosition


class Log:
    """Takes what is routed, as the topic writer does: no more than so much until it has been stored."""

    def __init__(self, room: int = 1 << 30) -> None:
        self.got: list[int] = []
        self.seqs: list[int] = []
        self.missed: list[int] = []
        self._room = room
        self._waiting = 0

    @property
    def is_full(self) -> bool:
        return self._waiting > self._room

    def offer(self, messages: Sequence[KernelMessage]) -> bool:
        numbers = [int(message.msg_id.removeprefix("m")) for message in messages]
        (self.missed if self.is_full else self.got).extend(numbers)
        self.seqs += [message.seq for message in messages]
        self._waiting += len(messages)
        return True

    def store(self) -> None:
        self._waiting = 0


class World:
    """A kernel that publishes m0, m1, ..., the keeper that spools them, and the server that reads the spool."""

    def __init__(self, directory: Path, *, room: int = 1 << 30, **spool: int) -> None:
        self.directory = directory
        self.wire = Wire(b"key", limits=WireLimits(1000))
        self.log = Log(room)
        self.gaps: list[int | None] = []
        self.knows_numbers = True
        self.gaps_at: list[int] = []
        """How many messages were routed before each gap."""
        self.faults: list[Fault] = []
        self.published = 0
        self._spool_options = spool
        self.spool = Spool(directory, **spool)
        self.come()

    def come(self) -> None:
        """A server that knows only what is in the log; that of 0.1 has no numbers."""
        last = self.log.got[-1] if self.log.got else -1
        is_old = last >= 0 and not self.knows_numbers
        self.position = (
            SpoolPosition(resume_after_id=f"m{last}")
            if is_old
            else SpoolPosition(self.log.seqs[-1] if last >= 0 else -1)
        )
        self.listen()

    def listen(self) -> None:
        """A new link of the same server."""
        broker = IopubBroker()
        broker.add_global_subscriber(self.log)
        self.consumer = SpoolConsumer(
            broker,
            self.wire,
            self.directory,
            self.position,
            self,
        )

    # As SpoolListener

    @property
    def is_blocked(self) -> bool:
        return self.log.is_full

    def on_faults(self, faults: Sequence[Fault]) -> None:
        self.faults += faults

    def on_spool_gap(self, count: int | None) -> None:
        self.gaps.append(count)
        self.gaps_at.append(len(self.log.got))

    def publish(self, count: int = 1, *, size: int = 1) -> None:
        for number in range(self.published, self.published + count):
            self.spool.append([self.wire.encode("stream", {"text": "x" * size}, msg_id=f"m{number}")[1]])
        self.published += count

    def restart_kernel(self) -> None:
        """Another keeper continues the spool, and the server with its position."""
        self.consumer.close()
        self.spool.close()
        self.spool = Spool(self.directory, **self._spool_options)
        self.listen()

    def restart_server(self) -> None:
        self.consumer.close()
        self.come()

    def catch_up(self) -> None:
        """Until all is read that can be."""
        for _ in range(self.published + 2):
            self.log.store()
            while self.consumer.periodic():
                self.log.store()

    def finish(self) -> None:
        finished: list[bool] = []
        self.consumer.finish(lambda: finished.append(True))
        while not finished:
            self.log.store()
            self.consumer.periodic()
        assert len(finished) == 1


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Callable[..., World]]:
    made: list[World] = []

    def make(**options: int) -> World:
        made.append(World(tmp_path, **options))
        return made[-1]

    yield make
    for one in made:
        one.consumer.close()
        one.spool.close()


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.integers(1, 8)),
        st.tuples(st.sampled_from(["read", "store", "restart kernel", "restart server"]), st.just(0)),
    ),
    max_size=60,
)


@settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=STEPS,
    room=st.integers(0, 12),
    segment_bytes=st.sampled_from([100, 1000, 1 << 20]),
    ends=st.booleans(),
    knows_numbers=st.booleans(),
)
def test_any_interleaving_gives_each_message_once_in_order(
    tmp_path_factory: pytest.TempPathFactory,
    steps: list[tuple[str, int]],
    room: int,
    segment_bytes: int,
    ends: bool,
    knows_numbers: bool,
) -> None:
    """Whenever it is read, however slow the log is, and whoever is restarted: each message once, in order, all."""
    world = World(tmp_path_factory.mktemp("spool"), room=room, segment_bytes=segment_bytes)
    world.knows_numbers = knows_numbers
    for step, count in steps:
        match step:
            case "publish":
                world.publish(count)
            case "read":
                world.consumer.read()
            case "store":
                world.log.store()
            case "restart kernel":
                world.restart_kernel()
            case "restart server":
                world.restart_server()
    if ends:
        world.finish()
    else:
        world.catch_up()
    assert world.log.got == list(range(world.published))
    assert not world.log.missed and not world.gaps and not world.faults
    world.consumer.close()
    world.spool.close()


def test_a_batch_leaves_the_turn_to_others(world: Callable[..., World]) -> None:
    """A kernel that has said much is read in parts, and says so; then it is live."""
    one = world()
    one.publish(2 * BATCH_MAX + 1)
    for turn in range(1, 3):
        assert one.consumer.read()
        assert len(one.log.got) == turn * BATCH_MAX and not one.consumer.is_caught_up
    assert not one.consumer.read()
    assert one.log.got == list(range(one.published)) and one.consumer.is_caught_up
    assert not one.consumer.read() and one.consumer.is_caught_up


def test_a_search_leaves_the_turn_to_others(world: Callable[..., World]) -> None:
    """A server that has to look for its place does so in parts, and routes nothing of what is in the log."""
    one = world()
    one.knows_numbers = False
    one.publish(3 * BATCH_MAX)
    one.catch_up()
    one.restart_server()
    one.publish(5)
    assert one.consumer.read() and one.consumer.read() and not one.consumer.is_caught_up
    assert one.log.got == list(range(3 * BATCH_MAX))
    while one.consumer.read():
        pass
    assert one.log.got == list(range(3 * BATCH_MAX + 5)) and one.consumer.is_caught_up


def test_blocked_and_resumed(world: Callable[..., World]) -> None:
    """What comes while the log is full is neither kept in memory nor lost: it is read when there is room."""
    one = world(room=3)
    one.publish(4)
    one.consumer.read()
    one.publish(50)
    for _ in range(10):
        assert not one.consumer.read()
    assert one.log.got == [0, 1, 2, 3]
    one.catch_up()
    assert one.log.got == list(range(54)) and not one.log.missed


def test_gap_of_a_running_server_is_exact(world: Callable[..., World]) -> None:
    """A server that fell behind for so long that the spool overflowed tells exactly how many are missing."""
    one = world(room=5, bytes_max=20_000)
    one.publish(10)
    one.consumer.read()
    assert one.log.is_full
    one.publish(500)
    one.catch_up()
    missing = sorted(set(range(510)) - set(one.log.got))
    assert one.log.got == [number for number in range(510) if number not in missing]
    assert missing == list(range(missing[0], missing[-1] + 1)) and missing[0] >= 10
    assert one.gaps == [len(missing)]


def test_spool_that_lost_the_place(world: Callable[..., World]) -> None:
    """Where the log of 0.1 tells no numbers, and the spool no longer has its last message, a gap has no count."""
    one = world(bytes_max=20_000)
    one.knows_numbers = False
    one.publish(10)
    one.catch_up()
    one.publish(500)
    one.restart_server()
    one.catch_up()
    first = one.log.got[10]
    assert one.log.got == [*range(10), *range(first, 510)]
    assert first > 10 and one.gaps == [None]
    one.publish(5)
    one.catch_up()
    assert one.log.got[-5:] == list(range(510, 515)) and len(one.gaps) == 1


def test_gap_of_a_server_that_comes_back_is_exact(world: Callable[..., World]) -> None:
    """What was read before the crash is not counted as missing, and the gap stands before what comes behind it."""
    one = world(bytes_max=20_000)
    one.publish(50)
    one.catch_up()
    one.publish(500)
    one.restart_server()
    one.catch_up()
    first = one.log.got[50]
    assert one.log.got == [*range(50), *range(first, 550)]
    assert one.gaps == [first - 50] and one.gaps_at == [50]


def test_gap_within_a_batch_stands_in_its_place(world: Callable[..., World]) -> None:
    """What is before the gap is routed first, then the gap is told, then the rest is routed."""
    one = world(segment_bytes=100, bytes_max=100_000)
    one.publish(5)
    for path in sorted((one.directory / "spool").glob("*.seg"))[2:4]:
        path.unlink()
    one.catch_up()
    assert one.log.got == [0, 1, 4]
    assert one.gaps == [2] and one.gaps_at == [2]


def test_disk_of_the_keeper_was_full(world: Callable[..., World]) -> None:
    """What the disk did not take at first comes late, and in its place."""
    one = world(segment_bytes=100)
    one.publish(5)
    one.catch_up()
    os.rename(one.directory / "spool", one.directory / "away")
    one.publish(5)
    one.catch_up()
    os.rename(one.directory / "away", one.directory / "spool")
    one.publish(5)
    one.catch_up()
    assert one.log.got == list(range(15)) and not one.gaps


def test_server_comes_back_where_the_disk_was_full(world: Callable[..., World]) -> None:
    """A full disk at the last message that was stored does not have the spool read again from its start."""
    one = world(segment_bytes=100)
    one.publish(5)
    os.rename(one.directory / "spool", one.directory / "away")
    one.publish(5)
    one.catch_up()
    one.restart_server()
    one.catch_up()
    os.rename(one.directory / "away", one.directory / "spool")
    one.publish()
    one.catch_up()
    one.restart_server()
    one.catch_up()
    assert one.log.got == list(range(11)) and not one.gaps


def test_messages_that_are_refused_do_not_disturb(
    world: Callable[..., World], caplog: pytest.LogCaptureFixture
) -> None:
    """Messages that are too large, and rubbish, are left out and told of once; all others are routed in order."""
    one = world()
    with caplog.at_level(logging.WARNING):
        for number in range(30):
            one.publish(size=2000 if number % 3 == 0 else 1)
            one.spool.append([[b"rubbish"]])
            one.consumer.read()
    assert one.log.got == [number for number in range(30) if number % 3]
    assert [fault.kind for fault in one.faults].count("too_large") == 10
    assert len(one.faults) == 40 and not one.gaps
    assert len(caplog.records) == 1, "the server's own log is not flooded"


def test_finish_waits_for_the_log(world: Callable[..., World]) -> None:
    """The end is told when the last message was routed, not when the log had no room for it."""
    one = world(room=5)
    one.publish(10)
    one.consumer.read()
    one.publish(10)
    finished: list[int] = []
    one.consumer.finish(lambda: finished.append(len(one.log.got)))
    assert not finished
    one.catch_up()
    assert finished == [20]


def test_finish_more_than_once(world: Callable[..., World]) -> None:
    """Each time the end is told once; what another process of the kernel says later is routed as before."""
    one = world()
    one.publish(3)
    one.finish()
    one.finish()
    one.publish(3)
    one.consumer.read()
    assert one.log.got == list(range(6))


def test_spool_that_cannot_be_read(world: Callable[..., World], caplog: pytest.LogCaptureFixture) -> None:
    """It does not keep the end of a kernel from being told, and is read when that is possible again."""
    one = world()
    one.publish(3)
    path = next((one.directory / "spool").glob("*.seg"))
    path.rename(one.directory / "away")
    path.mkdir()
    with caplog.at_level(logging.ERROR):
        for _ in range(10):
            assert not one.consumer.read() and not one.consumer.is_caught_up
        one.finish()
    assert len(caplog.records) == 1 and "cannot be read" in caplog.text
    path.rmdir()
    (one.directory / "away").rename(path)
    one.consumer.close()
    one.consumer.read()
    assert one.log.got == [0, 1, 2] and one.consumer.is_caught_up


def test_without_a_spool_there_is_nothing(tmp_path: Path) -> None:
    """A kernel that has said nothing, or whose spool is gone, is at its end."""
    broker = IopubBroker()
    consumer = SpoolConsumer(broker, Wire(b"key"), tmp_path, SpoolPosition(resume_after_id="m7"))
    finished: list[bool] = []
    consumer.finish(lambda: finished.append(True))
    assert consumer.read() is False
    assert finished == [True] and consumer.is_caught_up
