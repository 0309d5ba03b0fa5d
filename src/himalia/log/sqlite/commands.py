"""What the event loop asks of the writer's thread, and what the thread tells it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from himalia.errors import HimaliaError
from himalia.log.api import Appended, Batch, Change, Health
from himalia.log.transaction import Group
from himalia.record import Record, Retention, TopicInfo


class Job(Protocol):
    """Something to be stored. May be staged twice: again after the group it was in failed because of another."""

    @property
    def future(self) -> asyncio.Future[Any]: ...

    def stage(self, group: Group) -> Any: ...


class AppendJob:
    __slots__ = ("batch", "future")

    def __init__(self, future: asyncio.Future[Appended], batch: Batch) -> None:
        self.future = future
        self.batch = batch

    def stage(self, group: Group) -> Appended:
        return group.append(self.batch)


class CreateJob:
    __slots__ = ("future", "owner", "retention", "topic")

    def __init__(
        self, future: asyncio.Future[TopicInfo], topic: str, retention: Retention | None, owner: str | None
    ) -> None:
        self.future = future
        self.topic = topic
        self.retention = retention
        self.owner = owner

    def stage(self, group: Group) -> TopicInfo:
        return group.create(self.topic, self.retention, self.owner)


class DeleteJob:
    __slots__ = ("future", "topic")

    def __init__(self, future: asyncio.Future[TopicInfo], topic: str) -> None:
        self.future = future
        self.topic = topic

    def stage(self, group: Group) -> TopicInfo:
        return group.delete(self.topic)


class SettleJob:
    """Done when retention and erasing have nothing left to do, or cannot go on."""

    __slots__ = ("future",)

    def __init__(self, future: asyncio.Future[None]) -> None:
        self.future = future


class ConfirmClockJob:
    """Done when the log goes by the wall clock; answered with what was doubted of that before."""

    __slots__ = ("future",)

    def __init__(self, future: asyncio.Future[str | None]) -> None:
        self.future = future


class StopJob:
    """The last one: store what came before, then end."""

    __slots__ = ()


class Outcome(msgspec.Struct, frozen=True):
    """What became of a job: a result, or an error."""

    future: asyncio.Future[Any]
    result: Any = None
    error: HimaliaError | None = None


class NewRecords(msgspec.Struct, frozen=True):
    """Records of one topic in one commit."""

    epoch: str
    records: Sequence[Record]
    size_bytes: int


class News(msgspec.Struct, frozen=True):
    """Everything the event loop learns from one turn of the writer, to be taken in at one stroke."""

    outcomes: Sequence[Outcome] = ()
    topics: Sequence[TopicInfo] = ()
    """Topics as they are now."""
    ended: Sequence[TopicInfo] = ()
    """Topics that are deleted."""
    added: Sequence[NewRecords] = ()
    changes: Sequence[Change] = ()
    health: Health | None = None
    commit_seconds: float | None = None
    records: int = 0
    duplicates: int = 0
    failures: int = 0
    steps: int = 0
    """Steps of retention and erasing."""
