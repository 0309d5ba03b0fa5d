"""Correlation by parent: each request gets exactly its messages, once and in order."""

from __future__ import annotations

import itertools
import logging
import random
import sys
import threading
import tracemalloc
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from himalia.errors import BadRequest, ConfigurationError
from himalia.iopub.broker import (
    LATENCY_BOUNDS_S,
    TRACE,
    BrokerConfig,
    BrokerStats,
    ExecutionGuard,
    IopubBroker,
)
from himalia.iopub.channels import GlobalSubscriber, RequestChannels
from himalia.iopub.collector import ExecutionCollector
from himalia.jupyter.channels import Channel
from himalia.jupyter.wire import KernelMessage
from tests.jupyter.kernel_messages import message, reply, status

SOON_S = 20.0
UNBOUNDED = BrokerConfig(orphan_buffer_max=1_000_000, orphan_max_age=None, request_timeout=None)


class Clock:
    """Time that moves when it is told to."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s

    def advance(self, seconds: float) -> None:
        self.now_s += seconds


class Recorder:
    """A sink that keeps everything, and is dead after ``lives`` messages."""

    def __init__(self, lives: int | None = None) -> None:
        self.messages: list[KernelMessage] = []
        self.channels: list[Channel] = []
        self.numbers: list[int] = []
        self.expirations = 0
        self._lives = lives

    def deliver(self, message: KernelMessage, channel: Channel, sequence: int) -> bool:
        if self._lives is not None and len(self.messages) >= self._lives:
            return False
        self.messages.append(message)
        self.channels.append(channel)
        self.numbers.append(sequence)
        return True

    def expire(self) -> None:
        self.expirations += 1


class Watcher:
    """A global subscriber that does what the test says with each batch."""

    def __init__(self, act: Callable[[Sequence[KernelMessage]], bool] = lambda _: True) -> None:
        self.messages: list[KernelMessage] = []
        self._act = act

    def offer(self, messages: Sequence[KernelMessage]) -> bool:
        self.messages += messages
        return self._act(messages)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def hasty_threads() -> Iterator[None]:
    """Threads take turns every few instructions, so that what can interleave does."""
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before_s)


@pytest.fixture
def broker(clock: Clock) -> IopubBroker:
    return IopubBroker(clock=clock)


def books_balance(stats: BrokerStats) -> bool:
    """Every message is with a request or was an orphan, and every orphan's fate is known."""
    return (
        stats.messages + stats.claimed == sum(stats.routed.values()) + stats.orphaned
        and stats.orphaned == stats.claimed + stats.expired + stats.evicted + stats.orphan_messages
        and stats.messages == sum(stats.latency.counts)
    )


# Routing


def test_a_message_goes_to_the_request_of_its_parent(broker: IopubBroker) -> None:
    """Requests that run at the same time never see each other's messages."""
    first, second = Recorder(), Recorder()
    broker.register_request("one", first)
    broker.register_request("two", second)
    sent = [message(parent_id="one" if number % 3 else "two") for number in range(30)]
    broker.route_messages(sent)
    assert first.messages == [one for one in sent if one.parent_id == "one"]
    assert second.messages == [one for one in sent if one.parent_id == "two"]


def test_every_type_arrives_in_its_channel(broker: IopubBroker) -> None:
    """clear_output, debug_event and types nobody has heard of are routed like any other."""
    sink = Recorder()
    broker.register_request("r", sink)
    types = ["status", "stream", "clear_output", "comm_open", "debug_event", "invented_here"]
    for msg_type in types:
        broker.route_message(message(msg_type, "r"))
    assert [one.msg_type for one in sink.messages] == types
    assert [channel.value for channel in sink.channels] == [
        "status",
        "stream",
        "display",
        "comm",
        "execution",
        "execution",
    ]
    assert broker.stats().routed == {"status": 1, "execution": 2, "stream": 1, "display": 1, "comm": 1}


