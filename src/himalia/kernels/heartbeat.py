"""The heartbeat: whether a kernel's process answers at all, even while it runs something."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import zmq

from himalia.kernels.connection_file import ConnectionInfo
from himalia.kernels.dealer import Dealer

MISSES = 3


class Heartbeat:
    """Pings a kernel until closed. Lives on one event loop.

    ``responding`` turns false after three pings without an answer and true with the next answer;
    ``on_change`` is told of both, ``on_beat`` of every answer. It is true until the first pings have been missed.
    """

    def __init__(
        self,
        connection: ConnectionInfo,
        context: zmq.Context[zmq.Socket[bytes]],
        interval_s: float,
        on_change: Callable[[bool], None],
        on_beat: Callable[[], None],
    ) -> None:
        socket = context.socket(zmq.DEALER)
        connection.secure(socket)
        socket.connect(connection.endpoint("hb"))
        self.responding = True
        self._interval_s = interval_s
        self._on_change = on_change
        self._on_beat = on_beat
        self._missed = 0
        self._dealer = Dealer(socket, self._answered)
        self._task = asyncio.get_running_loop().create_task(self._beat())

    def close(self) -> None:
        self._task.cancel()
        self._dealer.close()

    async def _beat(self) -> None:
        while True:
            # The empty frame makes it what the kernel's REP socket expects.
            self._dealer.send([b"", b"ping"])
            await asyncio.sleep(self._interval_s)
            self._missed += 1
            if self._missed > MISSES and self.responding:
                self.responding = False
                self._on_change(False)

    def _answered(self, frames: list[bytes]) -> None:
        self._missed = 0
        self._on_beat()
        if not self.responding:
            self.responding = True
            self._on_change(True)
