"""Following a kept kernel: its spool is read when its keeper says that it grew."""

from __future__ import annotations

import logging
import socket
import threading

import zmq

from himalia.kernels.intake import Intake
from himalia.kernels.keeping import follow

logger = logging.getLogger("himalia.kernels.following")


class SpoolFeed:
    """A feed of the IOPub thread. Without its keeper's notices it reads all the same, every now and then."""

    is_flooding = False
    """The keeper lets messages gather: here it would only take longer."""

    def __init__(self, intake: Intake, keeper_socket: str) -> None:
        self.name = keeper_socket
        self.closed = threading.Event()
        self._intake = intake
        self._notices: socket.socket | None = None

    def open(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        try:
            self._notices = follow(self.name)
        except OSError as error:
            # It has ended, and what it wrote is read all the same.
            logger.info("no keeper tells of what comes to its spool: %s (%s)", self.name, error)

    @property
    def source(self) -> int | None:
        return self._notices.fileno() if self._notices is not None else None

    def drain(self) -> bool:
        # First the notices: what comes while the spool is read brings another one.
        self._take_notices()
        return self._intake.read()

    def periodic(self) -> bool:
        return self._intake.periodic()

    def close(self) -> None:
        self._intake.close()
        if self._notices is not None:
            self._notices.close()
            self._notices = None

    def _take_notices(self) -> None:
        if self._notices is None:
            return
        try:
            is_open = bool(self._notices.recv(1 << 16))
        except BlockingIOError:
            return
        except OSError:
            is_open = False
        if not is_open:
            self._notices.close()
            self._notices = None
