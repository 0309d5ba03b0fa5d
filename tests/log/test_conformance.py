"""What every log promises, whichever it is. One law a test; the backends are in ``backends.py``."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from himalia.errors import (
    BadRequest,
    EpochChanged,
    LogUnavailable,
    TooManyTopics,
    TopicExists,
    TopicNotFound,
)
from himalia.log import Batch, Change, ChangeKind
from himalia.record import Draft, Retention

from .backends import Backend, add, drafts, enforce_retention, read_all, soon


class TestAppendingAndReading:
    async def test_offsets_count_from_zero(self, log: Any) -> None:
        """Offsets are 0, 1, 2, ... over all batches, without holes."""
        await log.create("t")
        first = await add(log, "t", 3, "a")
        second = await add(log, "t", 2, "b")
        assert [*first.offsets, *second.offsets] == [0, 1, 2, 3, 4]
        assert [record.offset for record in await read_all(log, "t")] == [0, 1, 2, 3, 4]

    async def test_records_come_back_as_they_went_in(self, log: Any) -> None:
        """Ids, headers and payloads are given back to the byte, in the order of the batch."""
        sent = [
            Draft("plain", b'{"a": 1}', b'{"h":"x"}'),
            Draft("", b"", b""),
            Draft("ünï\0cödé ☄", b'"\xc3\xbc\x00\xff\n"', b"{}"),
            Draft("'; DROP TABLE records; --", b"null"),
        ]
        info = await log.create("t")
        stored = await soon(log.append(Batch("t", sent)))
        records = await read_all(log, "t")
        assert [(r.id, r.payload, r.headers) for r in records] == [(d.id, d.payload, d.headers) for d in sent]
        assert {r.topic for r in records} == {"t"}
        assert {r.ts_us for r in records} == {stored.ts_us}
        assert stored.epoch == info.epoch

    async def test_a_stored_record_can_be_read_at_once(self, log: Any) -> None:
        """When an append's future is done, reading, ``info`` and ``recent`` know of it."""
        epoch = (await log.create("t")).epoch
        for n in range(20):
            await add(log, "t", 1, f"m{n}-")
            chunk = await log.read("t", n, limit=10)
            assert [record.offset for record in chunk.records] == [n]
            assert chunk.end == (await log.info("t")).end == n + 1
            assert log.recent("t", n, epoch) in (None, chunk.records)

    async def test_batches_are_stored_whole_and_in_the_order_of_the_calls(self, log: Any) -> None:
        """Of appends that are under way together, each is contiguous and none overtakes an earlier one."""
        await log.create("t")
        futures = [log.append(Batch("t", drafts(n % 5 + 1, f"{n}-"))) for n in range(200)]
        offsets = [offset for future in futures for offset in (await soon(future)).offsets]
        assert offsets == list(range(len(offsets)))
        expected = [draft.id for n in range(200) for draft in drafts(n % 5 + 1, f"{n}-")]
        assert [record.id for record in await read_all(log, "t")] == expected

    async def test_topics_do_not_share_offsets(self, log: Any) -> None:
        """Each topic counts for itself, however their appends interleave."""
        for topic in ("a", "b.c"):
            await log.create(topic)
        futures = [log.append(Batch(topic, drafts(2, f"{n}-"))) for n in range(50) for topic in ("a", "b.c")]
        await soon(asyncio.gather(*futures))
        for topic in ("a", "b.c"):
            assert [record.offset for record in await read_all(log, topic)] == list(range(100))

    async def test_a_bad_batch_fails_alone(self, log: Any) -> None:
        """An append that cannot be stored takes nothing else down with it."""
        await log.create("t")
        good = log.append(Batch("t", drafts(1, "a")))
        bad = [
            log.append(Batch("missing", drafts(1))),
            log.append(Batch("t", drafts(1), epoch="other")),
            log.append(Batch("t", [Draft("x", b"1"), Draft("\ud800", b"1")])),
        ]
        also_good = log.append(Batch("t", drafts(1, "b")))
        results = await soon(asyncio.gather(*bad, return_exceptions=True))
        assert [type(result) for result in results] == [TopicNotFound, EpochChanged, BadRequest]
        assert [*(await good).offsets, *(await also_good).offsets] == [0, 1]
        assert [record.id for record in await read_all(log, "t")] == ["a0", "b0"]

    async def test_the_right_epoch_is_accepted(self, log: Any) -> None:
        """A batch that names the topic's epoch is stored."""
        info = await log.create("t")
        assert list((await add(log, "t", 1, epoch=info.epoch)).offsets) == [0]

    async def test_an_empty_batch_is_fine(self, log: Any) -> None:
        """A batch without drafts is acknowledged and changes nothing."""
        await log.create("t")
        assert list((await add(log, "t", 0)).offsets) == []
        assert (await log.info("t")).end == 0

    async def test_a_record_may_be_large(self, log: Any) -> None:
        """A payload of several megabytes is given back whole, and alone if it exceeds ``bytes_max``."""
        await log.create("t")
        payload = bytes(range(256)) * (20 << 10)
        await soon(log.append(Batch("t", [Draft("a", payload), Draft("b", b"1")])))
        chunk = await log.read("t", 0, limit=10)
        assert [record.payload for record in chunk.records] == [payload]

    async def test_time_never_decreases(self, log: Any, backend: Backend) -> None:
        """Records of a topic are in order of time even when the clock is set back."""
        await log.create("t")
        await add(log, "t", 1, "a")
        backend.clock.advance(-3600)
        await add(log, "t", 1, "b")
        backend.clock.advance(7200)
        await add(log, "t", 1, "c")
        first, second, third = [record.ts_us for record in await read_all(log, "t")]
        assert first == second
        assert third == backend.clock.now_us

    async def test_a_cancelled_append_leaves_the_log_sound(self, log: Any) -> None:
        """Giving up on an append may or may not store it, and harms nothing else."""
        await log.create("t")
        given_up = log.append(Batch("t", drafts(1, "a")))
        given_up.cancel()
        last = (await add(log, "t", 1, "b")).offsets[0]
        records = await read_all(log, "t")
        assert [record.offset for record in records] == list(range(last + 1))
        assert records[-1].id == "b0"


