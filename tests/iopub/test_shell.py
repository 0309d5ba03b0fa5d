"""The client of a kernel's shell, control and stdin sockets."""

from __future__ import annotations

import asyncio
import random

import zmq

from himalia.iopub.shell import ShellClient
from himalia.jupyter.connection_file import ConnectionInfo
from himalia.jupyter.wire import Wire

CLIENTS = 300
DEADLINE_MS = 20_000


async def test_a_client_that_is_closed_while_it_connects_holds_up_no_other() -> None:
    """All kernels of a server share one I/O thread of ZeroMQ, which no client may block by closing at any moment."""
    ours: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    theirs: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    kernel = [theirs.socket(zmq.ROUTER) for _ in range(4)]
    ports = [socket.bind_to_random_port("tcp://127.0.0.1") for socket in kernel]
    shell, stdin, control, echo = ports
    connection = ConnectionInfo(shell, 0, stdin, control, 0)
    chance = random.Random(13)
    for _ in range(CLIENTS):
        client = ShellClient(connection, Wire(b"key"), ours)
        await asyncio.sleep(chance.random() * 0.002)
        client.close()

    other = ours.socket(zmq.DEALER)
    other.connect(f"tcp://127.0.0.1:{echo}")
    other.send(b"are you there?")
    assert await asyncio.to_thread(kernel[3].poll, DEADLINE_MS)
    for context in (ours, theirs):
        context.destroy(linger=0)
