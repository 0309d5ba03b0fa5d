"""A server of any checkout, with a token, a topic and a table, for `abuses` and `churn`."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from deltalake import write_deltalake

from benchmarks import rest
from benchmarks.hostile_client import TOKEN
from benchmarks.server_process import free_port, running

TOPIC = "bench"
TABLE = "messages"
WARM_ANSWERS = 20


@dataclass(frozen=True)
class LocalServer:
    port: int
    pid: int


@contextmanager
def local_server(python: Path, directory: Path) -> Iterator[LocalServer]:
    """Run the server installed for this Python on an empty log below ``directory``."""
    port = free_port()
    # With ``ts``, the server's sort column: without it every query would be refused at once.
    ts = pa.array([0], pa.timestamp("us", "UTC"))
    write_deltalake(directory / "warehouse" / TABLE, pa.table({"topic": [TOPIC], "offset": [0], "ts": ts}))
    command = [str(python), "-m", "himalia.cli", "serve", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--log", f"sqlite://{directory / 'log.db'}", "--warehouse", str(directory / "warehouse")]
    command += ["--token", TOKEN, "--no-kernels"]
    with running(command, directory / "himalia.out", lambda: rest.is_healthy(port)) as pid:
        rest.create_topic(port, TOPIC, token=TOKEN)
        for _ in range(WARM_ANSWERS):
            rest.is_healthy(port)
        yield LocalServer(port, pid)
