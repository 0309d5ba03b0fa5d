"""Himalia with the durable SQLite log and default settings."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks import rest
from benchmarks.generator import Endpoint
from benchmarks.peers.peer import EVENT_BYTES, Peer
from benchmarks.server_process import free_port, running

TOPIC = "bench"


@contextmanager
def durable(directory: Path) -> Iterator[Endpoint]:
    port = free_port()
    program = Path(sys.executable).with_name("himalia")
    command = [str(program), "serve", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--log", f"sqlite:///{directory / 'log.db'}", "--no-auth"]
    with running(command, directory / "himalia.out", lambda: rest.is_healthy(port)) as pid:
        rest.create_topic(port, TOPIC)
        yield Endpoint("json", port, pid, policy="lossless")


# Himalia adds type, topic, offset, time and the publisher's name.
MESSAGE_BYTES = EVENT_BYTES - 128

HIMALIA = Peer("himalia", "Himalia, durable log", durable, MESSAGE_BYTES)
