"""The kernel's process, a child of the keeper in a session and process group of its own."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence

from himalia.child_process import kill_with_parent
from himalia.keeper.limits import Limits


class CannotStart(Exception):
    """The command of a kernel cannot be run."""


class KernelChild:
    """A kernel's process. Its id stays in use, by the ended process, until ``reap``: no signal hits another process."""

    def __init__(self, argv: Sequence[str], *, cwd: str, env: Mapping[str, str], limits: Limits) -> None:
        """Start it. Raises ``CannotStart``."""
        # What it writes to stdout and stderr; -1 once that was read to its end.
        self.output, output = os.pipe()
        os.set_blocking(self.output, False)
        try:
            self._process = subprocess.Popen(
                argv,
                cwd=cwd,
                # ipykernel uses it to notice the end of its parent, on any system.
                env={**env, "JPY_PARENT_PID": str(os.getpid())},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=_in_child(limits),
            )
        except OSError as error:
            os.close(self.output)
            raise CannotStart(f"cannot run {argv} in {cwd}: {error}") from error
        except BaseException:
            os.close(self.output)
            raise
        finally:
            os.close(output)
        self.pid = self._process.pid
        self.returncode: int | None = None

    def check_exit(self) -> bool:
        """Return whether it has ended since the last call."""
        if self.returncode is not None:
            return False
        ended = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is None:
            return False
        self.returncode = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
        return True

    def signal(self, signum: int) -> bool:
        """Signal the kernel and what it started; return whether the kernel still ran."""
        if self.returncode is not None:
            return False
        self._signal_group(signum)
        return True

    def close_output(self) -> None:
        os.close(self.output)
        self.output = -1

    def reap(self) -> None:
        """End what the kernel left in its group, and release the process id."""
        self._signal_group(signal.SIGKILL)
        self._process.wait()

    def _signal_group(self, signum: int) -> None:
        try:
            os.killpg(self.pid, signum)
        except (ProcessLookupError, PermissionError):
            # macOS raises the latter for a group in which all have ended.
            pass


def _in_child(limits: Limits) -> Callable[[], None]:
    """Return what the child calls before it becomes the kernel, where only system calls are safe."""
    # No server could find or stop a kernel whose keeper was killed.
    end_with_keeper = kill_with_parent()

    def in_child() -> None:
        end_with_keeper()
        limits.apply()

    return in_child
