"""What every kernel is given by its host."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import zmq

from himalia.kernels.iopub import IopubThread
from himalia.kernels.tracing import RequestTracing
from himalia.pubsub import PubSubManager
from himalia.settings import Settings


class Parts(NamedTuple):
    """What all kernels of a server share."""

    manager: PubSubManager
    iopub: IopubThread
    context: zmq.Context[zmq.Socket[bytes]]
    settings: Settings
    tracing: RequestTracing | None
    clock: Callable[[], float] = time.monotonic
    """By which requests go stale."""
