"""Executions read back from the log."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from himalia.errors import EpochChanged, TopicNotFound
from himalia.iopub.result import ExecutionResult
from himalia.jupyter.records import to_message
from himalia.kernels import history
from himalia.kernels.history import ExecutionBuilder, find_request, last_iopub, read_execution
from himalia.log import Batch, Chunk
from himalia.protocol.models import ExecutionStatus
from himalia.record import Draft, Record, Retention
from tests.jupyter.request_records import (
    KERNEL,
    REQUEST,
    TOPIC,
    clear,
    display,
    error,
    event,
    iopub,
    message,
    record,
    reply,
    request,
    result,
    status,
    stream,
    update,
)
from tests.log.backends import KINDS, Backend, Clock, eventually, soon

OTHER = "request-2"


@pytest.fixture(params=KINDS)
async def backend(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Backend]:
    backend = Backend(request.param, tmp_path, Clock())
    yield backend
    await backend.close()


@pytest.fixture
async def log(backend: Backend) -> Any:
    log = await backend.open()
    await log.create(TOPIC)
    return log


class Counting:
    """A log that notes what was read of another, and can do something before each read."""

    def __init__(self, log: Any) -> None:
        self._log = log
        self.offsets: list[int] = []
        self.before_read: Any = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    async def read(self, topic: str, start: int, **options: Any) -> Chunk:
        if self.before_read is not None:
            await self.before_read()
        chunk: Chunk = await self._log.read(topic, start, **options)
        self.offsets += [record.offset for record in chunk.records]
        return chunk


async def store(log: Any, *drafts: Draft) -> Sequence[int]:
    offsets: list[int] = []
    for at in range(0, len(drafts), 4000):
        offsets += (await soon(log.append(Batch(TOPIC, drafts[at : at + 4000])))).offsets
    return offsets


async def read(log: Any, start: int = 0, request_id: str = REQUEST, **options: Any) -> ExecutionResult:
    return await soon(read_execution(log, TOPIC, KERNEL, request_id, start, **options))


def closed(status: str = "ok", request_id: str = REQUEST, **data: Any) -> Draft:
    return event("request_closed", request_id, status=status, **data)


def printed(text: str, request_id: str = REQUEST) -> Draft:
    return iopub(stream(text, parent_id=request_id))


def run_of(code: str = "1 + 1") -> list[Draft]:
    """A request's life without its close."""
    return [
        event("request_queued", code=code),
        request(code),
        iopub(status("busy")),
        iopub(message("execute_input", {"code": code, "execution_count": 3})),
        printed("hello "),
        printed("world\n"),
        iopub(result({"text/plain": "2"}, 3)),
        iopub(status("idle")),
        reply({"status": "ok", "execution_count": 3}),
    ]


