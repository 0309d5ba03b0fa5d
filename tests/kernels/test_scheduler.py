"""The scheduler: one request at a time, each closed once, on a real log and broker, with the test as the kernel."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from himalia.errors import ExecutionNotFound, LogUnavailable, TooManyRequests
from himalia.iopub.broker import BrokerConfig, IopubBroker
from himalia.jupyter.lifecycle import RequestState
from himalia.jupyter.records import event_draft
from himalia.jupyter.request_events import EventKind, RequestEvent
from himalia.jupyter.wire import KernelMessage, Wire
from himalia.kernels import scheduler as module
from himalia.kernels.history import read_execution
from himalia.kernels.recovery import encode_abandoned, has_ended, open_requests
from himalia.kernels.request import Code, Request, queued_state
from himalia.kernels.scheduler import RequestScheduler
from himalia.kernels.topic_writer import TopicWriter
from himalia.log import open_log
from himalia.log.api import Appended, Batch, Log
from himalia.record import Record, now_us
from tests.kernels.hosts import ended, events, records, until

TOPIC = "kernels.k"


class Stage:
    """A scheduler between a topic of a log and a kernel that the test plays."""

    name = TOPIC
    kernel_id = "k"

    def __init__(self, log: Log) -> None:
        self.log = log
        self.gate = asyncio.Event()
        self.gate.set()
        self.now_s = 0.0
        self.is_behind = False
        self.interrupts = 0
        self.is_full = False
        self.attempts = 0
        self.sent: list[str] = []
        self._wire = Wire(b"")
        self._messages: dict[str, KernelMessage] = {}
        config = BrokerConfig(request_timeout=300, cleanup_interval=30)
        self.broker = IopubBroker(config, clock=lambda: self.now_s)
        self.topic_writer = TopicWriter(self, bytes_max=1 << 30)
        self.broker.add_global_subscriber(self.topic_writer)
        self.scheduler = RequestScheduler(self.broker, self.topic_writer, self, queue_max=3)
        self.scheduler.resume()

    def publish(self, batch: Batch) -> asyncio.Future[Appended]:
        self.attempts += 1

        async def append() -> Appended:
            await self.gate.wait()
            if self.is_full:
                raise LogUnavailable("no space is left on the disk")
            return await self.log.append(batch)

        return asyncio.ensure_future(append())

    async def create(self) -> None:
        raise AssertionError("no test deletes the topic")

    def send_request(self, request: Request) -> KernelMessage:
        code = {"code": request.code.code}
        message, _ = self._wire.encode("execute_request", code, msg_id=request.id)
        self.sent.append(request.code.code)
        self._messages[request.id] = message
        return message

    async def interrupt(self, caller: str) -> None:
        self.interrupts += 1

    def message(self, request: Request, msg_type: str, **content: Any) -> KernelMessage:
        """As the kernel makes it, at this moment."""
        parent = (
            self._messages.get(request.id) or self._wire.encode("execute_request", {}, msg_id=request.id)[0]
        )
        return self._wire.encode(msg_type, content, parent=parent)[0]

    def say(self, request: Request, msg_type: str, **content: Any) -> None:
        """As the kernel, on IOPub."""
        self.broker.route_message(self.message(request, msg_type, **content))

    def begin(self, request: Request) -> None:
        self.say(request, "status", execution_state="busy")
        self.say(request, "execute_input", code=request.code.code, execution_count=1)

    def idle(self, request: Request) -> None:
        self.say(request, "status", execution_state="idle")

    def reply(self, request: Request, status: str = "ok") -> None:
        content = {"status": status, "execution_count": 1}
        message, _ = self._wire.encode("execute_reply", content, parent=self._messages[request.id])
        self.scheduler.on_reply(message)

    def complete(self, request: Request, status: str = "ok") -> None:
        self.begin(request)
        self.reply(request, status)
        self.idle(request)

    async def records(self) -> list[Record]:
        await self.topic_writer.flush()
        return await records(self.log, TOPIC)

    async def statuses(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for event in events(await self.records(), "request_closed"):
            found.setdefault(event["of"], []).append(event["status"])
        return found


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    log = open_log(f"sqlite://{tmp_path}/log.db")
    await log.open()
    await log.create(TOPIC)
    made = Stage(log)
    yield made
    made.gate.set()
    await made.scheduler.finish()
    await made.topic_writer.close()
    await log.close()


async def test_one_at_a_time(stage: Stage) -> None:
    """The next request is sent when the kernel is done with the one before."""
    first = await stage.scheduler.submit(Code(code="a"))
    second = await stage.scheduler.submit(Code(code="b"))
    assert stage.sent == ["a"]
    stage.complete(first)
    assert await ended(first) == "ok"
    assert stage.sent == ["a", "b"]
    stage.complete(second, "error")
    assert await ended(second) == "error"
    assert not stage.scheduler.is_busy and stage.broker.stats().active_requests == 0


@pytest.mark.parametrize("first", ["idle", "reply"])
async def test_done_when_both_have_come(stage: Stage, first: str) -> None:
    """Neither idle nor reply alone ends a request, in whichever order they come."""
    request = await stage.scheduler.submit(Code(code="a"))
    stage.begin(request)
    (stage.idle if first == "idle" else stage.reply)(request)
    await stage.topic_writer.flush()
    assert not request.closed.done()
    (stage.reply if first == "idle" else stage.idle)(request)
    assert await ended(request) == "ok"


async def test_told_after_it_is_committed(stage: Stage) -> None:
    """Whoever waits for a request is told when the record of its end is stored, not before."""
    request = await stage.scheduler.submit(Code(code="a"))
    stage.gate.clear()
    stage.complete(request)
    await until(lambda: not stage.scheduler.is_busy)
    assert not request.closed.done()
    stage.gate.set()
    assert await ended(request) == "ok"
    found = await stage.records()
    assert events(found)[-1]["event"] == "request_closed"


async def test_running_request_outlives_cleanup(stage: Stage) -> None:
    """A request that is running is not taken for closed when the broker cleans up."""
    request = await stage.scheduler.submit(Code(code="a"))
    stage.begin(request)
    for _ in range(5):
        stage.now_s += 100
        stage.scheduler.touch()
        stage.broker.cleanup()
    stage.reply(request)
    stage.idle(request)
    assert await ended(request) == "ok"


async def test_stale_request_is_closed_and_its_kernel_may_come_back(stage: Stage) -> None:
    """A request that the broker gives up is closed as stale; the queue goes on when the kernel is done after all."""
    request = await stage.scheduler.submit(Code(code="a"))
    behind = await stage.scheduler.submit(Code(code="b"))
    stage.begin(request)
    stage.now_s += 301
    stage.broker.cleanup()
    assert await ended(request) == "stale"
    assert stage.sent == ["a"]
    stage.reply(request)
    stage.idle(request)
    await until(lambda: stage.sent == ["a", "b"])
    stage.complete(behind)
    assert await ended(behind) == "ok"
    assert (await stage.statuses())[request.id] == ["stale"]


@pytest.mark.parametrize("which", ["idle", "reply"])
async def test_half_an_answer(stage: Stage, which: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """If only one of idle and reply comes, the request ends after a while; but not while messages wait unheard."""
    monkeypatch.setattr(module, "SETTLE_S", 0.05)
    request = await stage.scheduler.submit(Code(code="a"))
    stage.is_behind = True
    stage.begin(request)
    (stage.idle if which == "idle" else stage.reply)(request)
    looked = asyncio.Event()
    asyncio.get_running_loop().call_later(0.2, looked.set)
    await looked.wait()
    assert not request.closed.done()
    stage.is_behind = False
    assert await ended(request) == "ok"
    assert events(await stage.records(), "request_closed")[0]["reason"].startswith("the kernel")
    assert not stage.scheduler.is_busy


async def test_queue_has_a_limit(stage: Stage) -> None:
    """More requests than may wait are refused, and those are nowhere in the topic."""
    for _ in range(4):
        await stage.scheduler.submit(Code(code="a"))
    with pytest.raises(TooManyRequests):
        await stage.scheduler.submit(Code(code="too many"))
    assert len(events(await stage.records(), "request_queued")) == 4


async def test_cancel_before_it_has_begun(stage: Stage) -> None:
    """The interrupt of a request that was sent waits until the kernel has begun with it, and comes once."""
    request = await stage.scheduler.submit(Code(code="a"))
    behind = await stage.scheduler.submit(Code(code="b"))
    stage.scheduler.cancel(request.id)
    assert await ended(request) == "cancelled"
    assert stage.interrupts == 0
    stage.begin(request)
    await until(lambda: stage.interrupts == 1)
    stage.reply(request, "error")
    stage.idle(request)
    await until(lambda: stage.sent == ["a", "b"])
    stage.complete(behind)
    assert await ended(behind) == "ok"
    assert stage.interrupts == 1
    with pytest.raises(ExecutionNotFound):
        stage.scheduler.cancel(request.id)


async def test_interrupt_of_a_kernel_that_does_not_say_that_it_began(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel that never echoes what it runs is interrupted all the same."""
    monkeypatch.setattr(module, "BEGIN_WITHIN_S", 0.05)
    request = await stage.scheduler.submit(Code(code="a"))
    stage.scheduler.cancel(request.id)
    await until(lambda: stage.interrupts == 1)


