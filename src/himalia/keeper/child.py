"""The kernel's process, a child of the keeper in a session and process group of its own."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence

from himalia.keeper.limits import Limits

PR_SET_PDEATHSIG = 1


class Child:
    """Its process id stays taken, by the ended process itself, until ``reap``: a signal never hits a stranger."""

    def __init__(self, argv: Sequence[str], *, cwd: str, env: Mapping[str, str], limits: Limits) -> None:
        """Start it. Raises OSError if it cannot be."""
        self.output, output = os.pipe()
        os.set_blocking(self.output, False)
        try:
            self._process = subprocess.Popen(
                argv,
                cwd=cwd,
                # By this ipykernel sees the end of its parent, on any system.
                env={**env, "JPY_PARENT_PID": str(os.getpid())},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=_prepared(limits),
            )
        except BaseException:
            os.close(self.output)
            raise
        finally:
            os.close(output)
        self.pid = self._process.pid
        self.returncode: int | None = None

    def check(self) -> bool:
        """Look whether it has ended; says whether that is new."""
        if self.returncode is not None:
            return False
        ended = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is None:
            return False
        self.returncode = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
        return True

    def signal(self, signum: int) -> bool:
        """Signal the kernel and what it started; says whether the kernel still ran."""
        if self.returncode is not None:
            return False
        self._signal_group(signum)
        return True

    def reap(self) -> None:
        """End what the kernel left in its group, and give the process id back."""
        self._signal_group(signal.SIGKILL)
        self._process.wait()

    def _signal_group(self, signum: int) -> None:
        try:
            os.killpg(self.pid, signum)
        except (ProcessLookupError, PermissionError):
            # macOS says the latter of a group in which all have ended.
            pass


def _prepared(limits: Limits) -> Callable[[], None]:
    """What the child does before it becomes the kernel."""
    end_with_parent = _end_with_parent()

    def in_child() -> None:
        end_with_parent()
        limits.apply()

    return in_child


def _end_with_parent() -> Callable[[], None]:
    """Have Linux end the kernel if the keeper is killed: nobody could find or stop it afterwards."""
    if sys.platform != "linux":
        return lambda: None
    keeper = os.getpid()
    prctl = ctypes.CDLL(None, use_errno=True).prctl

    def in_child() -> None:
        prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != keeper:
            os._exit(1)

    return in_child
