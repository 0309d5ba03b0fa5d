"""What all kernels of a server share, and the hook for tracing; the server implements it with OpenTelemetry."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple, Protocol

import zmq

from himalia.iopub.listener import IopubThread
from himalia.log.api import Log
from himalia.pubsub import PubSubManager
from himalia.settings import Settings


class KernelContext(NamedTuple):
    """What all kernels of a server share."""

    manager: PubSubManager
    iopub: IopubThread
    sockets: zmq.Context[zmq.Socket[bytes]]
    settings: Settings
    tracing: RequestTracing | None
    clock: Callable[[], float] = time.monotonic
    """Gives the seconds after which requests go stale."""

    @property
    def log(self) -> Log:
        return self.manager.log


class RequestTracing(Protocol):
    def sending(self, request_id: str, topic: str) -> Callable[[str], None]:
        """A request is about to be sent; the function returned is called with its status when the kernel is done."""
