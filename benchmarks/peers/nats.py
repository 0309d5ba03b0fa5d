"""NATS: core over its WebSocket port, and one JetStream node that syncs before it acknowledges."""

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.generator import Endpoint
from benchmarks.peers.himalia import MESSAGE_BYTES
from benchmarks.peers.peer import Peer
from benchmarks.server_process import accepts_connections, free_port, running

# By default NATS disconnects a subscriber 64 MB or 10 s behind. In a fan-out run that would be a loss.
NO_LIMITS = 'max_pending: 2GB\nwrite_deadline: "60s"\n'


@contextmanager
def _server(directory: Path, configuration: str, port: int) -> Iterator[int]:
    file = directory / "nats.conf"
    file.write_text(configuration)
    command = [str(Path(sys.executable).with_name("nats-server")), "-c", str(file)]
    with running(command, directory / "nats.out", lambda: accepts_connections(port)) as pid:
        yield pid


def _core(websocket_port: int) -> str:
    return (
        f'listen: "127.0.0.1:{free_port()}"\n'
        f'websocket {{ listen: "127.0.0.1:{websocket_port}", no_tls: true, compression: false }}\n'
    )


@contextmanager
def websocket(directory: Path) -> Iterator[Endpoint]:
    port = free_port()
    with _server(directory, _core(port) + NO_LIMITS, port) as pid:
        yield Endpoint("nats", port, pid)


@contextmanager
def websocket_with_default_limits(directory: Path) -> Iterator[Endpoint]:
    port = free_port()
    with _server(directory, _core(port), port) as pid:
        yield Endpoint("nats", port, pid)


@contextmanager
def jetstream(directory: Path) -> Iterator[Endpoint]:
    port = free_port()
    configuration = (
        f'listen: "127.0.0.1:{port}"\n'
        f'jetstream {{ store_dir: "{directory / "jetstream"}", sync_interval: always }}\n'
    )
    with _server(directory, configuration, port) as pid:
        asyncio.run(_create_stream(port))
        yield Endpoint("jetstream", port, pid)


async def _create_stream(port: int) -> None:
    import nats  # only this peer needs it

    client = await nats.connect(f"nats://127.0.0.1:{port}")
    await client.jetstream().add_stream(name="BENCH", subjects=["bench"])
    await client.close()


NATS = Peer("nats", "NATS core over WebSocket", websocket)
NATS_BARE = Peer("nats", "NATS core over WebSocket, bare message", websocket, MESSAGE_BYTES)
NATS_LIMITED = Peer("nats", "NATS core over WebSocket, its default limits", websocket_with_default_limits)
NATS_JETSTREAM = Peer("nats", "NATS JetStream, sync `always`", jetstream)
