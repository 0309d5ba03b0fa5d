"""The kernel's process, a child of the keeper in a session and process group of its own."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence

from himalia.child_process import kill_with_parent
from himalia.keeper.limits import Limits


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
    # Nobody could find or stop a kernel whose keeper was killed.
    end_with_keeper = kill_with_parent()

    def in_child() -> None:
        end_with_keeper()
        limits.apply()

    return in_child
