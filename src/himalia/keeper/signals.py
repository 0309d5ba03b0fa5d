"""Signals to the keeper, as something that its loop can wait for."""

from __future__ import annotations

import signal
import socket
from types import FrameType


class Signals:
    """Signals as a readable socket. Handlers are functions, since an exec would pass ignored signals on."""

    def __init__(self) -> None:
        self.is_asked_to_end = False
        self.reader, self._writer = socket.socketpair()
        self.reader.setblocking(False)
        self._writer.setblocking(False)
        signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        for signum in (signal.SIGCHLD, signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
            signal.signal(signum, self._handle)
        # The process that started the keeper may have blocked some, and the kernel would inherit that.
        signal.pthread_sigmask(signal.SIG_SETMASK, ())

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if signum == signal.SIGTERM:
            self.is_asked_to_end = True

    def clear(self) -> None:
        try:
            while self.reader.recv(4096):
                pass
        except BlockingIOError:
            pass
