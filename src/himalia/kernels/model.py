"""A kernel as clients see it, and the listeners: of a kernel, which is its host, and of the host."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec

from himalia.protocol.models import KernelState

__all__ = ["HostListener", "KernelIdentity", "KernelListener", "KernelModel", "KernelState", "NoListener"]

if TYPE_CHECKING:
    from himalia.kernels.kernel import Kernel


class KernelIdentity(NamedTuple):
    """What does not change while a kernel lives."""

    id: str
    name: str
    """Of its kernelspec."""
    owner: str | None
    """The caller whose kernel it is; the owner of its topic, if that exists already, takes precedence."""


class KernelModel(msgspec.Struct, frozen=True, kw_only=True):
    """A kernel as clients see it. The first five fields are Jupyter Server's."""

    id: str
    name: str
    last_activity_us: int
    execution_state: KernelState
    connections: int
    topic: str
    owner: str | None
    """The caller who started or attached it; None if that was an earlier version."""
    is_foreign: bool
    responding: bool
    queued: int
    active_request: str | None
    pid: int | None
    started_us: int
    buffered_bytes: int


class KernelListener(Protocol):
    """The host, as its kernels report to it. Called on the event loop, and must not raise."""

    def kernel_restarted(self, kernel: Kernel, caller: str) -> None:
        """It has a new process. ``caller`` is empty if the host restarted it because it died."""

    def kernel_ended(self, kernel: Kernel) -> None:
        """It died or was stopped, and all of its output is in the log."""


class HostListener(KernelListener, Protocol):
    """The server, as its kernel host reports to it. Called on the event loop, and must not raise."""

    def kernel_started(self, kernel: Kernel) -> None:
        """Its process was started. It may run code from now on, although it has not answered yet."""

    def kernel_attached(self, kernel: Kernel, caller: str) -> None:
        """A caller attached it, or attached it again. ``caller`` is empty if none is known."""

    def leftover_closed(self, kernel_id: str, reason: str) -> None:
        """A kernel of an earlier server was gone when this host was opened."""


class NoListener:
    """A host listener that ignores every report."""

    def kernel_started(self, kernel: Kernel) -> None: ...

    def kernel_attached(self, kernel: Kernel, caller: str) -> None: ...

    def kernel_restarted(self, kernel: Kernel, caller: str) -> None: ...

    def kernel_ended(self, kernel: Kernel) -> None: ...

    def leftover_closed(self, kernel_id: str, reason: str) -> None: ...
