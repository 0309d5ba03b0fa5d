"""Reading a request's messages: by channel, in order of arrival, or by what they say."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from himalia.iopub.channels import RequestChannels
from himalia.iopub.collector import ExecutionCollector, Receiver
from himalia.jupyter.channels import Channel, channel_of
from himalia.jupyter.wire import KernelMessage
from tests.jupyter.kernel_messages import message, reply, status

SOON_S = 20.0


class Pair:
    """Both sides of a request."""

    def __init__(self, limit: int = 10_000) -> None:
        self.channels = RequestChannels(limit)
        self.collector = ExecutionCollector(self.channels)
        self._next = 0

    def send(self, *messages: KernelMessage) -> None:
        for one in messages:
            self.channels.deliver(one, channel_of(one.msg_type), self._next)
            self._next += 1

    def complete(self) -> None:
        self.send(status("idle"))
        self.channels.reply(reply())


@pytest.fixture
def pair() -> Pair:
    return Pair()


def in_thread(call: Callable[[], object]) -> Future[object]:
    pool = ThreadPoolExecutor(1)
    future = pool.submit(call)
    pool.shutdown(wait=False)
    return future


def test_each_receiver_reads_its_channel(pair: Pair) -> None:
    """The five receivers of the seed, by their names."""
    sent = [message(kind) for kind in ("status", "error", "stream", "display_data", "comm_open")]
    pair.send(*sent)
    collector = pair.collector
    receivers: list[Receiver] = [
        collector.status_rx,
        collector.execution_rx,
        collector.stream_rx,
        collector.display_rx,
        collector.comm_rx,
    ]
    assert [len(receiver) for receiver in receivers] == [1] * 5
    assert [receiver.recv(0) for receiver in receivers] == sent
    assert [receiver.recv(0) for receiver in receivers] == [None] * 5


def test_recv_waits_for_a_message(pair: Pair) -> None:
    """A reader that came first is woken by the message."""
    reading = in_thread(lambda: pair.collector.recv(Channel.STREAM, SOON_S))
    sent = message()
    pair.send(status("busy"), sent)
    assert reading.result(SOON_S) is sent


def test_a_wait_ends_when_the_request_is_complete(pair: Pair) -> None:
    """A cell without a result does not keep the reader of results waiting."""
    waits = [
        in_thread(lambda: pair.collector.recv(Channel.EXECUTION)),
        in_thread(lambda: pair.collector.wait_for(lambda one: one.msg_type == "error")),
        in_thread(lambda: pair.collector.wait_complete()),
    ]
    pair.complete()
    assert [wait.result(SOON_S) for wait in waits] == [None, None, True]


def test_a_wait_ends_when_the_kernel_dies(pair: Pair) -> None:
    """Death is an answer too, and what came before it can be read."""
    sent = message()
    reading = in_thread(lambda: pair.collector.collect())
    pair.send(sent)
    pair.channels.end("died")
    assert reading.result(SOON_S) == [sent]
    assert pair.collector.is_complete
    assert pair.collector.ended == "died"


def test_a_wait_ends_when_the_collector_is_closed(pair: Pair) -> None:
    """Closing sets every waiting thread free."""
    reading = in_thread(lambda: pair.collector.collect())
    pair.collector.close()
    assert reading.result(SOON_S) == []


def test_a_wait_ends_in_time(pair: Pair) -> None:
    """A timeout gives what there is, and says that it is not all."""
    assert pair.collector.recv(Channel.STREAM, 0.01) is None
    sent = message()
    pair.send(sent)
    assert pair.collector.collect(0.01) == [sent]
    assert not pair.collector.is_complete
    assert not pair.collector.wait_complete(0.01)


@given(
    st.lists(st.sampled_from(["status", "stream", "error", "display_data", "comm_msg", "new"]), max_size=30)
)
def test_order_of_arrival_is_kept_across_channels(types: list[str]) -> None:
    """Whatever the types, all messages come back in the order in which they came, with their numbers."""
    pair = Pair()
    sent = [message(msg_type) for msg_type in types]
    pair.send(*sent)
    found = pair.collector.in_order()
    assert [item.message for item in found] == sent
    assert [item.sequence for item in found] == list(range(len(sent)))
    assert pair.collector.in_order() == []


def test_a_hole_in_the_numbers_is_what_was_dropped() -> None:
    """A reader that fell behind can tell exactly what it missed."""
    pair = Pair(limit=5)
    pair.send(*(message("stream" if number % 2 else "error") for number in range(30)))
    numbers = [item.sequence for item in pair.collector.in_order()]
    assert len(set(range(30)) - set(numbers)) == pair.collector.dropped == 20


def test_collect_reads_a_flood_larger_than_the_channels() -> None:
    """Collecting takes messages as they come, so that what was read in time is not dropped."""
    pair = Pair(limit=100)
    read_up = threading.Semaphore(0)
    seen: list[KernelMessage] = []

    def read() -> None:
        for one in pair.collector.follow(SOON_S):
            seen.append(one)
            read_up.release()

    reading = in_thread(read)
    sent = [message() for _ in range(1000)]
    for start in range(0, 1000, 100):
        pair.send(*sent[start : start + 100])
        for _ in range(100):
            assert read_up.acquire(timeout=SOON_S)
    pair.complete()
    reading.result(SOON_S)
    assert seen[:-1] == sent
    assert pair.collector.dropped == 0


def test_collect_gives_everything_in_order_and_the_reply_beside_it(pair: Pair) -> None:
    """A whole execution, from busy to idle."""
    sent = [status("busy"), message("execute_input"), message(), message("execute_result")]
    pair.send(*sent)
    pair.complete()
    collected = pair.collector.collect()
    assert collected[:-1] == sent
    assert pair.collector.is_idle
    reply_ = pair.collector.reply
    assert reply_ is not None
    assert reply_.msg_type == "execute_reply"


def test_wait_for_takes_the_first_that_fits_and_leaves_the_rest(pair: Pair) -> None:
    """Nothing is lost by waiting for something else."""
    sent = [status("busy"), message(text="a"), message("execute_input"), message(text="b")]
    pair.send(*sent)
    assert pair.collector.wait_for(lambda one: one.msg_type == "execute_input", SOON_S) is sent[2]
    assert pair.collector.wait_for(lambda one: one.msg_type == "execute_input", 0) is None
    assert [item.message for item in pair.collector.in_order()] == [sent[0], sent[1], sent[3]]


def test_wait_for_sees_what_comes_later_once(pair: Pair) -> None:
    """Each message is asked about once, however often the waiting thread is woken."""
    asked: list[KernelMessage] = []

    def is_error(one: KernelMessage) -> bool:
        asked.append(one)
        return one.msg_type == "error"

    waiting = in_thread(lambda: pair.collector.wait_for(is_error, SOON_S))
    sent = [message() for _ in range(50)]
    pair.send(*sent)
    last = message("error")
    pair.send(last)
    assert waiting.result(SOON_S) is last
    assert asked == [*sent, last]


def test_a_slow_question_does_not_hold_up_delivery(pair: Pair) -> None:
    """While a predicate thinks, the router goes on."""
    thinking, go_on = threading.Event(), threading.Event()

    def slow(_: KernelMessage) -> bool:
        thinking.set()
        return go_on.wait(SOON_S)

    waiting = in_thread(lambda: pair.collector.wait_for(slow, SOON_S))
    first = message()
    pair.send(first)
    assert thinking.wait(SOON_S)
    pair.send(message())
    assert pair.channels.waiting() == 2
    go_on.set()
    assert waiting.result(SOON_S) is first


def test_many_readers_share_without_reading_twice() -> None:
    """Several threads on one channel get each message once between them."""
    pair = Pair()
    sent = [message() for _ in range(2000)]

    def read() -> list[KernelMessage]:
        found = []
        while (one := pair.collector.recv(Channel.STREAM, SOON_S)) is not None:
            found.append(one)
        return found

    with ThreadPoolExecutor(4) as pool:
        readers = [pool.submit(read) for _ in range(4)]
        pair.send(*sent)
        pair.complete()
        found = [one for reader in readers for one in reader.result(SOON_S)]
    assert sorted(one.msg_id for one in found) == sorted(one.msg_id for one in sent)
