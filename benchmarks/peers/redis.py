"""Redis: pub/sub without persistence, and a stream whose every entry is on disk before it is acknowledged."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.generator import Endpoint
from benchmarks.peers.himalia import MESSAGE_BYTES
from benchmarks.peers.peer import Peer
from benchmarks.server_process import accepts_connections, free_port, running

CLIENTS_MAX = "16000"

# By default Redis disconnects a subscriber that is 32 MB behind. In a fan-out run that would be a loss.
NO_LIMITS = ["--client-output-buffer-limit", "pubsub", "0", "0", "0"]

# No rewrite of the file may fall into a run.
ALWAYS = ["--appendonly", "yes", "--appendfsync", "always", "--auto-aof-rewrite-percentage", "0"]


@contextmanager
def _server(directory: Path, dialect: str, options: list[str]) -> Iterator[Endpoint]:
    port = free_port()
    command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--dir", str(directory)]
    command += ["--save", "", "--maxclients", CLIENTS_MAX, *options]
    with running(command, directory / "redis.out", lambda: accepts_connections(port)) as pid:
        yield Endpoint(dialect, port, pid)


@contextmanager
def pubsub(directory: Path) -> Iterator[Endpoint]:
    with _server(directory, "redis", ["--appendonly", "no", *NO_LIMITS]) as endpoint:
        yield endpoint


@contextmanager
def pubsub_with_default_limits(directory: Path) -> Iterator[Endpoint]:
    with _server(directory, "redis", ["--appendonly", "no"]) as endpoint:
        yield endpoint


@contextmanager
def durable_stream(directory: Path) -> Iterator[Endpoint]:
    with _server(directory, "stream", ALWAYS) as endpoint:
        yield endpoint


REDIS = Peer("redis", "Redis pub/sub", pubsub)
REDIS_BARE = Peer("redis", "Redis pub/sub, bare message", pubsub, MESSAGE_BYTES)
REDIS_LIMITED = Peer("redis", "Redis pub/sub, its default limits", pubsub_with_default_limits)
REDIS_STREAM = Peer("redis", "Redis XADD, AOF `always`", durable_stream)
