"""Following a kept kernel: its keeper is its only listener, and what the keeper wrote down is read at once."""

from __future__ import annotations

import asyncio
import os
import re
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
import zmq

from himalia.iopub.broker import IopubBroker
from himalia.iopub.listener import BrokerListener, Feed, IopubThread
from himalia.jupyter.connection_file import ConnectionInfo
from himalia.jupyter.wire import Fault, KernelMessage, Wire, WireLimits
from himalia.keeper.spool import Spool
from himalia.keeper.spool_consumer import BATCH_MAX, SpoolConsumer, SpoolFeed, SpoolPosition
from himalia.kernels.request import Code
from tests.kernels.hosts import (
    Hosting,
    events,
    hosting,
    names,
    printed,
    repeated,
    text_of,
    until,
    until_recorded,
)

__all__ = ["hosting"]

DEADLINE_S = 30.0
WIRE = Wire(b"key", limits=WireLimits(1000))


class Got:
    """What was routed, by all kernels of a test, and who waits for it."""

    def __init__(self) -> None:
        self.ids: list[str] = []
        self.on_message: Callable[[str], None] = lambda msg_id: None
        self._changed = threading.Condition()

    def offer(self, messages: Sequence[KernelMessage]) -> bool:
        with self._changed:
            self.ids += [message.msg_id for message in messages]
            self._changed.notify_all()
        for message in messages:
            self.on_message(message.msg_id)
        return True

    def wait_for(self, msg_id: str) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: msg_id in self.ids, DEADLINE_S), f"{msg_id} never came"


class Kept:
    """A spool, and the socket at which its keeper is followed."""

    def __init__(self, directory: Path, name: str, got: Got, *, is_there: bool = True) -> None:
        self._name = name
        directory = directory / name
        directory.mkdir()
        self.spool = Spool(directory)
        self._listener = socket.socket(socket.AF_UNIX)
        if is_there:
            self._listener.bind(str(directory / "keeper.sock"))
            self._listener.listen()
        self.connection: socket.socket | None = None
        self._writing = threading.Lock()  # A keeper writes from one thread; some tests do from two.
        broker = IopubBroker()
        broker.add_global_subscriber(got)
        self.consumer = SpoolConsumer(broker, WIRE, directory, SpoolPosition())
        self.feed = SpoolFeed(self.consumer, str(directory / "keeper.sock"))

    def accept(self) -> None:
        self.connection, _ = self._listener.accept()
        assert b'"follow"' in self.connection.recv(1000)

    def write(self, *numbers: int) -> None:
        for number in numbers:
            _, frames = WIRE.encode("stream", {"text": ""}, msg_id=f"{self._name}{number}")
            with self._writing:
                self.spool.append([frames])

    def notify(self) -> None:
        assert self.connection is not None
        self.connection.send(b"\n")

    def close(self) -> None:
        self.spool.close()
        self._listener.close()
        if self.connection is not None:
            self.connection.close()


@pytest.fixture
def got() -> Got:
    return Got()


@pytest.fixture
def thread() -> Iterator[IopubThread]:
    made = IopubThread()
    made.start()
    yield made
    made.stop()


@pytest.fixture
def kept(tmp_path: Path, got: Got, thread: IopubThread) -> Iterator[Callable[..., Kept]]:
    made: list[Kept] = []

    def make(name: str = "a", **options: bool) -> Kept:
        made.append(Kept(tmp_path, name, got, **options))
        return made[-1]

    yield make
    thread.stop()
    for one in made:
        one.close()


