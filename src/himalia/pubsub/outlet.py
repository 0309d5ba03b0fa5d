"""Where a subscriber's bytes go: buffered during a tick, written once at its end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from typing import TYPE_CHECKING, Protocol

from himalia.errors import HimaliaError
from himalia.record import Record

if TYPE_CHECKING:
    from himalia.pubsub.subscription import Cursor, Subscriber


class Codec(Protocol):
    """Encodes events and notices for one kind of transport. Stateless and shared, so equal bytes are made once."""

    def encode_event(self, record: Record) -> bytes: ...

    def encode_dropped(self, topic: str, client_id: str, first: int, last: int) -> bytes: ...

    def encode_gap(self, topic: str, client_id: str, requested: int, first: int, end: int) -> bytes: ...

    def encode_topic_created(self, topic: str, client_id: str, epoch: str) -> bytes: ...

    def encode_topic_deleted(self, topic: str, client_id: str) -> bytes: ...

    def encode_replaced(self, topic: str, client_id: str) -> bytes: ...

    def encode_error(self, error: HimaliaError, topic: str | None = None) -> bytes: ...


class OutletListener(Protocol):
    """Serves the cursors of an outlet."""

    def mark_outlet(self, outlet: Outlet) -> None:
        """Called when the transport can take more."""


class Outlet(ABC):
    """The sending half of a connection, shared by all its subscriptions. Used on the event loop.

    ``buffer`` never blocks and never fails; ``flush`` passes what was buffered to the transport in one write.
    The transport sets ``paused`` while it cannot take more, and calls ``resume`` when it can again.
    """

    __slots__ = (
        "_blocked",
        "_buffer",
        "_listener",
        "_pauses",
        "_unread",
        "buffered_bytes",
        "closed",
        "codec",
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
        # None until the first subscription.
        self._listener: OutletListener | None = None
        self._buffer: list[bytes] = []
        # How often the transport was full and became writable again.
        self._pauses = 0
        # Cursors with something to send, and the number of pauses when they were blocked: by the transport, or by
        # another read of the log. None while they are empty, which is nearly always.
        self._blocked: OrderedDict[Cursor, int] | None = None
        self._unread: OrderedDict[Cursor, int] | None = None

    def attach(self, subscriber: Subscriber, listener: OutletListener) -> None:
        """Add a subscription, whose cursors ``listener`` serves."""
        self.subscribers[subscriber] = None
        self._listener = listener

    def buffer(self, data: bytes) -> None:
        self._buffer.append(data)
        self.buffered_bytes += len(data)

    def flush(self) -> None:
        if not self._buffer:
            return
        buffered = self._buffer
        data = buffered[0] if len(buffered) == 1 else b"".join(buffered)
        self._buffer = []
        self.buffered_bytes = 0
        if not self.closed:
            self.write(data)

    def block(self, cursor: Cursor) -> None:
        """Keep a cursor that has more to send until the transport can take more."""
        if self._blocked is None:
            self._blocked = OrderedDict()
        self._blocked[cursor] = self._pauses

    def await_read(self, cursor: Cursor) -> None:
        """Keep a cursor that is behind the tail while the log is read for another one of this outlet."""
        if self._unread is None:
            self._unread = OrderedDict()
        self._unread[cursor] = self._pauses

    def pop_blocked(self, count: int) -> list[Cursor]:
        """Remove and return up to ``count`` cursors that can be served now, the longest waiting first."""
        popped: list[Cursor] = []
        if self._unread and not self.reading:
            popped.append(self._pop(self._unread))
        while self._blocked and len(popped) < count:
            popped.append(self._pop(self._blocked))
        if not self._blocked:
            self._blocked = None
        if not self._unread:
            self._unread = None
        return popped

    def _pop(self, waiting: OrderedDict[Cursor, int]) -> Cursor:
        cursor, pauses = waiting.popitem(last=False)
        if pauses != self._pauses:
            cursor.stalled = True
        return cursor

    @property
    def has_blocked(self) -> bool:
        """Whether ``pop_blocked`` would return any cursor."""
        return bool(self._blocked) or (bool(self._unread) and not self.reading)

    def remove(self, cursor: Cursor) -> None:
        """Drop a cursor that is closed."""
        if self._blocked is not None:
            self._blocked.pop(cursor, None)
        if self._unread is not None:
            self._unread.pop(cursor, None)

    def resume(self) -> None:
        """Called by the transport when it can take more."""
        self.paused = False
        self._pauses += 1
        if self._listener is not None:
            self._listener.mark_outlet(self)

    @property
    @abstractmethod
    def unsent_bytes(self) -> int:
        """Bytes that the transport holds and the peer's machine has not received yet."""

    @abstractmethod
    def write(self, data: bytes) -> None:
        """Pass bytes to the transport, which may set ``paused`` at once."""

    @abstractmethod
    def close(self, error: HimaliaError) -> None:
        """Close the connection because of ``error``, which has been buffered and flushed already."""