async def test_late_reply_does_not_close_again(stage: Stage) -> None:
    """A request has one end: what comes after it changes nothing."""
    request = await stage.scheduler.submit(Code(code="a", timeout_s=0))
    assert await ended(request) == "timeout"
    stage.complete(request)
    await until(lambda: not stage.scheduler.is_busy)
    assert await stage.statuses() == {request.id: ["timeout"]}


async def test_whoever_submitted_goes_away(stage: Stage) -> None:
    """A submit that is cancelled meanwhile leaves a request that runs, ends, and that recovery would find."""
    stage.gate.clear()
    submitting = asyncio.create_task(stage.scheduler.submit(Code(code="a")))
    await until(lambda: stage.scheduler.queued == 1)
    submitting.cancel()
    await asyncio.wait({submitting})
    stage.gate.set()
    second = await stage.scheduler.submit(Code(code="b"))
    await stage.topic_writer.flush()
    assert [one.code for one in await open_requests(stage.log, TOPIC)] == ["a", "b"]
    request = stage.scheduler.active
    assert request is not None and request.offset == 0
    stage.complete(request)
    assert await ended(request) == "ok"
    stage.complete(second)
    assert await ended(second) == "ok"
    assert await open_requests(stage.log, TOPIC) == []


async def test_a_request_is_sent_when_it_is_committed(stage: Stage) -> None:
    """Not before: a caller whose request was refused may retry, and the code must not run twice."""
    stage.gate.clear()
    submitting = asyncio.create_task(stage.scheduler.submit(Code(code="a")))
    await until(lambda: stage.attempts == 1)
    assert stage.sent == [] and stage.scheduler.queued == 1
    stage.gate.set()
    await submitting
    assert stage.sent == ["a"]
    stage.complete(await submitting)