def test_the_seeds_example_runs(broker: IopubBroker) -> None:
    """print('hello'), from busy to idle, read from the channels by their names."""
    channels = RequestChannels()
    collector = ExecutionCollector(channels)
    broker.register_request("abc-123", channels)
    broker.route_message(status("busy", "abc-123"))
    broker.route_message(message("execute_input", "abc-123", code="print('hello')"))
    broker.route_message(message("stream", "abc-123", name="stdout", text="hello\n"))
    broker.route_message(status("idle", "abc-123"))
    channels.reply(reply("abc-123"))
    busy, result, output = (
        receiver.recv(0) for receiver in (collector.status_rx, collector.execution_rx, collector.stream_rx)
    )
    assert busy is not None and busy.decoded_content() == {"execution_state": "busy"}
    assert result is not None and result.decoded_content() == {"code": "print('hello')"}
    assert output is not None and output.decoded_content()["text"] == "hello\n"
    assert collector.is_complete
    assert broker.unregister_request("abc-123")
    assert broker.stats().active_requests == 0


steps = st.one_of(
    st.tuples(st.just("route"), st.lists(st.integers(0, 3), min_size=1, max_size=6)),
    st.tuples(st.just("register"), st.lists(st.integers(1, 3), min_size=1, max_size=1)),
    st.tuples(st.just("unregister"), st.lists(st.integers(1, 3), min_size=1, max_size=1)),
)


@given(st.lists(steps, max_size=40))
def test_any_interleaving_gives_each_request_its_messages_once_in_order(
    plan: list[tuple[str, list[int]]],
) -> None:
    """Whenever a request is registered, what was ever routed for it is with its sinks or among the orphans."""
    broker = IopubBroker(UNBOUNDED)
    watcher = Watcher()
    broker.add_global_subscriber(watcher)
    sent: list[KernelMessage] = []
    sinks: dict[str, list[Recorder]] = defaultdict(list)
    active: set[str] = set()
    for step, numbers in plan:
        name = str(numbers[0])
        if step == "route":
            batch = [message(parent_id=str(number) if number else "") for number in numbers]
            sent += batch
            broker.route_messages(batch)
        elif step == "register" and name not in active:
            sinks[name].append(Recorder())
            broker.register_request(name, sinks[name][-1])
            active.add(name)
        elif step == "unregister":
            assert broker.unregister_request(name) == (name in active)
            active.discard(name)
    assert watcher.messages == sent
    check_all_there(broker, sinks, sent)


def check_all_there(
    broker: IopubBroker, sinks: dict[str, list[Recorder]], sent: Sequence[KernelMessage]
) -> None:
    assert books_balance(broker.stats())
    for name in {one.parent_id for one in sent}:
        found = [one for sink in sinks.get(name, []) for one in sink.messages]
        found += broker.claim_orphans(name)
        assert [one.msg_id for one in found] == [one.msg_id for one in sent if one.parent_id == name]
    for sink in itertools.chain(*sinks.values()):
        assert sink.numbers == list(range(len(sink.messages)))


@pytest.mark.usefixtures("hasty_threads")
def test_threads_that_route_and_register_at_once_lose_and_mix_nothing() -> None:
    """Order and completeness hold for every request, however threads interleave."""
    broker = IopubBroker(UNBOUNDED)
    watcher = Watcher()
    broker.add_global_subscriber(watcher)
    sent: list[list[KernelMessage]] = [[] for _ in range(3)]
    sinks: dict[str, list[Recorder]] = defaultdict(list)
    routing = threading.Event()

    def route(router: int) -> None:
        dice = random.Random(router)
        for _ in range(400):
            batch = [message(parent_id=f"{router}-{dice.randrange(4)}") for _ in range(dice.randrange(1, 8))]
            sent[router] += batch
            broker.route_messages(batch)

    def register(router: int) -> None:
        names = itertools.cycle(f"{router}-{number}" for number in range(4))
        while not routing.is_set():
            name = next(names)
            sinks[name].append(Recorder())
            with broker.guard(name, sinks[name][-1]):
                broker.stats()

    def clean() -> None:
        while not routing.is_set():
            broker.cleanup()
            broker.orphans()

    with ThreadPoolExecutor(7) as pool:
        others = [pool.submit(register, router) for router in range(3)] + [pool.submit(clean)]
        try:
            for future in [pool.submit(route, router) for router in range(3)]:
                future.result(60)
        finally:
            routing.set()
        for future in others:
            future.result(60)
    everything = [one for part in sent for one in part]
    assert len(watcher.messages) == len(everything)
    for router in range(3):
        mine = [one for one in watcher.messages if one.parent_id.startswith(f"{router}-")]
        assert mine == sent[router]
    check_all_there(broker, sinks, everything)


