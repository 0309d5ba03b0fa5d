"""The two ways in which a publish may be repeated without harm: by message id, and by producer and sequence."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from himalia.errors import BadRequest
from himalia.log import Batch
from himalia.record import Draft, Retention

from .backends import Backend, add, drafts, enforce_retention, read_all, soon


class TestById:
    async def test_a_repeat_gets_the_first_offset(self, log: Any) -> None:
        """An id that is stored already is not stored again: the answer is where it is, and when it came."""
        await log.create("t")
        first = await add(log, "t", 3)
        await add(log, "t", 2, "other")
        again = await add(log, "t", 3)
        assert list(again.offsets) == [0, 1, 2]
        assert (again.duplicates, again.ts_us) == (3, first.ts_us)
        assert (await log.info("t")).end == 5

    async def test_a_repeat_within_a_batch(self, log: Any) -> None:
        """The same id twice in one batch is one record."""
        await log.create("t")
        sent = [Draft("a", b"1"), Draft("b", b"2"), Draft("a", b"3"), Draft("c", b"4")]
        stored = await soon(log.append(Batch("t", sent)))
        assert (list(stored.offsets), stored.duplicates) == ([0, 1, 0, 2], 1)
        assert [record.payload for record in await read_all(log, "t")] == [b"1", b"2", b"4"]

    async def test_a_repeat_while_the_first_is_under_way(self, log: Any) -> None:
        """A repeat sent before the first is acknowledged gives the same offset."""
        await log.create("t")
        futures = [log.append(Batch("t", drafts(2))) for _ in range(50)]
        results = await soon(asyncio.gather(*futures))
        assert {tuple(result.offsets) for result in results} == {(0, 1)}
        assert sum(result.duplicates for result in results) == 98

    async def test_a_mixed_batch(self, log: Any) -> None:
        """New ids of a batch get the next offsets, known ones theirs."""
        await log.create("t")
        await add(log, "t", 2)
        mixed = await add(log, "t", 4)
        assert (list(mixed.offsets), mixed.duplicates) == ([0, 1, 2, 3], 2)

    async def test_ids_belong_to_a_topic(self, log: Any) -> None:
        """The same id in another topic is another message."""
        for topic in ("a", "b"):
            await log.create(topic)
            assert (await add(log, topic, 1)).duplicates == 0

    async def test_the_window(self, backend: Backend) -> None:
        """An id is recognised until it is ``dedup_window_s`` old, and then is a new message."""
        log = await backend.open(dedup_window_s=60.0)
        await log.create("t")
        await add(log, "t", 1)
        backend.clock.advance(59.999999)
        assert (await add(log, "t", 1)).duplicates == 1
        backend.clock.advance(0.000001)
        assert list((await add(log, "t", 1)).offsets) == [1]
        backend.clock.advance(59)
        assert list((await add(log, "t", 1)).offsets) == [1]

    async def test_the_number_of_ids(self, backend: Backend) -> None:
        """The newest ``dedup_ids_max`` ids of the whole log are recognised, and older ones are not."""
        log = await backend.open(dedup_ids_max=10)
        await log.create("t")
        await log.create("u")
        await add(log, "t", 1, "old")
        await add(log, "t", 5, "a")
        await add(log, "u", 5, "b")
        assert (await add(log, "t", 5, "a")).duplicates == 5
        assert (await add(log, "u", 5, "b")).duplicates == 5
        assert (await add(log, "t", 1, "old")).duplicates == 0

    @pytest.mark.parametrize("off", [{"dedup_window_s": 0.0}, {"dedup_ids_max": 0}])
    async def test_it_can_be_switched_off(self, backend: Backend, off: dict[str, Any]) -> None:
        """Without a window, or without ids, every message is new."""
        log = await backend.open(**off)
        await log.create("t", Retention(count=3))
        for _ in range(3):
            assert (await add(log, "t", 2)).duplicates == 0
        await enforce_retention(log)
        assert (await log.info("t")).end == 6

    async def test_retention_does_not_matter(self, log: Any) -> None:
        """An id is recognised limit_bytes the window even if retention has removed its record."""
        await log.create("t", Retention(count=1))
        await add(log, "t", 5)
        await enforce_retention(log)
        assert (await log.info("t")).first == 4
        again = await add(log, "t", 5)
        assert (list(again.offsets), again.duplicates) == ([0, 1, 2, 3, 4], 5)


class TestScopes:
    """What belongs to one caller is no repeat of another's."""

    async def test_an_id_of_another_caller(self, log: Any) -> None:
        """The same id of another caller is stored; the same caller's is a repeat."""
        await log.create("t")
        assert list((await add(log, "t", 2, scope="key:a")).offsets) == [0, 1]
        assert list((await add(log, "t", 2, scope="key:b")).offsets) == [2, 3]
        assert list((await add(log, "t", 2, scope="key:a")).offsets) == [0, 1]
        assert list((await add(log, "t", 2, scope="key:b")).offsets) == [2, 3]

    async def test_a_producer_of_another_caller(self, log: Any) -> None:
        """A caller that uses another's producer takes nothing from it."""
        await log.create("t")
        await add(log, "t", 1, producer="importer", sequence=1, scope="key:importer")
        await add(log, "t", 1, producer="importer", sequence=(1 << 63) - 1, scope="key:other")
        stored = await add(log, "t", 1, producer="importer", sequence=2, scope="key:importer")
        assert (list(stored.offsets), stored.duplicates) == ([2], 0)
        for scope, sequence, offset in (("key:importer", 2, 2), ("key:other", (1 << 63) - 1, 1)):
            again = await add(log, "t", 1, producer="importer", sequence=sequence, scope=scope)
            assert list(again.offsets) == [offset]

    async def test_a_name_that_imitates_the_producer_of_another_caller(self, log: Any) -> None:
        """A producer that is named like the key under which another caller's is stored is refused, and the other
        caller's repeat is still recognised."""
        await log.create("t")
        await add(log, "t", 1, producer="importer", sequence=7, scope="key:importer")
        with pytest.raises(BadRequest, match="NUL"):
            await add(log, "t", 1, producer="key:importer\0importer", sequence=8, scope="key:other")
        again = await add(log, "t", 1, producer="importer", sequence=7, scope="key:importer")
        assert (list(again.offsets), again.duplicates) == ([0], 1)

    async def test_a_producer_without_a_caller(self, log: Any) -> None:
        """What an earlier version stored of a producer is a repeat from any caller, until one has used the name."""
        await log.create("t")
        await add(log, "t", 1, producer="p", sequence=5)
        for scope in ("key:a", "key:b"):
            assert (await add(log, "t", 1, producer="p", sequence=5, scope=scope)).duplicates == 1
        await add(log, "t", 1, producer="p", sequence=6, scope="key:a")
        assert (await add(log, "t", 1, producer="p", sequence=6, scope="key:a")).duplicates == 1
        assert (await add(log, "t", 1, producer="p", sequence=1, scope="key:b")).duplicates == 0

    async def test_an_id_without_a_caller(self, log: Any) -> None:
        """What an earlier version stored is a repeat from the first caller that sends it again, and no other's."""
        await log.create("t")
        await add(log, "t", 1)
        for scope, duplicates in (("key:a", 1), ("key:b", 0), ("key:a", 1), ("key:b", 1)):
            assert (await add(log, "t", 1, scope=scope)).duplicates == duplicates
        assert (await log.info("t")).end == 2

    async def test_over_a_restart(self, sqlite: Backend) -> None:
        """Whose ids and producers they are is known after a restart, also of records that retention removed."""
        log = await sqlite.open()
        await log.create("t", Retention(count=1))
        sent = [Draft(id, b"1", b'{"caller":"key:a"}') for id in ("x", "y")]
        await soon(log.append(Batch("t", sent, scope="key:a")))
        await add(log, "t", 1, producer="p", sequence=7, scope="key:a")
        await enforce_retention(log)
        await log.close()
        log = await sqlite.open()
        assert (await soon(log.append(Batch("t", sent, scope="key:a")))).duplicates == 2
        assert (await soon(log.append(Batch("t", sent, scope="key:b")))).duplicates == 0
        assert (await add(log, "t", 1, producer="p", sequence=7, scope="key:a")).duplicates == 1
        assert (await add(log, "t", 1, "z", producer="p", sequence=7, scope="key:b")).duplicates == 0


