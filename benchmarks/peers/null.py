"""The null broker, which measures the ceiling; see loadgen/null_broker.c."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.build import compile_binaries
from benchmarks.generator import Endpoint
from benchmarks.peers.peer import EVENT_BYTES, Peer
from benchmarks.server_process import accepts_connections, free_port, running


@contextmanager
def ceiling(directory: Path) -> Iterator[Endpoint]:
    port = free_port()
    command = [str(compile_binaries().null_broker), str(port)]
    with running(command, directory / "null.out", lambda: accepts_connections(port)) as pid:
        yield Endpoint("json", port, pid)


NULL = Peer("null", "null broker (the generator's ceiling)", ceiling, EVENT_BYTES - 92)
