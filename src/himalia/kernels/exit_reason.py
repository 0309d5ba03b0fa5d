"""How a kernel's process ended, in words that name the likely reason."""

from __future__ import annotations

import signal

from himalia.kernels.keeper.limits import Limits

_CRASHES = (signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS)


def exit_reason(returncode: int, limits: Limits) -> str:
    """What a return code says, as ``subprocess`` has it, of a kernel that was started with these limits."""
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
