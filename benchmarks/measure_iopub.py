"""Measure receiving a kernel's messages by bare ZeroMQ, jupyter_client and Himalia, on the same stream.

The messages wait in the receiver's queue before the clock starts, so that only receiving is measured.
"""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median

import zmq
from jupyter_client.session import Session

from benchmarks.bench import Bench
from benchmarks.iopub_source import KEY, REQUEST_ID
from benchmarks.section import Section, Target, spread
from himalia.iopub.broker import IopubBroker
from himalia.iopub.listener import BrokerListener, Feed
from himalia.jupyter.channels import Channel
from himalia.jupyter.connection_file import ConnectionInfo
from himalia.jupyter.wire import KernelMessage, Wire

ARRIVE_S = 1.0
BARE, JUPYTER, HIMALIA = "pyzmq, receive only", "jupyter_client Session", "Himalia: receive, verify, route"


def measure(bench: Bench) -> list[Section]:
    count = bench.scale.iopub_messages
    section = Section(
        key="iopub",
        title=f"IOPub: {count:,} stream messages, received, verified and routed",
        columns=("receiver", "messages/s, median", "least – most", "µs each"),
    )
    ways = {BARE: _bare, JUPYTER: _jupyter, HIMALIA: _himalia}
    bench.expect(bench.scale.rounds * len(ways), "iopub")
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(bench.scale.rounds):
        for name, receive in ways.items():
            bench.report(f"iopub: {name}")
            rates[name].append(count / _time(receive, count))
            bench.advance()
    for name, measured in rates.items():
        typical = median(measured)
        section.rows.append([name, f"{typical:,.0f}", spread(measured), f"{1e6 / typical:.1f}"])
    ours = median(rates[HIMALIA])
    section.targets.append(Target(f"rate, against {JUPYTER}", ours / median(rates[JUPYTER]), 3.0))
    section.targets.append(Target(f"rate, against {BARE}", ours / median(rates[BARE]), 0.5))
    section.data.update(rates)
    return [section]


Work = Callable[[int], None]


def _time(open_receiver: Callable[["zmq.Context[zmq.Socket[bytes]]", int], Work], count: int) -> float:
    with _source(count) as (port, wait_until_sent):
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        try:
            receive = open_receiver(context, port)
            wait_until_sent()
            started = time.perf_counter()
            receive(count)
            return time.perf_counter() - started
        finally:
            context.destroy(linger=0)


@contextmanager
def _source(count: int) -> Iterator[tuple[int, Callable[[], None]]]:
    command = [sys.executable, "-m", "benchmarks.iopub_source", str(count)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None and process.stdout is not None
    said = process.stdout

    def wait_until_sent() -> None:
        if said.readline().strip() != "sent":
            raise RuntimeError("the source of messages ended early")
        time.sleep(ARRIVE_S)

    try:
        yield int(said.readline()), wait_until_sent
    finally:
        process.stdin.close()
        process.wait(10)
        said.close()


def _subscribed(context: "zmq.Context[zmq.Socket[bytes]]", port: int) -> "zmq.Socket[bytes]":
    socket = context.socket(zmq.SUB)
    socket.rcvhwm = 0
    socket.subscribe(b"")
    socket.connect(f"tcp://127.0.0.1:{port}")
    return socket


def _bare(context: "zmq.Context[zmq.Socket[bytes]]", port: int) -> Work:
    socket = _subscribed(context, port)

    def receive(count: int) -> None:
        for _ in range(count):
            socket.recv_multipart()

    return receive


def _jupyter(context: "zmq.Context[zmq.Socket[bytes]]", port: int) -> Work:
    socket = _subscribed(context, port)
    session = Session(key=KEY)

    def receive(count: int) -> None:
        for _ in range(count):
            _, frames = session.feed_identities(socket.recv_multipart())
            session.deserialize(frames)

    return receive


class _Counting:
    """A request that only counts its messages."""

    def __init__(self) -> None:
        self.delivered = 0

    def deliver(self, message: KernelMessage, channel: Channel, sequence: int) -> None:
        self.delivered += 1

    def expire(self) -> None: ...


def _himalia(context: "zmq.Context[zmq.Socket[bytes]]", port: int) -> Work:
    broker, request = IopubBroker(), _Counting()
    broker.register_request(REQUEST_ID, request)
    connection = ConnectionInfo(0, port, 0, 0, 0)
    feed = Feed(connection, Wire(KEY), BrokerListener(broker))
    feed.open(context)

    def receive(count: int) -> None:
        while request.delivered < count:
            feed.drain()

    return receive
