"""Reports of the kernel host, in the server's totals and in its audit trail."""

from __future__ import annotations

from typing import TYPE_CHECKING

from himalia.server.observe.audit import SERVER, Audit, AuditEvent
from himalia.server.observe.kernel_totals import KernelCounts

if TYPE_CHECKING:
    from himalia.kernels.kernel import Kernel


class KernelObserver:
    """The listener of the kernel host; see ``HostListener``. Belongs to the event loop."""

    def __init__(self, audit: Audit) -> None:
        self.counts = KernelCounts()
        """Of the kernels that have ended."""
        self._audit = audit

    def kernel_started(self, kernel: Kernel) -> None:
        """Record who started it."""
        by = kernel.owner or SERVER
        self._audit.record(AuditEvent.KERNEL_STARTED, by, kernel_id=kernel.id, name=kernel.name)

    def kernel_attached(self, kernel: Kernel, caller: str) -> None:
        """Record who attached it."""
        by = caller or SERVER
        self._audit.record(AuditEvent.KERNEL_ATTACHED, by, kernel_id=kernel.id, name=kernel.name)

    def kernel_restarted(self, kernel: Kernel, caller: str) -> None:
        """Record who restarted it."""
        self._audit.record(AuditEvent.KERNEL_RESTARTED, caller or SERVER, kernel_id=kernel.id)

    def kernel_ended(self, kernel: Kernel) -> None:
        """Keep its counts, and record who stopped it and why it ended."""
        self.counts.add(kernel)
        by, reason = kernel.lifecycle.ended_by or SERVER, kernel.lifecycle.end_reason
        self._audit.record(AuditEvent.KERNEL_STOPPED, by, kernel_id=kernel.id, reason=reason)

    def leftover_closed(self, kernel_id: str, reason: str) -> None:
        """Record that a kernel of an earlier server had ended."""
        self._audit.record(AuditEvent.KERNEL_STOPPED, SERVER, kernel_id=kernel_id, reason=reason)
