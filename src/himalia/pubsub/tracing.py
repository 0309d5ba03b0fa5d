"""Where tracing hooks into the broker. The broker knows no tracing library; the server brings one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from himalia.log.contract import Batch
from himalia.record import Record


class Tracing(Protocol):
    def publishing(self, batch: Batch) -> tuple[Batch, Callable[[BaseException | None], None]]:
        """The batch with the trace's context in its headers, and what to call when its fate is known."""
        ...

    def delivering(self, topic: str, records: Sequence[Record], subscribers: int) -> None:
        """These records go to that many subscribers now."""
