"""Where tracing looks in. The server has an implementation for OpenTelemetry."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class RequestTracing(Protocol):
    def sending(self, request_id: str, topic: str) -> Callable[[str], None]:
        """A request is about to be sent; the function returned is called with its status when the kernel is done."""
        ...
