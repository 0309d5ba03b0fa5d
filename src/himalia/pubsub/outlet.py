"""Where a subscriber's bytes go: gathered during a tick, written once at its end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from himalia.errors import HimaliaError
from himalia.record import Record

if TYPE_CHECKING:
    from himalia.pubsub.subscriber import Subscriber


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
        "_gathered",
        "closed",
        "codec",
        "gathered_bytes",
        "on_ready",
        "paused",
        "reading",
        "subscribers",
    )

    def __init__(self, codec: Codec) -> None:
        self.codec = codec
        self.paused = False
        self.closed = False
        self.gathered_bytes = 0
        # Whether the log is being read for one of its cursors: one read at a time bounds its memory.
        self.reading = False
        self.subscribers: dict[Subscriber, None] = {}
        self.on_ready: Callable[[Outlet], None] | None = None
        self._gathered: list[bytes] = []

    def gather(self, data: bytes) -> None:
        self._gathered.append(data)
        self.gathered_bytes += len(data)

    def flush(self) -> None:
        if not self._gathered:
            return
        gathered = self._gathered
        data = gathered[0] if len(gathered) == 1 else b"".join(gathered)
        self._gathered = []
        self.gathered_bytes = 0
        if not self.closed:
            self.write(data)

    def ready(self) -> None:
        """The transport can take more. Called by the transport."""
        self.paused = False
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
