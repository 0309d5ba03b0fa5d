"""The topic writer: everything a kernel says is stored once and in order, whatever the log is up to."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from himalia.errors import HimaliaError, LogUnavailable, TopicNotFound
from himalia.jupyter.records import event_draft, read_headers
from himalia.kernels import topic_writer as module
from himalia.kernels.topic_writer import TopicWriter
from himalia.log import open_log
from himalia.log.api import Appended, Batch, Log
from tests.jupyter.kernel_messages import message
from tests.kernels.hosts import DEADLINE_S, events, records, until

TOPIC = "kernels.k"


class Unwell:
    """A topic of a real log behind a publish that fails when told to: before the batch is stored, or after."""

    name = TOPIC
    kernel_id = "k"

    def __init__(self, log: Log) -> None:
        self.log = log
        self.failures_before = 0
        self.failures_after = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.calls = 0

    def publish(self, batch: Batch) -> asyncio.Future[Appended]:
        return asyncio.ensure_future(self._publish(batch))

    async def _publish(self, batch: Batch) -> Appended:
        self.calls += 1
        await self.gate.wait()
        if self.failures_before:
            self.failures_before -= 1
            raise LogUnavailable("the disk is full")
        appended = await self.log.append(batch)
        if self.failures_after:
            self.failures_after -= 1
            raise LogUnavailable("the answer was lost")
        return appended

    async def create(self) -> None:
        await self.log.create(TOPIC)

    async def ids(self) -> list[str]:
        return [record.id for record in await records(self.log, TOPIC)]


@pytest.fixture
async def unwell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Unwell]:
    monkeypatch.setattr(module, "RETRY_AFTER_S", 0.01)
    log = open_log(f"sqlite://{tmp_path}/log.db")
    await log.open()
    await log.create(TOPIC)
    yield Unwell(log)
    await log.close()


def writer_to(unwell: Unwell, *, bytes_max: int = 1 << 20, recreates: bool = True) -> TopicWriter:
    return TopicWriter(unwell, bytes_max=bytes_max, recreates=recreates)


async def test_order_of_messages_and_our_own_records(unwell: Unwell) -> None:
    """What is offered by a thread and what is put on the loop is stored in the order it was given."""
    writer = writer_to(unwell)
    given: list[str] = []
    for number in range(300):
        if number % 3 == 0:
            draft = event_draft("k", "started")
            given.append(draft.id)
            writer.append(draft)
        else:
            batch = [message() for _ in range(number % 7 + 1)]
            given += [one.msg_id for one in batch]
            await asyncio.to_thread(writer.offer, batch)
    await writer.close()
    assert await unwell.ids() == given
    assert writer.buffered_bytes == 0


async def test_append_tells_the_offset_when_it_is_committed(unwell: Unwell) -> None:
    """The future of a record is done when it is stored, and not before."""
    writer = writer_to(unwell)
    unwell.gate.clear()
    writer.offer([message(), message()])
    future = writer.append(event_draft("k", "started"))
    await until(lambda: unwell.calls)
    assert not future.done()
    unwell.gate.set()
    assert await asyncio.wait_for(future, DEADLINE_S) == 2


@pytest.mark.parametrize("lost", ["before", "after"])
async def test_retry_stores_nothing_twice(unwell: Unwell, lost: str) -> None:
    """While the log is unwell the same batch is tried again; stored it is once, also if only the answer was lost."""
    writer = writer_to(unwell)
    setattr(unwell, f"failures_{lost}", 3)
    given = [message() for _ in range(10)]
    writer.offer(given[:5])
    future = writer.append(event_draft("k", "started"))
    await until(lambda: unwell.calls)
    writer.offer(given[5:])
    await asyncio.wait_for(writer.close(), DEADLINE_S)
    ids = await unwell.ids()
    assert [id for id in ids if id.startswith("m")] == [one.msg_id for one in given]
    assert future.result() == 5 and len(ids) == 11


async def test_message_ids_that_a_kernel_uses_again(unwell: Unwell) -> None:
    """A kernel that gives two messages the same id loses neither."""
    writer = writer_to(unwell)
    once = message()
    writer.offer([once])
    await writer.flush()
    writer.offer([once])
    await writer.close()
    assert await unwell.ids() == [once.msg_id, once.msg_id]


async def test_writers_of_servers_whose_clock_went_back(
    unwell: Unwell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a later server stores is never taken for a repeat of an earlier one's, whatever the clock says."""
    first = writer_to(unwell)
    first.offer([message()])
    await first.close()
    monkeypatch.setattr("himalia.record.now_us", lambda: 1)
    second = writer_to(unwell)
    second.offer([message()])
    assert await second.append(event_draft("k", "started")) == 2
    await second.close()
    assert len(await unwell.ids()) == 3