class TestReadingAnExecution:
    async def test_the_log_tells_the_whole_story(self, log: Any) -> None:
        """Code, count, outputs, status, counts and place of a closed request come from its records alone."""
        await store(
            log, printed("before", OTHER), *run_of(), closed(execution_count=3), printed("after", OTHER)
        )
        found = await read(log, 1)
        assert (found.request_id, found.kernel_id, found.topic) == (REQUEST, KERNEL, TOPIC)
        assert (found.status, found.code, found.execution_count) == (ExecutionStatus.OK, "1 + 1", 3)
        assert [one["output_type"] for one in found.outputs] == ["stream", "execute_result"]
        assert found.outputs[0]["text"] == "hello world\n"
        assert found.counts == {"shell": 2, "status": 2, "execution": 2, "stream": 2}
        assert (found.offset, found.end) == (1, 11)
        assert (found.truncated, found.dropped, found.malformed) == (False, 0, 0)

    async def test_reading_twice_gives_the_same(self, log: Any) -> None:
        """A result may be asked for any number of times, from the first record or from before it."""
        await store(log, *[printed("x", OTHER) for _ in range(5)], *run_of(), closed())
        assert await read(log, 0) == await read(log, 0) == await read(log, 5)

    async def test_a_request_runs_until_it_is_closed(self, log: Any) -> None:
        """Neither idle nor the reply ends a request, for more may be behind them; the closing record does."""
        await store(log, *run_of())
        running = await read(log)
        assert (running.status, running.finished_us) == (ExecutionStatus.RUNNING, None)
        assert running.outputs[0]["text"] == "hello world\n"
        await store(log, closed())
        assert (await read(log)).status == ExecutionStatus.OK

    @pytest.mark.parametrize("name", ["ok", "error", "aborted", "died", "timeout", "cancelled", "stale"])
    async def test_the_closing_record_names_the_status(self, log: Any, name: str) -> None:
        """Whatever the kernel said, the status and its reason are those of the close."""
        await store(log, *run_of(), closed(name, reason="because"))
        found = await read(log)
        assert (found.status, found.reason) == (name, "because")

    @pytest.mark.parametrize("name", ["running", "something new", None, 5])
    async def test_a_close_is_an_end_whatever_it_says(self, log: Any, name: Any) -> None:
        """A closed request is never read as running: an unknown status is an error."""
        await store(log, *run_of(), closed(name))
        assert (await read(log)).status == ExecutionStatus.ERROR

    async def test_an_error_is_told_with_its_traceback(self, log: Any) -> None:
        """The error is in the outputs and by itself."""
        await store(log, request("1/0"), iopub(error("E", "v", ["t1", "t2"])), closed("error"))
        found = await read(log)
        assert found.error is not None
        assert (found.error.ename, found.error.evalue, found.error.traceback) == ("E", "v", ["t1", "t2"])
        assert found.outputs[0]["output_type"] == "error"

    async def test_an_error_that_only_the_reply_has_is_told(self, log: Any) -> None:
        """A silent request's error comes by the shell alone."""
        failed = {"status": "error", "ename": "E", "evalue": "v", "traceback": [], "execution_count": 8}
        await store(log, request(), reply(failed), closed("error"))
        found = await read(log)
        assert found.error is not None and found.error.ename == "E"
        assert (found.outputs, found.execution_count) == ([], 8)

    async def test_displays_and_clearing_are_applied(self, log: Any) -> None:
        """Outputs read from the log are what a front end would have shown at the end."""
        said = [
            stream("gone"),
            clear(wait=True),
            display({"text/plain": "1"}, "d"),
            update({"text/plain": "2"}, "d"),
        ]
        await store(log, request(), *map(iopub, said), closed())
        assert [one["data"] for one in (await read(log)).outputs] == [{"text/plain": "2"}]

    async def test_the_code_is_known_without_the_request(self, log: Any) -> None:
        """A foreign client's request does not pass through us: its code is the one that the kernel repeats."""
        await store(log, *run_of("x = 1")[3:])
        found = await read(log)
        assert (found.code, found.offset, found.execution_count) == ("x = 1", None, 3)

    async def test_a_request_that_nobody_made_has_nothing(self, log: Any) -> None:
        """Without a record there is an empty result that runs; ``find_request`` tells the difference."""
        await store(log, *run_of(), closed())
        found = await read(log, request_id="nobody's")
        assert (found.status, found.outputs, found.offset, found.end) == ("running", [], None, 0)

    async def test_a_topic_that_is_gone_is_not_found(self, log: Any) -> None:
        """Reading of a topic that does not exist fails as everywhere."""
        with pytest.raises(TopicNotFound):
            await read_execution(log, "kernels.none", KERNEL, REQUEST, 0)


class TestIsolation:
    async def test_only_records_of_the_request_count(self, log: Any) -> None:
        """Of requests whose output is interleaved, each result has its own."""
        mixed = [printed(f"{name}{n} ", name) for n in range(50) for name in (REQUEST, OTHER)]
        await store(log, request(), request("other", OTHER), *mixed, closed(), closed("error", OTHER))
        first, second = await read(log), await read(log, request_id=OTHER)
        assert first.outputs[0]["text"] == "".join(f"{REQUEST}{n} " for n in range(50))
        assert second.outputs[0]["text"] == "".join(f"{OTHER}{n} " for n in range(50))
        assert (first.status, second.status) == ("ok", "error")
        assert (first.code, second.code) == ("1 + 1", "other")

    async def test_payloads_of_others_are_not_decoded(self, log: Any) -> None:
        """Records of other requests are known by their headers: what their payloads hold does not matter."""
        unreadable = Draft("u", b"\xff not a message", printed("x", OTHER).headers)
        await store(log, request(), unreadable, printed("mine"), closed())
        found = await read(log)
        assert (found.outputs[0]["text"], found.malformed) == ("mine", 0)

    async def test_an_unreadable_record_of_its_own_is_counted(self, log: Any) -> None:
        """Nothing that stands in the log can make reading it fail."""
        unreadable = [
            Draft(f"u{n}", body, printed("x").headers) for n, body in enumerate([b"", b"{}", b"\xff"])
        ]
        alien = Draft("alien", b"{}", b"not json")
        await store(log, request(), *unreadable, alien, iopub(stream(5)), printed("mine"), closed())
        found = await read(log)
        assert (found.outputs[0]["text"], found.malformed) == ("mine", 4)

    async def test_a_kernel_cannot_close_a_request_itself(self, log: Any) -> None:
        """An event counts only on our own channel, not when a kernel sends something like it over IOPub."""
        forged = iopub(message("kernel_event", {"event": "request_closed", "status": "ok"}))
        await store(log, request(), forged, printed("more"))
        found = await read(log)
        assert (found.status, found.outputs[0]["text"]) == ("running", "more")


