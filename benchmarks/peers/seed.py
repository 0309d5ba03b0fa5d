"""A broker in memory, as a FastAPI app on uvicorn with uvloop and httptools."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks import rest
from benchmarks.generator import Endpoint
from benchmarks.peers.peer import EVENT_BYTES, Peer
from benchmarks.server_process import free_port, running


@contextmanager
def in_memory(directory: Path) -> Iterator[Endpoint]:
    port = free_port()
    command = [sys.executable, "-m", "benchmarks.peers.seed_app", str(port)]
    with running(command, directory / "seed.out", lambda: rest.is_healthy(port)) as pid:
        rest.create_topic(port, "bench")
        yield Endpoint("json", port, pid)


# It adds type, topic and time.
SEED = Peer("seed", "FastAPI broker, in memory", in_memory, EVENT_BYTES - 83, may_drop=True)
