"""A server under test: its name, and how to start it in an empty directory."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.generator import Endpoint

# What a subscriber receives per event, whatever the server.
EVENT_BYTES = 280


@dataclass(frozen=True)
class Peer:
    """A server under test. `key` is what --peers selects; several peers may share one."""

    key: str
    name: str
    start: Callable[[Path], AbstractContextManager[Endpoint]]

    # The message that is published to it, {"id":...,"payload":{...}}, in the fan-out and latency runs: as much
    # less than EVENT_BYTES as the server adds to it.
    message_bytes: int = EVENT_BYTES

    # The server may lose messages under load by design: the loss is shown and is not a failure.
    may_drop: bool = False