class TestReading:
    @pytest.fixture(autouse=True)
    async def _ten_records(self, log: Any) -> None:
        await log.create("t")
        await soon(log.append(Batch("t", [Draft(f"m{i}", b"x" * 96) for i in range(10)])))

    async def test_limit(self, log: Any) -> None:
        """A read gives at most ``limit`` records, from the offset asked for."""
        chunk = await log.read("t", 4, limit=3)
        assert [record.offset for record in chunk.records] == [4, 5, 6]
        assert (chunk.first, chunk.end) == (0, 10)
        assert not (await log.read("t", 4, limit=0)).records

    async def test_bytes_max(self, log: Any) -> None:
        """A read gives no more than ``bytes_max``, but always one record; each counts 100 bytes here."""
        for bytes_max, count in [(1, 1), (100, 1), (299, 2), (300, 3), (5000, 10)]:
            assert len((await log.read("t", 0, limit=50, bytes_max=bytes_max)).records) == count

    async def test_from_before_the_first(self, log: Any) -> None:
        """An offset below the first record kept is read from that one."""
        assert (await log.read("t", -5, limit=1)).records[0].offset == 0

    async def test_from_the_end_or_beyond(self, log: Any) -> None:
        """At the end and beyond there is nothing, and the chunk says where the end is."""
        for start in (10, 11, 1 << 62):
            chunk = await log.read("t", start, limit=5)
            assert (list(chunk.records), chunk.end) == ([], 10)

    async def test_a_topic_that_does_not_exist(self, log: Any) -> None:
        """Reading, asking about or deleting what is not there is ``TopicNotFound``."""
        for call in (log.read("no", 0, limit=1), log.info("no"), log.offset_at("no", 0), log.delete("no")):
            with pytest.raises(TopicNotFound):
                await call

    async def test_recent_is_complete_or_none(self, log: Any, backend: Any) -> None:
        """``recent`` gives all records to the end or says that it cannot, never a part; the newest are at hand."""
        epoch = (await log.info("t")).epoch
        for start in range(12):
            recent = log.recent("t", start, epoch)
            if recent is not None:
                assert [record.offset for record in recent] == list(range(start, 10))
        await soon(log.append(Batch("t", [Draft("newest", b"1")])))
        newest = log.recent("t", 10, epoch)
        if backend.kind == "sqlite-cold":  # it is told to keep nothing in memory
            assert newest is None
        else:
            assert [record.offset for record in newest] == [10]

    async def test_recent_knows_epochs(self, log: Any) -> None:
        """``recent`` gives nothing for a topic that is gone or has another epoch."""
        info = await log.info("t")
        assert log.recent("t", 0, "other") is None
        assert log.recent("no", 0, info.epoch) is None
        await log.delete("t")
        assert log.recent("t", 0, info.epoch) is None

    async def test_bytes_are_counted(self, log: Any) -> None:
        """A topic's ``bytes`` is the sum of its records' sizes."""
        await soon(log.append(Batch("t", [Draft("ü", b"12345", b'{"a":"b"}')])))
        records = await read_all(log, "t")
        assert (await log.info("t")).bytes == sum(record.size_bytes for record in records) == 1015


