"""What happens to kernels: reported by each to its host, and by the host to the server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from himalia.kernels.kernel import Kernel


class KernelListener(Protocol):
    """Called on the event loop, and must not raise."""

    def kernel_restarted(self, kernel: Kernel, caller: str) -> None:
        """It has a new process. ``caller`` is empty if the host restarted it because it died."""

    def kernel_ended(self, kernel: Kernel) -> None:
        """It died or was stopped, and everything it said is in the log."""


class HostListener(KernelListener, Protocol):
    """Called on the event loop, and must not raise."""

    def kernel_started(self, kernel: Kernel) -> None:
        """Its process was started. It may run code from now on, although it has not answered yet."""

    def leftover_closed(self, kernel_id: str, reason: str) -> None:
        """A kernel of an earlier server was gone when this host was opened."""