class TestTimes:
    async def test_the_close_tells_all_times(self, log: Any) -> None:
        """Where the closing record has the times, they are the result's."""
        times = {"queued_us": 10, "sent_us": 20, "started_us": 30, "finished_us": 40}
        await store(log, *run_of(), closed(**times))
        found = await read(log)
        assert (found.queued_us, found.sent_us, found.started_us, found.finished_us) == (10, 20, 30, 40)

    async def test_else_the_records_do(self, backend: Backend, log: Any) -> None:
        """Queued, sent, first busy and closed have each the time of their own record."""
        began = backend.clock.now_us
        said = [
            [event("request_queued")],
            [request()],
            [iopub(status("busy"))],
            [iopub(status("busy"))],
            [closed(started_us=None)],
        ]
        for drafts in said:
            await store(log, *drafts)
            backend.clock.advance(1)
        found = await read(log)
        times = (found.queued_us, found.sent_us, found.started_us, found.finished_us)
        assert times == (began, began + 1_000_000, began + 2_000_000, began + 4_000_000)
        assert found.timings.ran_s == 2.0

    async def test_a_queued_request_has_not_started(self, log: Any) -> None:
        """What has not happened has no time; what is asked is known all the same."""
        await store(log, event("request_queued", code="x"))
        found = await read(log)
        assert (found.status, found.code, found.offset) == ("running", "x", 0)
        assert found.queued_us is not None
        assert (found.sent_us, found.started_us, found.finished_us) == (None, None, None)


class TestLateOutput:
    async def test_is_left_out_unless_asked_for(self, log: Any) -> None:
        """A result ends with its close; with ``late`` what a thread printed afterwards is in it too."""
        late = [printed("late"), printed("not mine", OTHER), printed(" later")]
        await store(log, *run_of(), closed(), *late)
        assert (await read(log)).outputs[0]["text"] == "hello world\n"
        found = await read(log, late=True)
        assert found.outputs[-1]["text"] == "late later"
        assert (found.status, found.end) == ("ok", 13)

    async def test_the_first_close_counts(self, log: Any) -> None:
        """A second close, as after a crash in between, changes nothing."""
        await store(log, *run_of(), closed(), closed("died"))
        assert (await read(log, late=True)).status == "ok"

    async def test_what_is_written_while_reading_is_not_read(self, log: Any) -> None:
        """A reader stops at the end that the topic had when it began, so a flood cannot keep it for ever."""
        await store(log, request(), printed("0"))
        counting = Counting(log)

        async def write_more() -> None:
            await store(log, printed("more"))

        counting.before_read = write_more
        found = await read(counting, late=True)
        assert (found.outputs[0]["text"], found.end) == ("0", 2)


class TestChunks:
    async def test_it_reads_no_further_than_the_close(self, log: Any) -> None:
        """What lies behind the close is not read, but for the rest of the last chunk."""
        after = [printed("x", OTHER) for _ in range(3 * history.CHUNK_RECORDS)]
        await store(log, *run_of(), closed(), *after)
        counting = Counting(log)
        await read(counting)
        assert len(counting.offsets) <= history.CHUNK_RECORDS

    async def test_each_record_is_read_once(self, log: Any) -> None:
        """A long output costs one reading of its records."""
        lines = [printed(f"{n}\n") for n in range(2 * history.CHUNK_RECORDS + 7)]
        await store(log, request(), *lines, closed())
        counting = Counting(log)
        found = await read(counting)
        assert found.outputs[0]["text"] == "".join(f"{n}\n" for n in range(len(lines)))
        assert counting.offsets == list(range(len(lines) + 2))

    async def test_the_loop_goes_on_between_chunks(self, log: Any) -> None:
        """Reading a long output does not keep the event loop from others."""
        turns = 0

        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        await store(log, request(), *[printed("x") for _ in range(5 * history.CHUNK_RECORDS)])
        task = asyncio.ensure_future(others())
        await read(log)
        task.cancel()
        assert turns >= 5

    async def test_a_limit_on_the_outputs_is_told(self, log: Any) -> None:
        """Outputs beyond ``bytes_max`` are cut, and the result says so."""
        await store(log, request(), printed("x" * 1000), closed())
        assert (await read(log, bytes_max=500)).truncated
        assert not (await read(log)).truncated

    async def test_a_topic_that_was_replaced_is_not_mixed_with_its_successor(self, log: Any) -> None:
        """A topic that is deleted and made again while it is read fails with ``EpochChanged``."""
        await store(log, request(), printed("old"))
        counting = Counting(log)

        async def replace() -> None:
            await log.delete(TOPIC)
            await log.create(TOPIC)

        counting.before_read = replace
        with pytest.raises(EpochChanged):
            await read(counting)


