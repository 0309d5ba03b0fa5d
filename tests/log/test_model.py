"""Random sequences of operations against a model that is too simple to be wrong."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from himalia.errors import EpochChanged, TopicExists, TopicNotFound
from himalia.log import Batch
from himalia.record import Draft, Record, Retention

from .backends import KINDS, Backend, Clock, enforce_retention, read_all

WINDOW_S = 60.0
TOPICS = st.sampled_from(["a", "b", "c.d"])
IDS = st.lists(st.integers(0, 12).map(str), max_size=6)
RETENTIONS = st.builds(
    Retention,
    age_s=st.sampled_from([None, 0, 40.0, 100.0]),
    bytes=st.sampled_from([None, 0, 30, 300]),
    count=st.sampled_from([None, 0, 1, 5]),
)


class ModelClock:
    """What the log has to make of a clock: the time it dates records by, what has passed, and whether it waits."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.now_us = self.age_us = clock.now_us
        self.held_until_us: int | None = None

    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.now_us += round(seconds * 1_000_000)
        self.age_us += round(seconds * 1_000_000)

    def jump(self, seconds: float) -> None:
        self.clock.set_ahead(seconds)
        self.held_until_us = self.age_us + 3600 * 1_000_000

    @property
    def is_over(self) -> bool:
        return self.held_until_us is not None and self.age_us >= self.held_until_us

    def follow(self) -> None:
        self.now_us = self.clock.now_us
        self.held_until_us = None


class ModelTopic:
    """All records that a topic ever had, and nothing clever."""

    def __init__(self, epoch: str, retention: Retention) -> None:
        self.epoch = epoch
        self.retention = retention
        self.history: list[Record] = []
        self.ages: list[int] = []
        self.was_pinned = False
        self.removable = 0
        """What retention may have removed so far, at most."""
        self.latest: dict[str, tuple[int, range]] = {}

    def append(self, name: str, batch: Batch, clock: ModelClock) -> list[int]:
        if batch.producer is not None and batch.sequence is not None:
            sequence, offsets = self.latest.get(batch.producer, (-1, range(0)))
            if batch.sequence <= sequence:
                known = batch.sequence == sequence and len(offsets) == len(batch.drafts)
                return list(offsets) if known else [-1] * len(batch.drafts)
        answer = []
        begin = len(self.history)
        for draft in batch.drafts:
            found = None if batch.producer is not None else self.find(draft.id, clock.age_us)
            if found is None:
                found = len(self.history)
                ts_us = max(clock.now_us, self.history[-1].ts_us if self.history else 0)
                self.was_pinned |= ts_us > clock.now_us + 3600 * 1_000_000
                self.ages.append(clock.age_us)
                self.history.append(Record(name, found, ts_us, draft.id, draft.headers, draft.payload))
            answer.append(found)
        if batch.producer is not None and batch.sequence is not None:
            self.latest[batch.producer] = (batch.sequence, range(begin, len(self.history)))
        return answer

    def find(self, id: str, age_us: int) -> int | None:
        """The newest record with this id, if it is younger than the window."""
        for record, stored_us in zip(reversed(self.history), reversed(self.ages), strict=True):
            if record.id == id and stored_us > age_us - WINDOW_S * 1_000_000:
                return record.offset
        return None

    def first_kept(self, first: int, clock: ModelClock) -> int:
        """Where retention leaves a topic that begins at ``first``."""
        limits = self.retention
        while kept := self.history[first:]:
            size_bytes = sum(record.size_bytes for record in kept)
            too_many = limits.count and len(kept) > limits.count
            too_large = limits.bytes and size_bytes > limits.bytes and len(kept) > 1
            too_old = (
                limits.age_s
                and clock.held_until_us is None
                and self.ages[first] < clock.age_us - limits.age_s * 1_000_000
            )
            if not (too_many or too_large or too_old):
                break
            first += 1
        return first