@pytest.fixture
def only_notices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is read just because some time has passed."""
    monkeypatch.setattr("himalia.iopub.listener.POLL_MS", 3_600_000)


# What has the spool read


@pytest.mark.usefixtures("only_notices")
def test_a_notice_has_the_spool_read(kept: Callable[..., Kept], got: Got, thread: IopubThread) -> None:
    """What was there before is read at once, and whatever comes with its notice."""
    one = kept()
    one.write(0)
    thread.add(one.feed)
    one.accept()
    got.wait_for("a0")
    for number in range(1, 50):
        one.write(number)
        one.notify()
        got.wait_for(f"a{number}")
    assert got.ids == [f"a{number}" for number in range(50)]


@pytest.mark.usefixtures("only_notices")
def test_a_notice_that_comes_while_the_spool_is_read_is_not_lost(
    kept: Callable[..., Kept], got: Got, thread: IopubThread
) -> None:
    """What is written after the reader has looked, and before it waits again, is read all the same."""
    one = kept()

    def write_another(msg_id: str) -> None:
        number = int(msg_id.removeprefix("a"))
        if number < 50:
            one.write(number + 1)
            one.notify()

    got.on_message = write_another
    thread.add(one.feed)
    one.accept()
    one.write(0)
    one.notify()
    got.wait_for("a50")
    assert got.ids == [f"a{number}" for number in range(51)]


@pytest.mark.usefixtures("only_notices")
def test_one_notice_is_enough_for_many_messages(
    kept: Callable[..., Kept], got: Got, thread: IopubThread
) -> None:
    """More than a batch is read to its end without waiting for another notice."""
    one = kept()
    thread.add(one.feed)
    one.accept()
    last = 3 * BATCH_MAX
    one.write(*range(last + 1))
    one.notify()
    got.wait_for(f"a{last}")
    assert got.ids == [f"a{number}" for number in range(last + 1)]


@pytest.mark.usefixtures("only_notices")
def test_a_kernel_with_much_to_read_does_not_keep_others_waiting(
    kept: Callable[..., Kept], got: Got, thread: IopubThread
) -> None:
    """Each has its turn after a batch."""
    long, short = kept("long"), kept("short")
    last = 20 * BATCH_MAX
    long.write(*range(last + 1))
    short.write(0)
    both_added = threading.Event()
    # Otherwise it would depend on the machine how far the first is read before the second is there.
    thread.call(lambda: both_added.wait(DEADLINE_S))
    thread.add(long.feed)
    thread.add(short.feed)
    both_added.set()
    got.wait_for(f"long{last}")
    assert got.ids.index("short0") <= 3 * BATCH_MAX


def test_without_notices_the_spool_is_read_now_and_then(
    kept: Callable[..., Kept], got: Got, thread: IopubThread
) -> None:
    """A keeper that nobody can follow does not keep its spool from being read."""
    one = kept(is_there=False)
    thread.add(one.feed)
    for number in range(3):
        one.write(number)
        got.wait_for(f"a{number}")
    assert got.ids == ["a0", "a1", "a2"]


def test_a_keeper_that_goes_is_no_longer_waited_for(
    kept: Callable[..., Kept], got: Got, thread: IopubThread
) -> None:
    """Its connection, which is readable for ever then, is let go; what it left is read."""
    one = kept()
    thread.add(one.feed)
    one.accept()
    one.write(0)
    one.notify()
    got.wait_for("a0")
    assert one.connection is not None
    one.connection.close()
    one.write(1)
    got.wait_for("a1")
    # What is new may be found by the periodic look, before the end of the connection is.
    until_s = time.monotonic() + DEADLINE_S
    while watched_by(thread) and time.monotonic() < until_s:
        pass
    assert not watched_by(thread) and one.feed.source is None


def watched_by(thread: IopubThread) -> int:
    """How many sources the thread waits for, as it sees it itself."""
    looked = threading.Event()
    watched: list[int] = []
    thread.call(lambda: (watched.append(len(thread._watched)), looked.set()))  # type: ignore[func-returns-value]
    assert looked.wait(DEADLINE_S)
    return watched[0]


def test_a_feed_that_is_removed_leaves_nothing_open(
    kept: Callable[..., Kept], got: Got, thread: IopubThread
) -> None:
    """Neither the spool's file nor the connection to the keeper."""
    one = kept()
    one.write(0)
    before = psutil.Process().num_fds()
    thread.add(one.feed)
    one.accept()
    got.wait_for("a0")
    assert psutil.Process().num_fds() == before + 3, "two of ours, one of the keeper's"
    thread.remove(one.feed)
    assert one.feed.closed.wait(DEADLINE_S)
    assert one.connection is not None
    one.connection.close()
    assert psutil.Process().num_fds() == before


# Kernels without a keeper