class TestLoss:
    async def test_a_beginning_that_is_no_longer_kept_is_told(self, backend: Backend) -> None:
        """Where retention has passed a request's beginning, the result is what is left, and says so."""
        log = await keeping(backend, 4)
        await store(log, request(), *[printed(f"{n}") for n in range(9)], closed())
        await trimmed(log, 7)
        found = await read(log)
        assert (found.truncated, found.offset, found.outputs[0]["text"]) == (True, None, "678")
        assert found.status == "ok"

    async def test_what_was_lost_before_the_request_does_not_matter(self, backend: Backend) -> None:
        """A request that is kept whole is whole, wherever reading was to begin."""
        log = await keeping(backend, 3)
        await store(log, *[printed("x", OTHER) for _ in range(9)], request(), printed("a"), closed())
        await trimmed(log, 9)
        found = await read(log, 0)
        assert (found.truncated, found.offset, found.outputs[0]["text"]) == (False, 9, "a")

    async def test_gaps_and_oversized_messages_are_counted(self, log: Any) -> None:
        """Messages lost while a request was open count in it, whether they were known to be its own or not."""
        await store(
            log,
            event("gap", "", count=100),
            request(),
            event("gap", "", count=5),
            event("message_too_large", size_bytes=1 << 30),
            event("message_too_large", OTHER, size_bytes=1 << 30),
            event("interrupted", ""),
            event("gap", "", reason="nobody counted"),
            closed(),
        )
        assert (await read(log)).dropped == 7


class TestFinding:
    @pytest.mark.parametrize("after", [0, 1, 249, 250, 251, 9000])
    async def test_a_request_is_found_however_far_back(self, log: Any, after: int) -> None:
        """The request's offset is found from the end backwards, over any number of windows."""
        await store(log, printed("x", OTHER), request(), *[printed("x") for _ in range(after)])
        assert await find_request(log, TOPIC, REQUEST) == 1

    async def test_what_is_near_costs_little(self, log: Any) -> None:
        """Of a long topic only a first window is read to find a recent request."""
        await store(log, *[printed("x", OTHER) for _ in range(4999)], event("request_queued"), request())
        counting = Counting(log)
        assert await find_request(counting, TOPIC, REQUEST) == 4999
        assert len(counting.offsets) <= history.WINDOW_MIN

    async def test_nothing_is_read_twice(self, log: Any) -> None:
        """A search in vain reads each record once, also where a window holds more bytes than one read."""
        large = [printed("x" * 10_000) for _ in range(600)]
        await store(log, *large)
        counting = Counting(log)
        assert await find_request(counting, TOPIC, REQUEST) is None
        assert sorted(counting.offsets) == list(range(600))

    async def test_a_request_begins_where_it_was_queued(self, log: Any) -> None:
        """Output may be stored before the request that caused it, but not before the record of its queueing."""
        between = [printed("x", OTHER) for _ in range(1000)]
        await store(log, printed("x", OTHER), event("request_queued"), *between, printed("early"), request())
        assert await find_request(log, TOPIC, REQUEST) == 1
        assert (await read(log, 1)).outputs[0]["text"] == "early"

    async def test_a_request_that_was_never_sent_is_found(self, log: Any) -> None:
        """Of one that was aborted in the queue there is no ``execute_request``."""
        await store(log, event("request_queued", code="x"), closed("aborted"), printed("x", OTHER))
        start = await find_request(log, TOPIC, REQUEST)
        assert start == 0
        found = await read(log, start)
        assert (found.status, found.code, found.offset) == ("aborted", "x", 0)

    async def test_only_the_request_itself_is_one(self, log: Any) -> None:
        """Neither another type with that id nor a record that names it as parent is the request."""
        await store(log, iopub(stream("x", msg_id=REQUEST)), printed("x"), event("request_closed"))
        assert await find_request(log, TOPIC, REQUEST) is None

    async def test_an_empty_topic_has_none(self, log: Any) -> None:
        """Where nothing is, nothing is found."""
        assert await find_request(log, TOPIC, REQUEST) is None
        assert await last_iopub(log, TOPIC) is None

    async def test_the_search_ends_where_retention_is(self, backend: Backend) -> None:
        """A search does not go on below the oldest record that is kept, even if that moves meanwhile."""
        log = await keeping(backend, 300)
        await store(log, *[printed("x") for _ in range(300)])
        counting = Counting(log)

        async def push_out() -> None:
            counting.before_read = None
            await store(log, *[printed("y") for _ in range(300)])
            await trimmed(log, 300)

        counting.before_read = push_out
        assert await find_request(counting, TOPIC, REQUEST) is None
        assert len(counting.offsets) <= history.WINDOW_MIN