def test_numbers_run_across_channels_and_claimed_orphans(broker: IopubBroker) -> None:
    """0, 1, 2, ... in order of arrival, whatever the channel and whenever it was registered."""
    broker.route_messages([message("stream", "r"), message("error", "r")])
    sink = Recorder()
    context = broker.register_request("r", sink)
    broker.route_messages([message("comm_msg", "r"), message("status", "r")])
    assert sink.numbers == [0, 1, 2, 3]
    assert (context.messages, context.claimed) == (4, 2)


def test_an_id_can_be_registered_once_at_a_time(broker: IopubBroker) -> None:
    """A second registration would steal the output of the first."""
    first, second = Recorder(), Recorder()
    broker.register_request("r", first)
    with pytest.raises(BadRequest):
        broker.register_request("r", second)
    broker.route_message(message(parent_id="r"))
    assert len(first.messages) == 1
    assert broker.unregister_request("r")
    broker.register_request("r", second)


def test_a_request_needs_an_id(broker: IopubBroker) -> None:
    """Messages without a parent can never be mistaken for a request's."""
    with pytest.raises(BadRequest):
        broker.register_request("", Recorder())


# Orphans


def test_messages_that_came_before_registration_are_claimed_in_order(broker: IopubBroker) -> None:
    """An early busy is not lost, and comes before anything later."""
    early = [
        status("busy", "r"),
        message("execute_input", "r"),
        message(parent_id="other"),
        message(parent_id="r"),
    ]
    broker.route_messages(early)
    sink = Recorder()
    broker.register_request("r", sink)
    later = message(parent_id="r")
    broker.route_message(later)
    assert sink.messages == [early[0], early[1], early[3], later]
    stats = broker.stats()
    assert (stats.orphaned, stats.claimed, stats.orphan_messages) == (4, 3, 1)


def test_a_message_routed_while_orphans_are_delivered_comes_after_them(broker: IopubBroker) -> None:
    """The router neither overtakes a registration in progress nor waits for it."""
    delivering, go_on = threading.Event(), threading.Event()

    class Slow(Recorder):
        def deliver(self, message: KernelMessage, channel: Channel, sequence: int) -> bool:
            delivering.set()
            assert go_on.wait(SOON_S)
            return super().deliver(message, channel, sequence)

    early, later = message(parent_id="r"), message(parent_id="r")
    sink = Slow()
    broker.route_message(early)
    with ThreadPoolExecutor(1) as pool:
        registering = pool.submit(broker.register_request, "r", sink)
        assert delivering.wait(SOON_S)
        broker.route_message(later)
        assert sink.messages == []
        go_on.set()
        registering.result(SOON_S)
    assert sink.messages == [early, later]


def test_messages_without_parent_can_be_listed_and_claimed(broker: IopubBroker, clock: Clock) -> None:
    """A kernel's global events are orphans of nobody."""
    starting, other = status("starting"), message(parent_id="x")
    broker.route_message(starting)
    clock.advance(5)
    broker.route_message(other)
    assert [(orphan.message, orphan.age_s) for orphan in broker.orphans()] == [(starting, 5.0), (other, 0.0)]
    assert broker.claim_orphans("") == [starting]
    assert broker.claim_orphans("") == []
    assert [orphan.message for orphan in broker.orphans()] == [other]