class Published:
    """What a foreign kernel publishes, and a feed that hears it."""

    def __init__(self, got: Got) -> None:
        self.faults: list[Fault] = []
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.XPUB)
        self._socket.linger = 0
        port = self._socket.bind_to_random_port("tcp://127.0.0.1")
        broker = IopubBroker()
        broker.add_global_subscriber(got)
        listener = BrokerListener(broker, self.faults.extend)
        self.feed = Feed(ConnectionInfo(0, port, 0, 0, 0), WIRE, listener)
        self.feed.open(self._context)
        assert self._socket.recv() == b"\x01"

    def publish(self, msg_type: str, msg_id: str, *, size: int = 0) -> None:
        _, frames = WIRE.encode(msg_type, {"text": "x" * size}, msg_id=msg_id)
        self._socket.send_multipart(frames)
        assert self.feed.source is not None and self.feed.source.poll(DEADLINE_S * 1000)

    def close(self) -> None:
        self.feed.close()
        self._context.destroy(linger=0)


@pytest.fixture
def published(got: Got) -> Iterator[Published]:
    made = Published(got)
    yield made
    made.close()


def test_without_a_keeper_all_is_live(published: Published, got: Got) -> None:
    """A foreign kernel's messages are routed as they come, and those that are refused are told of."""
    for number in range(5):
        published.publish("stream", f"m{number}", size=2000 if number == 3 else 0)
        published.feed.drain()
    assert got.ids == ["m0", "m1", "m2", "m4"]
    assert [fault.kind for fault in published.faults] == ["too_large"]


