"""The resource limits of a kernel's process, and the likely reason of its end."""

from __future__ import annotations

import resource
import signal
from typing import NamedTuple

CPU_GRACE_S = 5
"""From SIGXCPU, which code in a kernel can catch, to SIGKILL, which it cannot."""


class Limits(NamedTuple):
    """The limits of a kernel's process, and of each process that it starts; 0 is no limit."""

    memory_max: int = 0
    """Bytes of address space."""
    cpu_s_max: int = 0
    """Seconds of CPU time, from its start to its end."""
    descriptors: int = 0
    """Open files, which the process may raise itself: ``select`` fails above 1,023."""

    def apply(self) -> None:
        """Set them for this process: called in the child, between fork and exec, where only system calls are safe."""
        if self.memory_max:
            _limit(resource.RLIMIT_AS, self.memory_max, self.memory_max)
        if self.cpu_s_max:
            _limit(resource.RLIMIT_CPU, self.cpu_s_max, self.cpu_s_max + CPU_GRACE_S)
            # SIGXCPU would leave a core file as large as the kernel.
            _limit(resource.RLIMIT_CORE, 0, 0)
        if self.descriptors:
            _limit(resource.RLIMIT_NOFILE, self.descriptors, resource.getrlimit(resource.RLIMIT_NOFILE)[1])


def _limit(which: int, soft: int, hard: int) -> None:
    # Only root can raise a hard limit that the server itself was started with.
    _, present = resource.getrlimit(which)
    if present != resource.RLIM_INFINITY:
        soft, hard = min(soft, present), min(hard, present)
    resource.setrlimit(which, (soft, hard))


_CRASHES = (signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS)


def exit_reason(returncode: int, limits: Limits) -> str:
    """Describe the end of a kernel with these limits, by its return code as ``subprocess`` reports it."""
    if returncode >= 0:
        hint = _memory_hint(limits) if returncode else ""
        return f"ended with code {returncode}{hint}"
    signum = -returncode
    return f"killed by signal {signum}{_name(signum)}{_likely(signum, limits)}"


def _likely(signum: int, limits: Limits) -> str:
    if signum == signal.SIGXCPU and limits.cpu_s_max:
        return f": it used more than {limits.cpu_s_max} s of CPU time, its limit (kernel_cpu_s_max)"
    if signum in _CRASHES:
        return _memory_hint(limits)
    if signum == signal.SIGKILL and limits.cpu_s_max:
        return f": it may have used more than {limits.cpu_s_max} s of CPU time, its limit (kernel_cpu_s_max)"
    return ""


def _memory_hint(limits: Limits) -> str:
    if not limits.memory_max:
        return ""
    return (
        f": it may have needed more than {limits.memory_max} bytes of memory, its limit (kernel_memory_max)"
    )


def _name(signum: int) -> str:
    try:
        return f" ({signal.Signals(signum).name})"
    except ValueError:
        return ""