async def test_a_log_that_cannot_store_refuses_a_request_at_once(stage: Stage) -> None:
    """It is closed and never runs; the next ones are refused without a record; with space the rest continues."""
    stage.is_full = True
    for code in ("a", "b"):
        with pytest.raises(LogUnavailable, match="no space"):
            await asyncio.wait_for(stage.scheduler.submit(Code(code=code)), 5)
    assert stage.scheduler.queued == 0 and not stage.scheduler.is_busy
    stage.is_full = False
    await stage.topic_writer.flush()
    request = await stage.scheduler.submit(Code(code="c"))
    assert stage.sent == ["c"]
    stage.complete(request)
    assert await ended(request) == "ok"
    told = events(await stage.records())
    assert [event["code"] for event in told if event["event"] == "request_queued"] == ["a", "c"]
    assert [event["status"] for event in told if event["event"] == "request_closed"] == ["aborted", "ok"]


async def test_a_request_that_was_refused_holds_up_no_other(stage: Stage) -> None:
    """One of lower priority that is committed already is sent when the first in line is withdrawn."""
    first = await stage.scheduler.submit(Code(code="first"))
    behind = await stage.scheduler.submit(Code(code="behind"))
    stage.gate.clear()
    urgent = asyncio.create_task(stage.scheduler.submit(Code(code="urgent", priority=1)))
    await until(lambda: stage.scheduler.queued == 2)
    stage.complete(first)
    assert stage.sent == ["first"]
    stage.is_full = True
    stage.gate.set()
    with pytest.raises(LogUnavailable):
        await urgent
    stage.is_full = False
    assert stage.sent == ["first", "behind"]
    stage.complete(behind)
    assert await ended(behind) == "ok"