def test_orphans_can_be_replayed_to_whoever_came_late(broker: IopubBroker) -> None:
    """A monitor sees what it missed, in order, and the orphans stay for their request."""
    sent = [message(parent_id="r"), message(), message(parent_id="r")]
    early, late = Watcher(), Watcher()
    broker.add_global_subscriber(early)
    broker.route_messages(sent)
    assert broker.replay_orphans(late) == 3
    assert late.messages == early.messages == sent
    assert broker.replay_orphans() == 3
    assert early.messages == [*sent, *sent]
    sink = Recorder()
    broker.register_request("r", sink)
    assert sink.messages == [sent[0], sent[2]]
    assert broker.replay_orphans() == 1


def test_old_orphans_expire_and_many_are_evicted(clock: Clock) -> None:
    """1000 at most and 60 seconds at most, as configured."""
    broker = IopubBroker(BrokerConfig(orphan_buffer_max=10, orphan_max_age=60), clock=clock)
    broker.route_messages([message() for _ in range(15)])
    assert broker.stats().evicted == 5
    clock.advance(59)
    broker.route_message(message())
    assert broker.cleanup().expired == 0
    clock.advance(2)
    assert broker.cleanup().expired == 9
    stats = broker.stats()
    assert (stats.expired, stats.evicted, stats.orphan_messages) == (9, 6, 1)
    assert books_balance(stats)


@pytest.mark.parametrize("age", [None, 0])
def test_orphans_without_an_age_limit_stay(clock: Clock, age: float | None) -> None:
    """Then only their number bounds them."""
    broker = IopubBroker(BrokerConfig(orphan_max_age=age), clock=clock)
    broker.route_message(message())
    clock.advance(1e6)
    assert broker.cleanup().expired == 0


# Staleness


def test_stale_means_silent_not_old(clock: Clock) -> None:
    """A cell that runs for an hour and says something now and then keeps its output."""
    broker = IopubBroker(clock=clock)
    sink = Recorder()
    broker.register_request("r", sink)
    for _ in range(15):
        clock.advance(299)
        assert broker.cleanup().stale == ()
        broker.route_message(message(parent_id="r"))
    assert len(sink.messages) == 15


@pytest.mark.parametrize("timeout", [601, 3600, None, 0])
def test_a_ten_minute_silent_cell_is_not_lost(clock: Clock, timeout: float | None) -> None:
    """Where the timeout is longer, or there is none, silence does no harm."""
    broker = IopubBroker(BrokerConfig(request_timeout=timeout), clock=clock)
    sink = Recorder()
    broker.register_request("r", sink)
    broker.route_message(status("busy", "r"))
    for _ in range(20):
        clock.advance(30)
        broker.cleanup_if_due()
    broker.route_messages([message(parent_id="r"), status("idle", "r")])
    assert len(sink.messages) == 3
    assert sink.expirations == 0


def test_a_touch_keeps_a_silent_request_alive(broker: IopubBroker, clock: Clock) -> None:
    """Whoever knows that the kernel still works on it can say so."""
    broker.register_request("r", Recorder())
    for _ in range(5):
        clock.advance(200)
        assert broker.touch("r")
        assert broker.cleanup().stale == ()
    assert not broker.touch("unknown")