def test_a_flood_without_a_keeper_is_let_gather(
    published: Published, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages that come thick are taken in batches, until the kernel says that it has ended something."""
    now_s = 1000.0

    class Time:
        @staticmethod
        def monotonic() -> float:
            return now_s

    monkeypatch.setattr("himalia.iopub.listener.time", Time)
    flooding = []
    for number in range(100):
        now_s += 0.001
        published.publish("stream", f"m{number}")
        published.feed.drain()
        flooding.append(published.feed.is_flooding)
    assert not any(flooding[:15]) and all(flooding[-50:])
    published.publish("status", "idle")
    published.feed.drain()
    assert not published.feed.is_flooding


# Real kernels


def flood_between(go: Path, done: Path) -> str:
    # Each line in one write: the end of a line that is written by itself may become a message of its own.
    return (
        f"import os, sys, time\nsys.stdout.write('waits\\n'); sys.stdout.flush()\n"
        f"while not os.path.exists({str(go)!r}): time.sleep(.01)\n"
        f"for i in range(2000):\n sys.stdout.write(f'{{i}}\\n'); sys.stdout.flush()\n"
        f"open({str(done)!r}, 'w').close()"
    )


def numbers_after(first: str, text: str) -> list[int]:
    """The numbers that were printed after a line."""
    line, *lines = text.splitlines()
    assert line == first
    return [int(each) for each in lines]


def is_spooled(directory: Path, number: int) -> bool:
    """Whether some spool in the directory has this number, printed: at the beginning of a line, and whole."""
    printed = re.compile(rb'(?:"|\\n)%d(?:"|\\n)' % number)
    for segment in directory.rglob("*.seg"):
        with suppress(FileNotFoundError):
            if printed.search(segment.read_bytes()):
                return True
    return False


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="another process's connections are seen on Linux only")
async def test_a_kept_kernel_has_one_listener(hosting: Hosting) -> None:
    """The keeper, and nobody else: each listener costs the kernel a send for every message."""
    await hosting.open()
    kernel = await hosting.start()
    assert kernel.process is not None

    def listeners() -> int:
        assert kernel.process is not None
        port = kernel.process.connection.iopub_port
        return sum(
            connection.status == psutil.CONN_ESTABLISHED and connection.laddr.port == port
            for connection in psutil.Process(kernel.process.pid).net_connections("tcp")
        )

    assert (await hosting.run(kernel, "print(1)")).status == "ok"
    assert listeners() == 1
    # So that the count is known to count.
    await hosting.client(kernel.process.directory / "connection.json")
    assert listeners() == 2


@pytest.mark.slow
async def test_a_kernel_whose_notices_are_cut_off_is_heard(hosting: Hosting) -> None:
    """If the connection by which a keeper tells of what comes is lost, nothing else is."""
    await hosting.open()
    kernel = await hosting.start()
    assert kernel.connector._connection is not None
    feed = kernel.connector._connection._feed
    assert isinstance(feed, SpoolFeed) and feed._notices is not None
    feed._notices.shutdown(socket.SHUT_RDWR)
    await until(lambda: feed.source is None)
    for number in range(3):
        result = await hosting.run(kernel, f"print({number})")
        assert (result.status, text_of(result)) == ("ok", f"{number}\n")
    assert not repeated(await hosting.records(kernel.id))


@pytest.mark.slow
async def test_flood_beyond_the_spool_while_no_server_was_there(hosting: Hosting) -> None:
    """What the spool had no room for is missing, and told; the rest is there, once and in order, to the end."""
    server = await hosting.serve(kernel_spool_bytes=100_000)
    kernel_id = (await server.ask("start"))["kernel"]
    go, done = hosting.directory / "go", hosting.directory / "done"
    code = flood_between(go, done)
    request_id = (await server.ask("execute", kernel=kernel_id, code=code))["request"]
    await server.ask("printed", kernel=kernel_id, text="waits")
    server.kill()
    go.touch()
    await until(done.exists)

    await hosting.open()
    found = await until_recorded(hosting, kernel_id, lambda found: "request_closed" in names(found))
    numbers = numbers_after("waits", printed(found, request_id))
    assert numbers == list(range(numbers[0], 2000))
    assert [gap["count"] for gap in events(found, "gap")] == [numbers[0]] and numbers[0] > 0
    assert not repeated(found)


@pytest.mark.slow
async def test_flood_beyond_the_spool_of_a_keeper_that_is_gone(hosting: Hosting) -> None:
    """The same of a spool that is found without its keeper."""
    server = await hosting.serve(kernel_spool_bytes=100_000)
    started = await server.ask("start")
    kernel_id = started["kernel"]
    go, done = hosting.directory / "go", hosting.directory / "done"
    code = flood_between(go, done)
    await server.ask("execute", kernel=kernel_id, code=code)
    await server.ask("printed", kernel=kernel_id, text="waits")
    keeper = psutil.Process(started["pid"]).parent()
    assert keeper is not None
    server.kill()
    go.touch()
    # Not when the kernel has printed it: the keeper may have heard little of it then.
    await until(lambda: is_spooled(hosting.directory, 1999))
    os.kill(keeper.pid, signal.SIGKILL)
    await until(lambda: not hosting.left())

    await hosting.open()
    found = await hosting.records(kernel_id)
    numbers = numbers_after("waits", printed(found))
    assert numbers == list(range(numbers[0], numbers[-1] + 1))
    assert [gap["count"] for gap in events(found, "gap")] == [numbers[0]] and numbers[0] > 0


@pytest.mark.slow
async def test_messages_that_the_disk_did_not_take_before_the_end_are_told_of(hosting: Hosting) -> None:
    """A kernel that ends while its disk stays full leaves a gap in its topic, with the number of what is missing."""
    host = await hosting.open()
    kernel = await hosting.start()
    assert kernel.process is not None
    assert (await hosting.run(kernel, "1")).status == "ok"
    keeper = psutil.Process(kernel.process.pid).parent()
    assert keeper is not None
    resource.prlimit(keeper.pid, resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
    mark = hosting.directory / "done"
    code = f"print('unheard', flush=True)\nopen({str(mark)!r}, 'w').close()\nimport time; time.sleep(1000)"
    await kernel.execute(Code(code=code))
    await until(mark.exists)
    os.kill(kernel.process.pid or 0, signal.SIGKILL)
    await asyncio.wait_for(kernel.process.exited, DEADLINE_S)
    await until(lambda: not host.kernels)
    found = await hosting.records(kernel.id)
    assert "unheard" not in printed(found)
    (gap,) = events(found, "gap")
    assert gap["count"] >= 3 and "disk" in gap["reason"]
    assert names(found)[-1] == "died"