async def test_end_all_closes_each_once(stage: Stage) -> None:
    """The end of the kernel closes the running request and all that wait, once each."""
    requests = [await stage.scheduler.submit(Code(code=str(n))) for n in range(4)]
    stage.begin(requests[0])
    stage.scheduler.close_all(module.ExecutionStatus.DIED, "it died")
    stage.scheduler.close_all(module.ExecutionStatus.ABORTED, "again")
    assert {await ended(request) for request in requests} == {"died"}
    assert all(statuses == ["died"] for statuses in (await stage.statuses()).values())
    assert stage.sent == ["0"] and stage.broker.stats().active_requests == 0


async def test_a_later_server_closes_a_request_with_the_same_fields(stage: Stage) -> None:
    """The record that closes a request has one shape, whether the server that ran it writes it or a later one."""
    request = await stage.scheduler.submit(Code(code="a"))
    stage.complete(request)
    await ended(request)
    [closed] = events(await stage.records(), "request_closed")
    left = queued_state(Code(code="a"))
    later = json.loads(encode_abandoned("k", left, "gone").payload)["content"]
    assert later.keys() == closed.keys() - {"of", "open_since"}
    assert later["finished_us"] > 0


async def test_log_gives_up(stage: Stage) -> None:
    """Where the end of a request cannot be stored, whoever waits for it does not wait for ever."""
    request = await stage.scheduler.submit(Code(code="a"))
    stage.gate.clear()
    stage.complete(request)
    await until(lambda: not stage.scheduler.is_busy)
    stage.topic_writer.cancel()
    assert await ended(request) == "ok"


# What an earlier server left


async def left_open(stage: Stage) -> list[RequestState]:
    await stage.topic_writer.flush()
    return await open_requests(stage.log, TOPIC)


async def test_recovery_finds_all_that_are_open(stage: Stage) -> None:
    """Of many requests, those without an end are found, in their order, with what is known of each."""
    requests = []
    for number in range(40):
        request = await stage.scheduler.submit(Code(code=str(number), priority=number % 3, timeout_s=99))
        requests.append(request)
        if stage.scheduler.queued == 3:
            active = stage.scheduler.active
            assert active is not None
            stage.complete(active)
            await ended(active)
    running = stage.scheduler.active
    assert running is not None
    stage.begin(running)
    found = await left_open(stage)
    open_now = [request for request in requests if not request.closed.done()]
    assert [one.request_id for one in found] == [request.id for request in open_now]
    assert [one.was_sent for one in found] == [request is running for request in open_now]
    assert all(one.timeout_s == 99 for one in found)