class TestByProducer:
    async def test_a_repeated_batch_is_recognised_whole(self, log: Any) -> None:
        """The latest batch of a producer, sent again, gives its offsets; whatever the ids in it."""
        await log.create("t")
        first = await add(log, "t", 3, producer="p", sequence=5)
        again = await add(log, "t", 3, "other", producer="p", sequence=5)
        assert list(first.offsets) == list(again.offsets) == [0, 1, 2]
        assert (again.duplicates, again.ts_us) == (3, first.ts_us)
        assert (await log.info("t")).end == 3

    async def test_an_older_batch_is_recognised_without_offsets(self, log: Any) -> None:
        """A sequence below the last is a repeat, however old; its offsets are not known any more."""
        await log.create("t")
        for sequence in (1, 2, 9):
            await add(log, "t", 2, f"{sequence}-", producer="p", sequence=sequence)
        for sequence in (1, 2, 5, -3):
            again = await add(log, "t", 2, producer="p", sequence=sequence)
            assert (list(again.offsets), again.duplicates) == ([-1, -1], 2)

    async def test_it_outlives_the_window_of_ids(self, log: Any, backend: Backend) -> None:
        """A producer's batch is recognised after weeks, when message ids are long forgotten."""
        await log.create("t")
        await add(log, "t", 1, producer="p", sequence=1)
        backend.clock.advance(29 * 86_400)
        await enforce_retention(log)
        assert (await add(log, "t", 1, producer="p", sequence=1)).duplicates == 1

    async def test_ids_are_not_looked_up(self, log: Any) -> None:
        """A new sequence is stored whole even if its ids are known; the newest record of an id then counts."""
        await log.create("t")
        await add(log, "t", 2)
        stored = await add(log, "t", 2, producer="p", sequence=1)
        assert (list(stored.offsets), stored.duplicates) == ([2, 3], 0)
        assert list((await add(log, "t", 2)).offsets) == [2, 3]

    async def test_producers_and_topics_are_apart(self, log: Any) -> None:
        """A sequence belongs to one producer in one topic."""
        for topic in ("a", "b"):
            await log.create(topic)
            for producer in ("p", "q"):
                assert (await add(log, topic, 1, producer=producer, sequence=1)).duplicates == 0

    async def test_under_way_together(self, log: Any) -> None:
        """Of the same sequence sent several times at once, one is stored."""
        await log.create("t")
        futures = [log.append(Batch("t", drafts(2, str(n)), None, "p", n // 5)) for n in range(20)]
        results = await soon(asyncio.gather(*futures))
        assert [tuple(result.offsets) for result in results] == [
            (n // 5 * 2, n // 5 * 2 + 1) for n in range(20)
        ]
        assert (await log.info("t")).end == 8

    async def test_a_repeat_of_another_length(self, log: Any) -> None:
        """A repeat that does not have the length of the original gets no offsets that could be wrong."""
        await log.create("t")
        await add(log, "t", 3, producer="p", sequence=1)
        assert list((await add(log, "t", 2, producer="p", sequence=1)).offsets) == [-1, -1]

    async def test_an_empty_batch_counts(self, log: Any) -> None:
        """A batch without drafts moves the producer's sequence on."""
        await log.create("t")
        await add(log, "t", 0, producer="p", sequence=4)
        assert (await add(log, "t", 1, producer="p", sequence=4)).duplicates == 1

    @pytest.mark.parametrize(
        "half", [{"producer": "p"}, {"sequence": 1}, {"producer": "p", "sequence": 1 << 64}]
    )
    async def test_half_of_it_is_refused(self, log: Any, half: dict[str, Any]) -> None:
        """A producer without sequence, the reverse, or one too large for the log is ``BadRequest``."""
        await log.create("t")
        with pytest.raises(BadRequest):
            await add(log, "t", 1, **half)
