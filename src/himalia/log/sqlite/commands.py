"""What the event loop sends to the writer thread, and what the thread reports back."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from himalia.errors import HimaliaError
from himalia.log.api import Appended, Batch, Change, Health
from himalia.log.transaction import Transaction
from himalia.record import Record, Retention, TopicInfo


class WriteCommand(Protocol):
    """An operation to be stored. May be staged twice: again after another one made its transaction fail.

    ``future`` belongs to the event loop: the writer thread passes it on, and never reads or sets it.
    """

    @property
    def future(self) -> asyncio.Future[Any]: ...

    def stage(self, transaction: Transaction) -> Any: ...


class AppendCommand:
    __slots__ = ("batch", "future")

    def __init__(self, future: asyncio.Future[Appended], batch: Batch) -> None:
        self.future = future
        self.batch = batch

    def stage(self, transaction: Transaction) -> Appended:
        return transaction.append(self.batch)


class CreateCommand:
    __slots__ = ("future", "owner", "retention", "topic")

    def __init__(
        self, future: asyncio.Future[TopicInfo], topic: str, retention: Retention | None, owner: str | None
    ) -> None:
        self.future = future
        self.topic = topic
        self.retention = retention
        self.owner = owner

    def stage(self, transaction: Transaction) -> TopicInfo:
        return transaction.create(self.topic, self.retention, self.owner)


class DeleteCommand:
    __slots__ = ("future", "topic")

    def __init__(self, future: asyncio.Future[TopicInfo], topic: str) -> None:
        self.future = future
        self.topic = topic

    def stage(self, transaction: Transaction) -> TopicInfo:
        return transaction.delete(self.topic)


class ConfirmClockCommand:
    """Date records by the wall clock again; the result is the warning that this resolves."""

    __slots__ = ("future",)

    def __init__(self, future: asyncio.Future[str | None]) -> None:
        self.future = future


class StopCommand:
    """The last command: store the earlier ones, then end."""

    __slots__ = ()


Command = WriteCommand | ConfirmClockCommand | StopCommand


class Outcome(msgspec.Struct, frozen=True):
    """The result of a command, or its error."""

    future: asyncio.Future[Any]
    result: Any = None
    error: HimaliaError | None = None


class CommittedRecords(msgspec.Struct, frozen=True):
    """Records of one topic in one commit."""

    epoch: str
    records: Sequence[Record]
    size_bytes: int


class WriterReport(msgspec.Struct, frozen=True):
    """What one iteration of the writer changed; the event loop applies all of it in one callback."""

    outcomes: Sequence[Outcome] = ()
    topics: Sequence[TopicInfo] = ()
    """The new states of topics that changed."""
    deleted_topics: Sequence[TopicInfo] = ()
    added: Sequence[CommittedRecords] = ()
    changes: Sequence[Change] = ()
    health: Health | None = None
    commit_seconds: float | None = None
    records: int = 0
    duplicates: int = 0
    failures: int = 0
    steps: int = 0
    """Steps of maintenance."""
