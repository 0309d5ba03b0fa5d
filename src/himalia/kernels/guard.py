"""A request that is registered for the length of a ``with`` block."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

from himalia.kernels.channels import Sink

if TYPE_CHECKING:
    from himalia.kernels.broker import IopubBroker, RequestContext


class ExecutionGuard:
    """Keeps a request registered for the length of a ``with`` block. The block gets the ``RequestContext``."""

    __slots__ = ("_broker", "_channels", "request_id")

    def __init__(self, broker: IopubBroker, request_id: str, channels: Sink) -> None:
        self._broker = broker
        self._channels = channels
        self.request_id = request_id

    def __enter__(self) -> RequestContext:
        return self._broker.register_request(self.request_id, self._channels)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._broker.unregister_request(self.request_id)
