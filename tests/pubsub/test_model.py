"""A model of the whole broker: publish, subscribe, resume, stall, delete, in any order, on both logs."""

from __future__ import annotations

import asyncio
import json
import tempfile
import uuid
from typing import Any

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from himalia.errors import TopicNotFound
from himalia.log import open_log
from himalia.log.api import Batch
from himalia.pubsub import PubSubManager, Subscriber
from himalia.pubsub.manager import Limits
from himalia.pubsub.subscription import Start
from himalia.record import Draft, Retention
from tests.log.backends import log_options
from tests.pubsub.conftest import Viewer

TOPICS = ("a", "b")


class Seen:
    """One subscription and what the model says it must see."""

    def __init__(self, topic: str, incarnation: int, start: int, viewer: Viewer, policy: str) -> None:
        self.topic = topic
        self.incarnation = incarnation
        self.start = start
        self.viewer = viewer
        self.policy = policy
        self.is_over = False

    def accounted_for(self, *, unread: bool = False) -> list[int]:
        """The offsets delivered or named as dropped, in the order they were told."""
        told: list[int] = []
        for message in self.viewer.messages + (self.viewer.unread if unread else []):
            if message["type"] == "event":
                told.append(message["offset"])
            elif message.get("msg") == "dropped":
                told += range(message["first"], message["last"] + 1)
        return told