class TestOffsetAt:
    async def test_the_first_record_not_older(self, log: Any, backend: Backend) -> None:
        """``offset_at`` is the first offset whose time is the given one or later."""
        await log.create("t")
        times = []
        for n in range(40):
            backend.clock.advance(n % 3)
            await add(log, "t", n % 4 + 1, f"{n}-")
        times = [record.ts_us for record in await read_all(log, "t")]
        for wanted in sorted({t + d for t in times for d in (-1, 0, 1)}):
            expected = sum(t < wanted for t in times)
            assert await log.offset_at("t", wanted) == expected

    async def test_an_empty_topic(self, log: Any) -> None:
        """Where there is no record, the answer is the end."""
        await log.create("t")
        assert await log.offset_at("t", 0) == 0

    async def test_after_retention(self, log: Any, backend: Backend) -> None:
        """A time before the first record kept gives that record."""
        await log.create("t", Retention(count=2))
        for n in range(5):
            backend.clock.advance(1)
            await add(log, "t", 1, f"{n}-")
        await enforce_retention(log)
        assert await log.offset_at("t", 0) == 3
        assert await log.offset_at("t", backend.clock.now_us) == 4


class TestTopics:
    async def test_a_new_topic_is_empty(self, log: Any, backend: Backend) -> None:
        """A topic begins empty, with what it was created with."""
        retention = Retention(age_s=1.5, bytes=10, count=3)
        info = await log.create("a.b", retention)
        assert (info.name, info.first, info.end, info.bytes) == ("a.b", 0, 0, 0)
        assert (info.created_us, info.retention) == (backend.clock.now_us, retention)
        assert await log.info("a.b") == info

    async def test_topics_are_listed_by_name(self, log: Any) -> None:
        """``topics`` gives all of them in order of their names."""
        for name in ("b", "a.c", "a"):
            await log.create(name)
        assert [info.name for info in await log.topics()] == ["a", "a.c", "b"]

    async def test_a_name_is_taken_once(self, log: Any) -> None:
        """Creating a topic that exists fails, also while the first creation is under way."""
        results = await soon(asyncio.gather(*[log.create("t") for _ in range(3)], return_exceptions=True))
        assert sorted(type(result).__name__ for result in results) == [
            "TopicExists",
            "TopicExists",
            "TopicInfo",
        ]
        with pytest.raises(TopicExists):
            await log.create("t")

    @pytest.mark.parametrize("name", ["", "a b", "a..b", ".a", "a/b", "x" * 256, "*"])
    async def test_bad_names_are_refused(self, log: Any, name: str) -> None:
        """A name that is not one is ``BadRequest``."""
        with pytest.raises(BadRequest):
            await log.create(name)

    @pytest.mark.parametrize("limits", [{"count": -1}, {"bytes": 1 << 64}, {"age_s": float("nan")}])
    async def test_bad_retention_is_refused(self, log: Any, limits: dict[str, Any]) -> None:
        """A limit below nothing, or beyond what can be stored, is ``BadRequest``."""
        with pytest.raises(BadRequest):
            await log.create("t", Retention(**limits))

    async def test_there_is_a_limit(self, backend: Backend) -> None:
        """Beyond ``topics_max`` creating fails, until one is deleted."""
        log = await backend.open(topics_max=2)
        await log.create("a")
        await log.create("b")
        with pytest.raises(TooManyTopics):
            await log.create("c")
        await log.delete("a")
        await log.create("c")

    async def test_a_deleted_topic_is_gone(self, log: Any) -> None:
        """Deleting returns what the topic was; then it is not there any more."""
        await log.create("t")
        await add(log, "t", 3)
        assert (await log.delete("t")).end == 3
        assert list(await log.topics()) == []
        with pytest.raises(TopicNotFound):
            await log.info("t")
        with pytest.raises(TopicNotFound):
            await add(log, "t", 1)

    async def test_a_topic_created_again_is_another(self, log: Any) -> None:
        """It has a new epoch, begins at 0, and knows no ids, producers or records of the old one."""
        old = await log.create("t")
        await add(log, "t", 3)
        await add(log, "t", 1, "p", producer="spark", sequence=7)
        await log.delete("t")
        new = await log.create("t")
        assert new.epoch != old.epoch
        assert await read_all(log, "t") == []
        again = await add(log, "t", 3)
        assert (list(again.offsets), again.duplicates) == ([0, 1, 2], 0)
        by_producer = await add(log, "t", 1, "p", producer="spark", sequence=7)
        assert (list(by_producer.offsets), by_producer.duplicates) == ([3], 0)
        with pytest.raises(EpochChanged):
            await add(log, "t", 1, epoch=old.epoch)

    async def test_operations_keep_their_order(self, log: Any) -> None:
        """Appends, deletions and creations that are under way together happen in the order of the calls."""
        await log.create("t")
        tasks: list[Any] = [log.append(Batch("t", drafts(2, "a")))]
        tasks.append(asyncio.ensure_future(log.delete("t")))
        await asyncio.sleep(0)
        tasks.append(asyncio.ensure_future(log.create("t")))
        await asyncio.sleep(0)
        tasks.append(log.append(Batch("t", drafts(1, "b"))))
        before, deleted, created, after = await soon(asyncio.gather(*tasks))
        assert (before.epoch, deleted.end) == (deleted.epoch, 2)
        assert (after.epoch, list(after.offsets)) == (created.epoch, [0])
        assert [record.id for record in await read_all(log, "t")] == ["b0"]


