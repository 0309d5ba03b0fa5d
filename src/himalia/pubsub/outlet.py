"""Where a subscriber's bytes go: gathered during a tick, written once at its end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from himalia.errors import HimaliaError
from himalia.record import Record

if TYPE_CHECKING:
    from himalia.pubsub.subscription import Cursor, Subscriber


class Codec(Protocol):
    """How one kind of transport says things. Stateless and shared, so that equal bytes are made once."""

    def event(self, record: Record) -> bytes: ...

    def dropped(self, topic: str, client_id: str, first: int, last: int) -> bytes: ...

    def gap(self, topic: str, client_id: str, requested: int, first: int, end: int) -> bytes: ...

    def topic_created(self, topic: str, client_id: str, epoch: str) -> bytes: ...

    def topic_deleted(self, topic: str, client_id: str) -> bytes: ...

    def replaced(self, topic: str, client_id: str) -> bytes: ...

    def error(self, error: HimaliaError, topic: str | None = None) -> bytes: ...


class Outlet(ABC):
    """The sending half of a connection, shared by all its subscriptions.

    ``gather`` never blocks and never fails; ``flush`` hands what was gathered to the transport in one write.
    The transport sets ``paused`` while it cannot take more and calls ``on_ready`` when it can again.
    """

    __slots__ = (
        "_blocked",
        "_gathered",
        "_pauses",
        "_unread",
        "buffered_bytes",
        "closed",
        "codec",
        "on_ready",
        "paused",
        "reading",
        "subscribers",
    )

    def __init__(self, codec: Codec) -> None:
        self.codec = codec
        self.paused = False
        self.closed = False
        self.buffered_bytes = 0
        # Whether the log is being read for one of its cursors: one read at a time bounds its memory.
        self.reading = False
        self.subscribers: dict[Subscriber, None] = {}
        self.on_ready: Callable[[Outlet], None] | None = None
        self._gathered: list[bytes] = []
        # How often the transport was full and could take more again.
        self._pauses = 0
        # Cursors with something to send, and the number of pauses when they were held up: by the transport, or by
        # another read of the log. Not there while they are empty, which is nearly always.
        self._blocked: OrderedDict[Cursor, int] | None = None
        self._unread: OrderedDict[Cursor, int] | None = None

    def buffer(self, data: bytes) -> None:
        self._gathered.append(data)
        self.buffered_bytes += len(data)

    def flush(self) -> None:
        if not self._gathered:
            return
        gathered = self._gathered
        data = gathered[0] if len(gathered) == 1 else b"".join(gathered)
        self._gathered = []
        self.buffered_bytes = 0
        if not self.closed:
            self.write(data)

    def block(self, cursor: Cursor) -> None:
        """The cursor has more to send when the transport can take more."""
        if self._blocked is None:
            self._blocked = OrderedDict()
        self._blocked[cursor] = self._pauses

    def await_read(self, cursor: Cursor) -> None:
        """The cursor is behind the tail, and the log is being read for another one of this outlet."""
        if self._unread is None:
            self._unread = OrderedDict()
        self._unread[cursor] = self._pauses

    def take_blocked(self, count: int) -> list[Cursor]:
        """Up to ``count`` cursors that can go on now, those that have waited longest first."""
        taken: list[Cursor] = []
        if self._unread and not self.reading:
            taken.append(self._release(self._unread))
        while self._blocked and len(taken) < count:
            taken.append(self._release(self._blocked))
        if not self._blocked:
            self._blocked = None
        if not self._unread:
            self._unread = None
        return taken

    def _release(self, waiting: OrderedDict[Cursor, int]) -> Cursor:
        cursor, pauses = waiting.popitem(last=False)
        if pauses != self._pauses:
            cursor.stalled = True
        return cursor

    @property
    def has_blocked(self) -> bool:
        """Whether ``take_blocked`` would give something."""
        return bool(self._blocked) or (bool(self._unread) and not self.reading)

    def forget(self, cursor: Cursor) -> None:
        """The cursor is closed."""
        if self._blocked is not None:
            self._blocked.pop(cursor, None)
        if self._unread is not None:
            self._unread.pop(cursor, None)

    def resume(self) -> None:
        """The transport can take more. Called by the transport."""
        self.paused = False
        self._pauses += 1
        if self.on_ready is not None:
            self.on_ready(self)

    @property
    @abstractmethod
    def unsent_bytes(self) -> int:
        """What the transport holds and the peer's machine has not taken yet."""

    @abstractmethod
    def write(self, data: bytes) -> None:
        """Give bytes to the transport, which may set ``paused`` at once."""

    @abstractmethod
    def close(self, error: HimaliaError) -> None:
        """End the connection because of ``error``, which was already gathered and flushed."""