def test_a_silent_request_is_told_and_removed(
    broker: IopubBroker, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """Its reader learns at once, the log has a warning, and what comes later is kept as an orphan."""
    channels = RequestChannels()
    collector = ExecutionCollector(channels)
    broker.register_request("r", channels)
    broker.register_request("busy", Recorder())
    clock.advance(300.5)
    broker.route_message(message(parent_id="busy"))
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(collector.collect)
        assert broker.cleanup().stale == ("r",)
        assert reading.result(SOON_S) == []
    assert collector.ended == "stale"
    assert any(entry.levelno == logging.WARNING and "r" in entry.getMessage() for entry in caplog.records)
    late = message(parent_id="r")
    broker.route_message(late)
    again = Recorder()
    broker.register_request("r", again)
    assert again.messages == [late]
    stats = broker.stats()
    assert (stats.stale, stats.active_requests) == (1, 2)


# Slow and dead ones


def test_a_slow_collector_never_stalls_routing(broker: IopubBroker) -> None:
    """Its channels drop their oldest, counted, while others get everything."""
    slow, quick = RequestChannels(limit=10), Recorder()
    broker.register_request("slow", slow)
    broker.register_request("quick", quick)
    for _ in range(1000):
        broker.route_messages([message(parent_id="slow"), message(parent_id="quick")])
    assert len(quick.messages) == 1000
    assert broker.stats().dropped_by_requests == slow.dropped == 990
    broker.unregister_request("slow")
    assert broker.stats().dropped == 990


def test_a_slow_global_subscriber_never_stalls_routing(broker: IopubBroker) -> None:
    """It keeps the newest, and is told how many it missed; the count outlives it."""
    slow, other = GlobalSubscriber(limit=10), Watcher()
    broker.add_global_subscriber(slow)
    broker.add_global_subscriber(other)
    sent = [message() for _ in range(1000)]
    for start in range(0, 1000, 50):
        broker.route_messages(sent[start : start + 50])
    assert other.messages == sent
    assert slow.dropped == 990
    assert [slow.recv(0) for _ in range(11)] == [*sent[-10:], None]
    assert broker.remove_global_subscriber(slow)
    assert broker.stats().dropped_by_subscribers == 990


def test_a_global_subscriber_is_bounded_in_bytes() -> None:
    """Large messages push out older ones; one alone may be as large as it likes."""
    subscriber = GlobalSubscriber(bytes_max=1000)
    subscriber.offer([message(text="x" * 400) for _ in range(5)])
    assert len(subscriber) == 2
    subscriber.offer([message(text="x" * 5000)])
    assert len(subscriber) == 1
    assert subscriber.dropped == 5


def test_a_global_subscriber_is_read_in_another_thread(broker: IopubBroker) -> None:
    """The seed's monitor: it sees everything in order, until it is closed."""
    sent = [message(parent_id="any") for _ in range(500)]
    with ThreadPoolExecutor(1) as pool, GlobalSubscriber() as monitor:
        broker.add_global_subscriber(monitor)
        reading = pool.submit(lambda: list(monitor))
        broker.route_messages(sent)
        monitor.close()
        assert reading.result(SOON_S) == sent


def test_dead_subscribers_are_pruned_and_counted(
    broker: IopubBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """One that says so, one that is closed and one that raises; the others notice nothing."""

    def fail(_: Sequence[KernelMessage]) -> bool:
        raise RuntimeError("the loop is closed")

    closed, well = GlobalSubscriber(), Watcher()
    closed.close()
    for subscriber in (Watcher(lambda _: False), closed, Watcher(fail), well):
        broker.add_global_subscriber(subscriber)
    sent = [message(), message()]
    for one in sent:
        broker.route_message(one)
    assert well.messages == sent
    stats = broker.stats()
    assert (stats.global_subscribers, stats.pruned_subscribers) == (1, 3)
    assert "the loop is closed" in caplog.text


def test_who_is_closed_while_nothing_comes_is_pruned_by_cleanup(broker: IopubBroker) -> None:
    """A silent kernel does not keep the dead registered."""
    channels, monitor = RequestChannels(), GlobalSubscriber()
    broker.register_request("r", channels)
    broker.add_global_subscriber(monitor)
    ExecutionCollector(channels).close()
    monitor.close()
    assert broker.cleanup().pruned == 2
    stats = broker.stats()
    assert (stats.active_requests, stats.global_subscribers) == (0, 0)
    assert (stats.pruned_requests, stats.pruned_subscribers) == (1, 1)


@pytest.mark.parametrize("raises", [True, False])
def test_what_a_dead_request_did_not_take_becomes_an_orphan(broker: IopubBroker, raises: bool) -> None:
    """A request whose reader is gone is pruned, and its messages are there for the next one of that id."""

    class Failing(Recorder):
        def deliver(self, message: KernelMessage, channel: Channel, sequence: int) -> bool:
            if not super().deliver(message, channel, sequence):
                if raises:
                    raise RuntimeError("gone")
                return False
            return True

    dead, next_one = Failing(lives=2), Recorder()
    broker.register_request("r", dead)
    sent = [message(parent_id="r") for _ in range(5)]
    broker.route_messages(sent)
    assert dead.messages == sent[:2]
    stats = broker.stats()
    assert (stats.active_requests, stats.pruned_requests, stats.orphan_messages) == (0, 1, 3)
    assert books_balance(stats)
    broker.register_request("r", next_one)
    assert next_one.messages == sent[2:]


def test_a_dead_request_found_while_claiming_keeps_its_orphans(broker: IopubBroker) -> None:
    """Registering channels that nobody reads loses nothing."""
    sent = [message(parent_id="r") for _ in range(3)]
    broker.route_messages(sent)
    channels = RequestChannels()
    channels.close()
    broker.register_request("r", channels)
    assert broker.claim_orphans("r") == sent


def test_sinks_and_subscribers_may_call_the_broker_back(broker: IopubBroker) -> None:
    """No lock is held while they are called."""

    class Leaving(Recorder):
        def deliver(self, message: KernelMessage, channel: Channel, sequence: int) -> bool:
            broker.unregister_request("r")
            broker.register_request(f"after-{sequence}", Recorder())
            broker.route_message(status("idle", "r"))
            return super().deliver(message, channel, sequence)

    leaving = Leaving()

    def leave(_: Sequence[KernelMessage]) -> bool:
        broker.cleanup()
        return broker.remove_global_subscriber(watcher)

    watcher = Watcher(leave)
    broker.add_global_subscriber(watcher)
    broker.register_request("r", leaving)
    broker.route_message(message(parent_id="r"))
    assert len(leaving.messages) == len(watcher.messages) == 1
    assert broker.stats().active_requests == 1


def test_a_message_routed_by_a_sink_comes_after_the_one_it_is_given(broker: IopubBroker) -> None:
    """A lane is emptied by one at a time, also within one thread."""

    class Echo(Recorder):
        def deliver(self, message_: KernelMessage, channel: Channel, sequence: int) -> bool:
            if sequence == 0:
                broker.route_message(message("comm_msg", "r"))
            return super().deliver(message_, channel, sequence)

    echo = Echo()
    broker.register_request("r", echo)
    broker.route_messages([message("stream", "r"), message("error", "r")])
    assert [one.msg_type for one in echo.messages] == ["stream", "error", "comm_msg"]
    assert echo.numbers == [0, 1, 2]


def test_an_interrupted_delivery_goes_on_with_the_next_message(broker: IopubBroker) -> None:
    """Ctrl-C in a thread that delivers does not block the request for ever, nor repeat anything."""

    class Interrupted(Recorder):
        def deliver(self, message: KernelMessage, channel: Channel, sequence: int) -> bool:
            super().deliver(message, channel, sequence)
            if sequence == 1:
                raise KeyboardInterrupt
            return True

    sink, other = Interrupted(), Recorder()
    broker.register_request("r", sink)
    broker.register_request("other", other)
    with pytest.raises(KeyboardInterrupt):
        broker.route_messages([message(parent_id=name) for name in ("r", "r", "r", "r", "other")])
    broker.route_messages([message(parent_id="r"), message(parent_id="other")])
    assert sink.numbers == [0, 1, 2, 3, 4]
    assert other.numbers == [0, 1]


def test_subscribers_get_a_message_before_its_request_does(broker: IopubBroker) -> None:
    """What a request's reader acts on has been handed to the log already."""
    order: list[str] = []

    class Noting(Recorder):
        def deliver(self, message: KernelMessage, channel: Channel, sequence: int) -> bool:
            order.append("request")
            return True

    broker.register_request("r", Noting())
    broker.add_global_subscriber(Watcher(lambda _: not order.append("subscriber")))
    broker.route_message(message(parent_id="r"))
    assert order == ["subscriber", "request"]


def test_a_subscriber_is_added_once_and_can_be_removed(broker: IopubBroker) -> None:
    """Adding twice does not double its messages; removing one that is not there is no error."""
    watcher = Watcher()
    broker.add_global_subscriber(watcher)
    broker.add_global_subscriber(watcher)
    broker.route_message(message())
    assert len(watcher.messages) == 1
    assert broker.remove_global_subscriber(watcher)
    assert not broker.remove_global_subscriber(watcher)
    broker.route_message(message())
    assert len(watcher.messages) == 1


# The guard


def test_the_guard_unregisters_whatever_happens(broker: IopubBroker) -> None:
    """The seed's guard: no request stays behind after its block."""
    sink = Recorder()
    guard = broker.guard("r", sink)
    assert isinstance(guard, ExecutionGuard)
    assert broker.stats().active_requests == 0
    with guard as context:
        assert (context.request_id, context.channels) == ("r", sink)
        assert broker.stats().active_requests == 1
    assert broker.stats().active_requests == 0
    with pytest.raises(ZeroDivisionError), guard:
        raise ZeroDivisionError
    assert broker.stats().active_requests == 0


# Cleanup, statistics, logging


def test_cleanup_is_due_every_interval(broker: IopubBroker, clock: Clock) -> None:
    """Every 30 seconds, however often it is asked for."""
    assert broker.cleanup_if_due() is None
    clock.advance(30)
    assert broker.cleanup_if_due() is not None
    assert broker.cleanup_if_due() is None
    clock.advance(29)
    assert broker.cleanup_if_due() is None


def test_defaults_are_the_seeds() -> None:
    """1000 orphans for a minute, five minutes of silence, a cleanup every half."""
    config = BrokerConfig()
    assert (config.orphan_buffer_max, config.orphan_max_age) == (1000, 60)
    assert (config.request_timeout, config.cleanup_interval) == (300, 30)


@pytest.mark.parametrize("field", BrokerConfig.__struct_fields__)
def test_a_negative_limit_is_refused(field: str) -> None:
    """A configuration that cannot work is told at once."""
    with pytest.raises(ConfigurationError, match=field):
        BrokerConfig(**{field: -1})


def test_the_latency_histogram_counts_every_message(broker: IopubBroker) -> None:
    """As many buckets as bounds and one more, and each message in one of them."""
    broker.route_messages([message() for _ in range(7)])
    broker.route_message(message())
    broker.route_messages([])
    latency = broker.stats().latency
    assert latency.bounds_s == LATENCY_BOUNDS_S == tuple(sorted(LATENCY_BOUNDS_S))
    assert len(latency.counts) == len(latency.bounds_s) + 1
    assert sum(latency.counts) == 8
    assert latency.sum_s > 0


def test_each_routing_decision_is_logged_at_trace(
    broker: IopubBroker, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """Where each message went, each orphan that expired, and the three counts after a cleanup."""
    caplog.set_level(TRACE, "himalia.iopub.broker")
    broker.register_request("r", Recorder())
    routed, orphan = message("stream", "r"), message("error", "nobody")
    broker.route_messages([routed, orphan])
    clock.advance(61)
    broker.cleanup()
    assert caplog.messages == [
        f"stream {routed.msg_id} goes to stream of request r",
        f"error {orphan.msg_id} goes to the orphans",
        f"orphan {orphan.msg_id} of 'nobody' expired",
        "active requests: 1, orphan messages: 0, global subscribers: 0",
    ]


def test_memory_is_flat_over_many_requests() -> None:
    """Requests that are over leave nothing behind."""
    broker = IopubBroker()

    def run(count: int) -> None:
        for number in range(count):
            channels = RequestChannels()
            with broker.guard(f"request-{number}", channels):
                broker.route_message(message(parent_id=f"request-{number}"))

    run(100)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        run(3000)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 20_000