class BrokerModel(RuleBasedStateMachine):
    """The model: a list of payloads for each life of each topic."""

    viewers = Bundle("viewers")
    log_url = "memory://"

    def __init__(self) -> None:
        super().__init__()
        self._runner = asyncio.Runner()
        self._directory = tempfile.TemporaryDirectory()
        self._lives: dict[str, list[list[Any]]] = {topic: [] for topic in TOPICS}
        self._alive: set[str] = set()
        self._seen: list[Seen] = []
        self._published: list[tuple[str, int, str, int]] = []

    def _do(self, work: Any) -> Any:
        return self._runner.run(work)

    async def _open(self) -> None:
        url = self.log_url.replace("DIR", self._directory.name)
        self._log = open_log(url, log_options(Retention(count=1_000_000)))
        await self._log.open()
        # Small limits, so that a few records are enough to go from the tail to the log and back.
        self._manager = PubSubManager(self._log, Limits(chunk_bytes=400, tail_records=8, tail_bytes=4096))
        await self._manager.start()

    @initialize()
    def open(self) -> None:
        self._do(self._open())

    async def _settle(self) -> None:
        """Until every viewer that can be served has been."""
        for _ in range(500):
            await asyncio.sleep(0)
            if all(self._is_served(seen) for seen in self._seen):
                return
            await asyncio.sleep(0.001)
        raise AssertionError("the broker did not come to rest")

    def _is_served(self, seen: Seen) -> bool:
        if seen.is_over or seen.viewer.closed or seen.viewer.paused:
            return True
        life = self._lives[seen.topic][seen.incarnation]
        return len(seen.accounted_for(unread=True)) >= len(life) - seen.start

    # What clients do

    @rule(topic=st.sampled_from(TOPICS))
    def create(self, topic: str) -> None:
        if topic not in self._alive:
            self._do(self._manager.create_topic(topic))
            self._alive.add(topic)
            self._lives[topic].append([])

    @rule(topic=st.sampled_from(TOPICS))
    def delete(self, topic: str) -> None:
        if topic not in self._alive:
            return
        self._do(self._manager.delete_topic(topic))
        self._alive.discard(topic)
        for seen in self._seen:
            if seen.topic == topic:
                seen.is_over = True

    @rule(topic=st.sampled_from(TOPICS), payloads=st.lists(st.integers(0, 999), min_size=1, max_size=12))
    def publish(self, topic: str, payloads: list[int]) -> None:
        drafts = [Draft(str(uuid.uuid4()), json.dumps(payload).encode()) for payload in payloads]

        async def publish() -> Any:
            return await self._manager.publish(Batch(topic, drafts))

        if topic not in self._alive:
            try:
                self._do(publish())
            except TopicNotFound:
                return
            raise AssertionError("published to a topic that does not exist")
        life = self._lives[topic][-1]
        appended = self._do(publish())
        assert list(appended.offsets) == list(range(len(life), len(life) + len(payloads)))
        incarnation = len(self._lives[topic]) - 1
        for draft, offset in zip(drafts, appended.offsets, strict=True):
            self._published.append((topic, incarnation, draft.id, offset))
        life += payloads

    @rule(which=st.integers(0, 10_000))
    def publish_again(self, which: int) -> None:
        """A client that lost its acknowledgement publishes the same id again."""
        if not self._published:
            return
        topic, incarnation, id, offset = self._published[which % len(self._published)]
        if topic not in self._alive or incarnation != len(self._lives[topic]) - 1:
            return

        async def publish() -> Any:
            return await self._manager.publish(Batch(topic, [Draft(id, b'"repeat"')]))

        appended = self._do(publish())
        assert (list(appended.offsets), appended.duplicates) == ([offset], 1)

    @rule(
        target=viewers,
        topic=st.sampled_from(TOPICS),
        start=st.one_of(
            st.none(),
            st.tuples(st.just("last_n"), st.integers(0, 30)),
            st.tuples(st.just("from"), st.integers(0, 30)),
        ),
        policy=st.sampled_from(["lossless", "drop_oldest"]),
        room=st.sampled_from([None, 1, 300]),
    )
    def subscribe(
        self, topic: str, start: tuple[str, int] | None, policy: Any, room: int | None
    ) -> Seen | None:
        if topic not in self._alive:
            return None
        life = self._lives[topic][-1]
        if start is None:
            begin, asked = len(life), Start()
        elif start[0] == "last_n":
            begin, asked = max(0, len(life) - start[1]), Start(last_n=start[1])
        else:
            begin, asked = start[1], Start(offset=start[1])
        return self._follow(topic, begin, asked, policy, room)

    def _follow(self, topic: str, begin: int, asked: Start, policy: Any, room: int | None) -> Seen:
        async def follow() -> Viewer:
            viewer = Viewer(room)
            subscriber = Subscriber(topic, str(uuid.uuid4()), viewer, policy=policy, limit=5, start=asked)
            await self._manager.subscribe(subscriber)
            return viewer

        seen = Seen(topic, len(self._lives[topic]) - 1, begin, self._do(follow()), policy)
        self._seen.append(seen)
        return seen

    @rule(seen=viewers)
    def read(self, seen: Seen | None) -> None:
        """A slow peer reads what waits for it."""
        if seen is not None and seen.viewer.room is not None:

            async def read() -> None:
                seen.viewer.read()
                await self._settle()

            self._do(read())

    @rule(seen=consumes(viewers))
    def leave_and_resume(self, seen: Seen | None) -> None:
        """A viewer goes to lunch and comes back where it was: nothing missing, nothing twice."""
        if seen is None or seen.is_over or seen.policy != "lossless":
            return

        async def leave() -> None:
            await self._settle()
            seen.viewer.read()
            self._manager.disconnect(seen.viewer)
            seen.viewer.closed = True

        self._do(leave())
        seen.is_over = True
        told = seen.accounted_for()
        next_offset = told[-1] + 1 if told else seen.start
        self._follow(seen.topic, next_offset, Start(offset=next_offset), "lossless", None)

    # What must hold

    @invariant()
    def every_viewer_saw_exactly_its_part(self) -> None:
        if not hasattr(self, "_manager"):
            return
        self._do(self._settle())
        for seen in self._seen:
            told = seen.accounted_for()
            life = self._lives[seen.topic][seen.incarnation]
            assert told == list(range(seen.start, seen.start + len(told)))
            for event in seen.viewer.events:
                assert event["message"]["payload"] == life[event["offset"]]
            if seen.policy == "lossless":
                assert not seen.viewer.notices("dropped")

    def teardown(self) -> None:
        if hasattr(self, "_manager"):

            async def close() -> None:
                await self._manager.stop()
                await self._log.close()

            self._do(close())
        self._runner.close()
        self._directory.cleanup()


class SqliteBrokerModel(BrokerModel):
    log_url = "sqlite://DIR/log.db"

    @rule()
    def restart(self) -> None:
        """The server stops and starts again; subscribers are gone, records are not."""

        async def restart() -> None:
            await self._settle()
            for seen in self._seen:
                self._manager.disconnect(seen.viewer)
                seen.is_over = True
            await self._manager.stop()
            await self._log.close()
            await self._open()

        self._do(restart())


_SETTINGS = settings(
    max_examples=25,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)

TestMemoryModel = BrokerModel.TestCase
TestMemoryModel.settings = _SETTINGS
TestSqliteModel = SqliteBrokerModel.TestCase
TestSqliteModel.settings = _SETTINGS
