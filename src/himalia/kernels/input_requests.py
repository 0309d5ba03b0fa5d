"""Input that running code requests on stdin."""

from __future__ import annotations

from himalia.errors import KernelUnavailable
from himalia.jupyter.wire import KernelMessage
from himalia.kernels.connector import KernelConnector
from himalia.kernels.output import KernelOutput
from himalia.kernels.scheduler import RequestScheduler


class InputRequests:
    """The request for input that the running code waits for, if any. Belongs to the event loop."""

    def __init__(self, connector: KernelConnector, output: KernelOutput, scheduler: RequestScheduler) -> None:
        self._connector = connector
        self._output = output
        self._scheduler = scheduler
        self._pending: KernelMessage | None = None

    @property
    def is_pending(self) -> bool:
        """Whether a request for input has no reply yet. Its code may have been interrupted."""
        return self._pending is not None

    def on_request(self, message: KernelMessage) -> None:
        """Record an ``input_request`` of the kernel, and remember it for the reply."""
        self._pending = message
        self._output.append_message(message, "stdin")

    def reply(self, value: str, caller: str = "") -> None:
        """Send the input, and record it unless it is a password. ``KernelUnavailable`` if no code waits for input."""
        request, self._pending = self._pending, None
        active = self._scheduler.active
        # The code may have been interrupted meanwhile.
        if request is None or active is None or request.parent_id != active.id:
            raise KernelUnavailable(
                "the kernel is not waiting for input now", kernel_id=self._output.kernel_id
            )
        reply = self._connector.send_input_reply(value, request, caller)
        if request.decoded_content().get("password") is not True:
            self._output.append_message(reply, "stdin")