async def successor(stage: Stage) -> Stage:
    """Another server on the same log: the first one is as good as dead."""
    stage.scheduler.detach()
    later = Stage(stage.log)
    for one in await left_open(stage):
        later.scheduler.adopt(one, now_us())
    return later


async def test_adopted_request_ends_with_its_idle(stage: Stage) -> None:
    """A request of an earlier server is done when its idle comes: its reply went to that server."""
    request = await stage.scheduler.submit(Code(code="a"))
    waiting = await stage.scheduler.submit(Code(code="b"))
    stage.begin(request)
    later = await successor(stage)
    adopted = later.scheduler.find(request.id)
    assert adopted is not None
    later.say(adopted, "error", ename="E", evalue="", traceback=[])
    later.idle(adopted)
    assert await ended(adopted) == "error"
    assert await later.statuses() == {request.id: ["error"], waiting.id: ["aborted"]}
    assert later.broker.stats().active_requests == 0


async def test_adopted_request_counts_as_long_as_it_ran(stage: Stage) -> None:
    """The metric counts a request that ended while no server was there as REST does: until its idle, not until a
    server came."""
    request = await stage.scheduler.submit(Code(code="a"))
    stage.begin(request)
    idle = stage.message(request, "status", execution_state="idle")
    later = await successor(stage)
    await asyncio.sleep(0.3)
    adopted = later.scheduler.find(request.id)
    assert adopted is not None and adopted.offset is not None
    later.broker.route_message(idle)
    assert await ended(adopted) == "ok"
    result = await read_execution(stage.log, TOPIC, "k", request.id, adopted.offset)
    assert result.run_us is not None and result.run_us < 300_000
    assert sum(later.scheduler.runs.counts) == 1
    assert later.scheduler.runs.sum_s == pytest.approx(result.run_us / 1e6)


async def test_adopted_request_keeps_its_time_limit(stage: Stage) -> None:
    """The time that a request may take goes on counting under the next server."""
    request = await stage.scheduler.submit(Code(code="a", timeout_s=0.2))
    stage.begin(request)
    later = await successor(stage)
    adopted = later.scheduler.find(request.id)
    assert adopted is not None
    assert await ended(adopted) == "timeout"
    await until(lambda: later.interrupts == 1)


async def test_adopted_request_whose_end_nobody_heard(stage: Stage) -> None:
    """When the kernel answers something later, what was adopted and not done is closed: nothing waits for ever."""
    request = await stage.scheduler.submit(Code(code="a"))
    stage.begin(request)
    later = await successor(stage)
    mine = await later.scheduler.submit(Code(code="mine"))
    later.scheduler.close_unanswered()
    assert later.sent == ["mine"]
    later.complete(mine)
    assert await ended(mine) == "ok"
    assert (await later.statuses())[request.id] == ["stale"]


async def test_two_adopted_requests(stage: Stage) -> None:
    """Two requests that were sent, because the end of the first was not stored in time, both end; none leaks."""
    first = await stage.scheduler.submit(Code(code="a"))
    second = await stage.scheduler.submit(Code(code="b"))
    stage.scheduler.detach()
    later = Stage(stage.log)
    for one in await left_open(stage):
        sent = one.apply(RequestEvent(kind=EventKind.SENT, us=1))  # as the spool tells
        later.scheduler.adopt(sent, now_us())
    requests = [later.scheduler.find(one.id) for one in (first, second)]
    for request in requests:
        assert request is not None
        later.begin(request)
        later.idle(request)
        assert await ended(request) == "ok"
    assert later.broker.stats().active_requests == 0 and not later.scheduler.is_busy


async def test_has_ended(stage: Stage) -> None:
    """A topic tells whether its kernel has ended by its last record."""
    assert await has_ended(stage.log, TOPIC)
    await stage.topic_writer.append(event_draft("k", "started"))
    assert not await has_ended(stage.log, TOPIC)
    await stage.topic_writer.append(event_draft("k", "died"))
    assert await has_ended(stage.log, TOPIC)
