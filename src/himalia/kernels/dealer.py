"""A ZeroMQ DEALER socket on the event loop, without a task or a thread of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import zmq


class Dealer:
    """Sends without waiting and calls ``on_frames`` for whatever comes. Lives on one event loop."""

    def __init__(self, socket: zmq.Socket[bytes], on_frames: Callable[[list[bytes]], None]) -> None:
        self._socket = socket
        self._on_frames = on_frames
        self._loop = asyncio.get_running_loop()
        self._descriptor = int(socket.getsockopt(zmq.FD))
        self._loop.add_reader(self._descriptor, self._drain)
        # Something may have come before the loop looked.
        self._loop.call_soon(self._drain)

    def send(self, frames: Sequence[bytes]) -> bool:
        """Hand a message over; false if the peer has not taken the last thousand."""
        if self._socket.closed:
            return False
        try:
            self._socket.send_multipart(frames, zmq.NOBLOCK)
        except zmq.Again:
            return False
        # The descriptor tells of an edge only, and sending may have used it up.
        self._loop.call_soon(self._drain)
        return True

    def close(self) -> None:
        if not self._socket.closed:
            self._loop.remove_reader(self._descriptor)
            self._socket.close(linger=0)

    def _drain(self) -> None:
        while not self._socket.closed and int(self._socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._on_frames(frames)
