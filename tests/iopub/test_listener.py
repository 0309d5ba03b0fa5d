"""The thread that listens to IOPub: kernels that come, break and go."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator, Sequence

import pytest
import zmq

from himalia.iopub.listener import Feed, IopubThread
from himalia.jupyter.connection_file import ConnectionInfo
from himalia.jupyter.wire import Fault, KernelMessage, Wire

FEEDS = 300
DEADLINE_S = 20.0
WIRE = Wire(b"key")


class Received:
    """A listener that remembers the ids of what it got."""

    def __init__(self) -> None:
        self.ids: list[str] = []
        self.has_message = threading.Event()

    def on_messages(self, messages: Sequence[KernelMessage]) -> None:
        self.ids += [message.msg_id for message in messages]
        self.has_message.set()

    def on_faults(self, faults: Sequence[Fault]) -> None: ...

    def periodic(self) -> None: ...


class Publisher:
    """What a kernel publishes, to subscribers that it waits for."""

    def __init__(self) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.XPUB)
        self.connection = ConnectionInfo(0, self._socket.bind_to_random_port("tcp://127.0.0.1"), 0, 0, 0)

    def wait_for_subscriber(self) -> None:
        assert self._socket.poll(DEADLINE_S * 1000), "no subscriber came: the thread's I/O is blocked"
        assert self._socket.recv() == b"\x01"

    def publish(self, msg_id: str) -> None:
        self._socket.send_multipart(WIRE.encode("stream", {}, msg_id=msg_id)[1])

    def close(self) -> None:
        self._context.destroy(linger=0)


@pytest.fixture
def publishers() -> Iterator[tuple[Publisher, Publisher]]:
    made = Publisher(), Publisher()
    yield made
    for publisher in made:
        publisher.close()


@pytest.mark.timeout(90)
def test_a_feed_that_is_closed_while_it_connects_holds_up_no_other(
    publishers: tuple[Publisher, Publisher],
) -> None:
    """All feeds share one I/O thread of ZeroMQ, which none may block by closing at any moment; and the thread stops."""
    busy, other = publishers
    thread = IopubThread()
    thread.start()
    chance = random.Random(13)
    for _ in range(FEEDS):
        feed = Feed(busy.connection, WIRE, Received(), on_break=lambda: None)
        thread.add(feed)
        time.sleep(chance.random() * 0.002)
        thread.remove(feed)
    got = Received()
    thread.add(Feed(other.connection, WIRE, got, on_break=lambda: None))
    other.wait_for_subscriber()
    other.publish("m")
    assert got.has_message.wait(DEADLINE_S) and got.ids == ["m"]
    thread.stop()