class TestWatching:
    async def test_appends_are_folded(self, log: Any) -> None:
        """Any number of appends to a topic since the last turn is one change."""
        watch = log.watch()
        epoch = (await log.create("t")).epoch
        for n in range(5):
            await add(log, "t", 1, f"{n}-")
        assert await soon(anext(watch)) == [
            Change("t", ChangeKind.CREATED, epoch),
            Change("t", ChangeKind.APPENDED, epoch),
        ]
        await add(log, "t", 1, "later")
        assert await soon(anext(watch)) == [Change("t", ChangeKind.APPENDED, epoch)]

    async def test_creations_and_deletions_keep_their_order(self, log: Any) -> None:
        """No creation or deletion is folded away, and appends stay between those of their epoch."""
        watch = log.watch()
        expected = []
        for n in range(3):
            epoch = (await log.create("t")).epoch
            await add(log, "t", 1, f"{n}-")
            await log.delete("t")
            kinds = (ChangeKind.CREATED, ChangeKind.APPENDED, ChangeKind.DELETED)
            expected += [Change("t", kind, epoch) for kind in kinds]
        assert await soon(anext(watch)) == expected

    async def test_a_repeat_is_no_change(self, log: Any) -> None:
        """An append that stored nothing is not told."""
        epoch = (await log.create("t")).epoch
        await add(log, "t", 1)
        watch = log.watch()
        await add(log, "t", 1)
        await add(log, "t", 1, "new")
        assert await soon(anext(watch)) == [Change("t", ChangeKind.APPENDED, epoch)]
        watch.close()

    async def test_whoever_waits_is_woken(self, log: Any) -> None:
        """A watch that waits gets a change when it happens, and every watch gets all."""
        await log.create("t")
        waiting = [asyncio.ensure_future(anext(log.watch())) for _ in range(3)]
        await asyncio.sleep(0)
        await add(log, "t", 1)
        for changes in await soon(asyncio.gather(*waiting)):
            assert [change.kind for change in changes] == [ChangeKind.APPENDED]

    async def test_it_ends_when_closed(self, log: Any) -> None:
        """A closed watch ends, also for a reader that is waiting."""
        watch = log.watch()
        waiting = asyncio.ensure_future(anext(watch, None))
        await asyncio.sleep(0)
        watch.close()
        assert await soon(waiting) is None
        watch.close()

    async def test_it_ends_with_the_log(self, log: Any) -> None:
        """When the log closes, a watch tells what it has not told yet and ends; a later one ends at once."""
        watch = log.watch()
        await log.create("t")
        await log.close()
        assert [[change.kind for change in changes] async for changes in watch] == [[ChangeKind.CREATED]]
        assert [changes async for changes in log.watch()] == []


class TestClosing:
    async def test_everything_accepted_is_stored(self, log: Any) -> None:
        """Closing waits for the appends that were accepted before."""
        await log.create("t")
        futures = [log.append(Batch("t", drafts(1, f"{n}-"))) for n in range(100)]
        await log.close()
        assert [future.result().offsets[0] for future in futures] == list(range(100))

    async def test_a_closed_log_says_so(self, log: Any) -> None:
        """After ``close``, which may be called again, everything is ``LogUnavailable``."""
        await log.create("t")
        await soon(asyncio.gather(log.close(), log.close()))
        await log.close()
        with pytest.raises(LogUnavailable):
            await add(log, "t", 1)
        for call in (
            log.read("t", 0, limit=1),
            log.info("t"),
            log.topics(),
            log.create("u"),
            log.delete("t"),
        ):
            with pytest.raises(LogUnavailable):
                await call
        assert not (await log.health()).ok

    async def test_one_that_was_never_opened_can_be_closed(self, backend: Backend) -> None:
        """Closing does not need an open log."""
        await soon(backend.make().close())


class TestStats:
    async def test_counters(self, log: Any) -> None:
        """Records and repeats are counted; a healthy log says so."""
        await log.create("t")
        await add(log, "t", 3)
        await add(log, "t", 4)
        stats = log.stats()
        assert (stats.records, stats.duplicates, stats.failures) == (4, 3, 0)
        assert stats.commits >= 2
        health = await log.health()
        assert (health.ok, health.problem) == (True, None)