async def test_overflow_is_told_with_its_count(unwell: Unwell) -> None:
    """Beyond its limit the writer takes nothing; when it does again, it tells how many it was offered in vain."""
    writer = writer_to(unwell, bytes_max=2000)
    unwell.gate.clear()
    taken = []
    while not writer.is_full:
        taken.append(message())
        writer.offer([taken[-1]])
        await asyncio.sleep(0)
    for _ in range(7):
        assert writer.offer([message(), message()])
    unwell.gate.set()
    await until(lambda: not writer.is_full)
    after = message()
    writer.offer([after])
    await writer.close()
    found = await records(unwell.log, TOPIC)
    assert [event["count"] for event in events(found, "gap")] == [14]
    ids = [record.id for record in found if read_headers(record).channel != "kernel"]
    assert ids == [*[one.msg_id for one in taken], after.msg_id]


async def test_our_own_records_are_taken_when_it_is_full(unwell: Unwell) -> None:
    """That a request was closed is stored also while messages are refused: somebody waits for it."""
    writer = writer_to(unwell, bytes_max=10)
    unwell.gate.clear()
    writer.offer([message()])
    assert writer.is_full
    future = writer.append(event_draft("k", "request_closed"))
    unwell.gate.set()
    assert await asyncio.wait_for(future, DEADLINE_S) == 1
    await writer.close()


async def test_close_stores_what_was_taken(unwell: Unwell) -> None:
    """Closing returns when all that was taken is stored; then nothing more is taken."""
    writer = writer_to(unwell)
    unwell.gate.clear()
    writer.offer([message() for _ in range(10_000)])
    closing = asyncio.create_task(writer.close())
    await asyncio.sleep(0)
    assert not closing.done() and writer.offer([message()]) is False
    unwell.gate.set()
    await asyncio.wait_for(closing, DEADLINE_S)
    assert len(await unwell.ids()) == 10_000


async def test_topic_that_was_deleted_is_made_anew(unwell: Unwell) -> None:
    """A topic that is deleted while its kernel lives is made again: what comes after that has its place."""
    writer = writer_to(unwell)
    await writer.append(event_draft("k", "started"))
    await unwell.log.delete(TOPIC)
    assert await asyncio.wait_for(writer.append(event_draft("k", "interrupted")), DEADLINE_S) == 0
    await writer.close()
    found = await records(unwell.log, TOPIC)
    assert [event["event"] for event in events(found)] == ["interrupted"]


async def test_log_that_refuses_ends_every_wait(unwell: Unwell) -> None:
    """Where nothing can be stored any more, whoever waits is told so, the batch under way included."""
    writer = writer_to(unwell, recreates=False)
    await unwell.log.delete(TOPIC)
    futures = [writer.append(event_draft("k", "started")) for _ in range(3)]
    await asyncio.wait(futures, timeout=DEADLINE_S)
    later = writer.append(event_draft("k", "stopped"))
    for future in [*futures, later]:
        with pytest.raises(TopicNotFound):
            await asyncio.wait_for(future, DEADLINE_S)
    assert writer.offer([message()]) is False
    await asyncio.wait_for(writer.close(), DEADLINE_S)


async def test_a_log_that_cannot_store_is_told_of_once(
    unwell: Unwell, caplog: pytest.LogCaptureFixture
) -> None:
    """Callers hear of it at once, the server's log has one line for all retries, and what waits is stored later."""
    writer = writer_to(unwell)
    unwell.failures_before = 30
    with caplog.at_level(logging.WARNING):
        waiting = writer.append(event_draft("k", "started"))
        with pytest.raises(LogUnavailable, match="disk is full"):
            await writer.wait_committed(waiting)
        with pytest.raises(LogUnavailable, match="disk is full"):
            writer.availability.check()
        assert await asyncio.wait_for(waiting, DEADLINE_S) == 0
    assert unwell.calls == 31
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    writer.availability.check()
    assert await writer.wait_committed(writer.append(event_draft("k", "stopped"))) == 1
    await writer.close()


async def test_cancel_ends_every_wait(unwell: Unwell) -> None:
    """A writer to a log that never recovers can be cancelled; no task waits for it any longer."""
    writer = writer_to(unwell)
    unwell.gate.clear()
    future = writer.append(event_draft("k", "started"))
    closing = asyncio.create_task(writer.close())
    await until(lambda: unwell.calls)
    writer.cancel()
    await asyncio.wait_for(closing, DEADLINE_S)
    with pytest.raises(HimaliaError):
        await asyncio.wait_for(future, DEADLINE_S)


async def test_cancel_before_anything_was_sent(unwell: Unwell) -> None:
    """The task that sends may be cancelled before its first step: closing then returns, too."""
    writer = writer_to(unwell)
    future = writer.append(event_draft("k", "started"))
    writer.cancel()
    async with asyncio.timeout(5):
        await writer.close()
    with pytest.raises(HimaliaError):
        await future