class LogMachine(RuleBasedStateMachine):
    kind: str

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.directory = Path(tempfile.mkdtemp(prefix="himalia-model-"))
        self.clock = Clock()
        self.backend = Backend(self.kind, self.directory, self.clock)
        self.time = ModelClock(self.clock)
        self.topics: dict[str, ModelTopic] = {}
        self.payloads = 0

    def run(self, awaitable: Any) -> Any:
        async def with_deadline() -> Any:
            return await asyncio.wait_for(awaitable, 30)

        return self.runner.run(with_deadline())

    @initialize()
    def open(self) -> None:
        self.log = self.run(self.backend.open(dedup_window_s=WINDOW_S))

    def teardown(self) -> None:
        self.run(self.backend.close())
        self.runner.close()
        shutil.rmtree(self.directory)

    @rule(topic=TOPICS, retention=RETENTIONS)
    def create(self, topic: str, retention: Retention) -> None:
        with self.expecting(TopicExists if topic in self.topics else None):
            info = self.run(self.log.create(topic, retention))
            self.topics[topic] = ModelTopic(info.epoch, retention)

    @rule(topic=TOPICS)
    def delete(self, topic: str) -> None:
        with self.expecting(None if topic in self.topics else TopicNotFound):
            info = self.run(self.log.delete(topic))
            model = self.topics.pop(topic)
            assert (info.epoch, info.end) == (model.epoch, len(model.history))

    @rule(topic=TOPICS, ids=IDS, right_epoch=st.sampled_from([None, True, False]))
    def append(self, topic: str, ids: list[str], right_epoch: bool | None) -> None:
        model = self.topics.get(topic)
        epoch = None if right_epoch is None else model.epoch if model and right_epoch else "wrong"
        failure = TopicNotFound if model is None else EpochChanged if epoch == "wrong" else None
        with self.expecting(failure):
            batch = Batch(topic, self.drafts(ids), epoch=epoch)
            answer = self.run(_append(self.log, batch))
            assert model is not None
            assert list(answer.offsets) == model.append(topic, batch, self.time)
            assert answer.epoch == model.epoch

    @rule(topic=TOPICS, ids=IDS, producer=st.sampled_from("pq"), sequence=st.integers(0, 6))
    def append_as_producer(self, topic: str, ids: list[str], producer: str, sequence: int) -> None:
        with self.expecting(None if topic in self.topics else TopicNotFound):
            batch = Batch(topic, self.drafts(ids), None, producer, sequence)
            answer = self.run(_append(self.log, batch))
            assert list(answer.offsets) == self.topics[topic].append(topic, batch, self.time)

    @rule(many=st.lists(st.tuples(TOPICS, IDS), min_size=2, max_size=8))
    def append_together(self, many: list[tuple[str, list[str]]]) -> None:
        """Batches that are under way at the same time, and so may share a commit."""
        batches = [Batch(topic, self.drafts(ids)) for topic, ids in many]

        async def at_once() -> list[Any]:
            futures = [self.log.append(batch) for batch in batches]
            return await asyncio.gather(*futures, return_exceptions=True)

        for batch, answer in zip(batches, self.run(at_once()), strict=True):
            model = self.topics.get(batch.topic)
            if model is None:
                assert isinstance(answer, TopicNotFound)
            else:
                assert list(answer.offsets) == model.append(batch.topic, batch, self.time)

    @rule(seconds=st.sampled_from([0.000001, 1, 20, 39.999999, 59.999999, 60, 101]))
    def let_time_pass(self, seconds: float) -> None:
        self.time.advance(seconds)
        if self.time.is_over:
            self.enforce_retention()

    @rule(seconds=st.sampled_from([-8 * 86_400, -600, 600, 8 * 86_400, 3650 * 86_400]))
    def set_the_clock(self, seconds: float) -> None:
        for model in self.topics.values():
            model.removable = model.first_kept(model.removable, self.time)
        self.time.jump(seconds)
        self.enforce_retention()

    @rule(confirm=st.booleans())
    def trust_the_clock(self, confirm: bool) -> None:
        if confirm:
            self.run(self.log.confirm_clock())
            self.time.follow()
        else:
            self.let_time_pass(3600)

    @rule()
    def enforce_retention(self) -> None:
        before = {name: self.run(self.log.info(name)).first for name in self.topics}
        self.run(enforce_retention(self.log))
        if self.time.is_over:
            self.time.follow()
        for name, model in self.topics.items():
            first = self.run(self.log.info(name)).first
            # Where records could not be dated rightly they may stay longer, but go no sooner.
            expected = model.first_kept(before[name], self.time)
            assert first <= expected if model.was_pinned else first == expected

    @rule()
    def restart(self) -> None:
        if self.backend.is_durable:
            self.run(self.log.close())
            self.log = self.run(self.backend.open(dedup_window_s=WINDOW_S))

    @rule(
        topic=TOPICS,
        start=st.integers(-2, 40),
        limit=st.integers(0, 9),
        bytes_max=st.sampled_from([1, 40, 9999]),
    )
    def read(self, topic: str, start: int, limit: int, bytes_max: int) -> None:
        with self.expecting(None if topic in self.topics else TopicNotFound):
            chunk = self.run(self.log.read(topic, start, limit=limit, bytes_max=bytes_max))
            start = max(start, chunk.first)
            expected = self.topics[topic].history[start : start + limit]
            while len(expected) > 1 and sum(record.size_bytes for record in expected) > bytes_max:
                expected.pop()
            assert list(chunk.records) == expected

    @invariant()
    def topics_are_the_models(self) -> None:
        if not hasattr(self, "log"):
            return
        infos = self.run(self.log.topics())
        assert [info.name for info in infos] == sorted(self.topics)
        for info in infos:
            model = self.topics[info.name]
            kept = model.history[info.first :]
            assert (info.epoch, info.end, info.retention) == (
                model.epoch,
                len(model.history),
                model.retention,
            )
            assert info.bytes == sum(record.size_bytes for record in kept)
            records = self.run(read_all(self.log, info.name))
            # Retention may be at work while this looks.
            first = info.end - len(records)
            assert info.first <= first <= model.first_kept(model.removable, self.time)
            assert records == model.history[first:]

    def drafts(self, ids: list[str]) -> list[Draft]:
        self.payloads += 1
        return [Draft(id, b"%d" % self.payloads) for id in ids]

    @contextlib.contextmanager
    def expecting(self, error: type[Exception] | None) -> Iterator[None]:
        if error is None:
            yield
        else:
            with pytest.raises(error):
                yield


async def _append(log: Any, batch: Batch) -> Any:
    return await log.append(batch)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_log_behaves_like_its_model(kind: str) -> None:
    """Whatever is done in whatever order, a log answers and holds what the model does."""
    machine = type("Machine", (LogMachine,), {"kind": kind})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=25,
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