class TestTheLastMessageOfIopub:
    async def test_is_the_newest_of_the_five_channels(self, log: Any) -> None:
        """Shell traffic and events of our own that came later do not hide it."""
        last = stream("last", msg_id="the last")
        await store(
            log, printed("x"), iopub(last), reply({}), event("died", ""), *[reply({}) for _ in range(600)]
        )
        found = await last_iopub(log, TOPIC)
        assert found is not None and to_message(found).msg_id == "the last"

    @pytest.mark.parametrize("msg_type", ["status", "error", "stream", "display_data", "comm_msg", "strange"])
    async def test_every_type_counts(self, log: Any, msg_type: str) -> None:
        """A message of any type, known or not, is one."""
        await store(log, iopub(message(msg_type, {}, msg_id="m")))
        found = await last_iopub(log, TOPIC)
        assert found is not None and to_message(found).msg_id == "m"

    async def test_is_told_by_its_own_id(self, log: Any) -> None:
        """It is the kernel's id, to be compared with the kernel's messages, also if it is stored under another."""
        await store(log, iopub(stream("x", msg_id="a\nb" * 200)))
        found = await last_iopub(log, TOPIC)
        assert found is not None and to_message(found).msg_id == "a\nb" * 200


class TestTheFold:
    @given(st.lists(st.sampled_from([REQUEST, OTHER, ""]), max_size=30))
    def test_others_make_no_difference(self, parents: list[str]) -> None:
        """A fold over a topic is the fold over the request's own records."""
        stored = [record(printed(f"{n} ", parent), n) for n, parent in enumerate(parents)]
        mine = [one for one, parent in zip(stored, parents, strict=True) if parent == REQUEST]
        assert fold_of(stored) == fold_of(mine)

    def test_a_result_can_be_had_at_any_time(self) -> None:
        """The fold goes on after a result was taken from it, and that result stays as it was."""
        fold = ExecutionBuilder(REQUEST, kernel_id=KERNEL, topic=TOPIC)
        fold.add(record(printed("a"), 0))
        early = fold.result()
        fold.add(record(printed("b"), 1))
        assert early.outputs[0]["text"] == "a" and early.counts == {"stream": 1}
        assert fold.result().outputs[0]["text"] == "ab"

    def test_a_result_can_be_sent(self) -> None:
        """Whatever is in it, a result encodes to JSON."""
        fold = ExecutionBuilder(REQUEST, kernel_id=KERNEL, topic=TOPIC)
        for offset, draft in enumerate([*run_of(), iopub(error()), closed("error")]):
            fold.add(record(draft, offset))
        sent = msgspec.json.encode(fold.result())
        assert msgspec.json.decode(sent, type=ExecutionResult) == fold.result()


def fold_of(records: Sequence[Record]) -> ExecutionResult:
    fold = ExecutionBuilder(REQUEST, kernel_id=KERNEL, topic=TOPIC)
    for one in records:
        fold.add(one)
    return fold.result()


async def keeping(backend: Backend, count: int) -> Any:
    """A log that keeps that many records of a topic."""
    log = await backend.open(retention_interval_s=0.01)
    await log.create(TOPIC, Retention(count=count))
    return log


async def trimmed(log: Any, first: int) -> None:
    """Wait until retention has passed all before ``first``, which is its own doing."""

    async def is_passed() -> bool:
        return bool((await log.info(TOPIC)).first >= first)

    await eventually(is_passed)
