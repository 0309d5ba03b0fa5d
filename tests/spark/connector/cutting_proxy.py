"""A connection that breaks: a proxy that cuts it after so many bytes of the answer."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

PART_BYTES = 4096


class CuttingProxy:
    """Passes connections on to a server. Each of ``cuts`` is what one connection gets of it, in turn; then all."""

    def __init__(self, url: str, cuts: list[int]) -> None:
        parts = urlsplit(url)
        self._target = (parts.hostname or "", parts.port or 0)
        self.cuts = cuts
        self.accepted = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.accepted += 1
            server = socket.create_connection(self._target)
            cut = self.cuts.pop(0) if self.cuts else None
            threading.Thread(target=_pass_on, args=(client, server, None), daemon=True).start()
            threading.Thread(target=_pass_on, args=(server, client, cut), daemon=True).start()


def _pass_on(source: socket.socket, target: socket.socket, cut: int | None) -> None:
    passed = 0
    try:
        while data := source.recv(PART_BYTES):
            if cut is not None and passed + len(data) > cut:
                target.sendall(data[: cut - passed])
                break
            target.sendall(data)
            passed += len(data)
    except OSError:
        pass
    for end in (source, target):
        try:
            end.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        end.close()


@contextmanager
def cutting(url: str, *cuts: int) -> Iterator[CuttingProxy]:
    proxy = CuttingProxy(url, list(cuts))
    try:
        yield proxy
    finally:
        proxy.close()
