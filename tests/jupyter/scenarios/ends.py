"""How kernels end: deaths, restarts and stops, with requests that run and wait."""

from __future__ import annotations

import signal
from contextlib import suppress

from tests.jupyter.recording import RecordedKernel
from tests.jupyter.scenarios.registry import BOTH, Family
from tests.jupyter.scenarios.requests import SLEEP

recorded = Family()


@recorded("death", variants={"alone": (0,), "with-queue": (3,)})
async def killed(kernel: RecordedKernel, behind: int) -> None:
    """The kernel's process is killed in mid-cell."""
    await kernel.run("x = 1")
    requests = [await kernel.submit(SLEEP)] + [await kernel.submit("'never'") for _ in range(behind)]
    await kernel.printed("on")
    kernel.kill()
    for request in requests:
        await kernel.result(request)
    await kernel.event("died")


@recorded(
    "death",
    variants={
        "exit-0": ("import os; print('on', flush=True); os._exit(0)",),
        "exit-3": ("import os; print('on', flush=True); os._exit(3)",),
        "segfault": ("import os, signal; print('on', flush=True); os.kill(os.getpid(), signal.SIGSEGV)",),
        "flood": ("import os\nfor i in range(150): print(i, flush=True)\nos._exit(1)",),
        "error-first": (
            "import threading, os, time\n"
            "threading.Thread(target=lambda: (time.sleep(.3), os._exit(5))).start()\n1/0",
        ),
    },
)
async def ends_itself(kernel: RecordedKernel, code: str) -> None:
    """Code ends the kernel's process."""
    await kernel.submit(code)
    await kernel.event("died")


@recorded("death")
async def killed_while_idle(kernel: RecordedKernel) -> None:
    """The kernel's process is killed when nothing runs."""
    await kernel.run("1")
    kernel.kill()
    await kernel.event("died")


@recorded("death")
async def terminated(kernel: RecordedKernel) -> None:
    """The kernel's process is asked to end in mid-cell."""
    await kernel.submit(SLEEP)
    await kernel.printed("on")
    kernel.kill(signal.SIGTERM)
    try:
        await kernel.event("died")
    except TimeoutError:
        kernel.kill()
        await kernel.event("died")


@recorded("death", variants={"alone": (0,), "with-queue": (2,)})
async def keeper_killed(kernel: RecordedKernel, behind: int) -> None:
    """The keeper of the kernel is killed in mid-cell."""
    await kernel.submit(SLEEP)
    for _ in range(behind):
        await kernel.submit("'never'")
    await kernel.printed("on")
    kernel.kill_keeper()
    await kernel.event("died")


@recorded("death")
async def killed_while_asking(kernel: RecordedKernel) -> None:
    """The kernel dies while its code waits for input."""
    await kernel.submit("input('name? ')", allow_stdin=True)
    await kernel.asked()
    kernel.kill()
    await kernel.event("died")


@recorded("death")
async def killed_after_cancel(kernel: RecordedKernel) -> None:
    """A cancelled cell, which ignores the interrupt, runs when the kernel dies."""
    code = (
        "import time\nprint('on', flush=True)\nend = time.time() + 60\nwhile time.time() < end:\n"
        "    try: time.sleep(1)\n    except KeyboardInterrupt: print('no', flush=True)"
    )
    request = await kernel.submit(code)
    await kernel.printed("on")
    await kernel.cancel(request)
    await kernel.printed("no")
    with suppress(ProcessLookupError):
        kernel.kill()
    await kernel.event("died")


@recorded("restart", variants={"alone": (0,), "with-queue": (3,)})
async def restarted(kernel: RecordedKernel, behind: int) -> None:
    """A kernel is restarted in mid-cell; the next cell finds nothing of before."""
    await kernel.run("x = 1")
    await kernel.submit(SLEEP)
    for _ in range(behind):
        await kernel.submit("'never'")
    await kernel.printed("on")
    await kernel.restart()
    await kernel.run("x")


@recorded("restart")
async def restarted_while_idle(kernel: RecordedKernel) -> None:
    """A kernel is restarted when nothing runs, twice."""
    await kernel.run("1")
    await kernel.restart()
    await kernel.run("2")
    await kernel.restart()
    await kernel.run("3")


@recorded("restart")
async def restarted_while_asking(kernel: RecordedKernel) -> None:
    """A kernel is restarted while its code waits for input."""
    await kernel.submit("input('name? ')", allow_stdin=True)
    await kernel.asked()
    await kernel.restart()
    await kernel.run("1")


@recorded("restart")
async def queued_during_restart(kernel: RecordedKernel) -> None:
    """A request that is queued right after a restart, and killed by another one."""
    await kernel.restart()
    request = await kernel.submit(SLEEP)
    await kernel.begun(request)
    await kernel.restart()
    await kernel.run("1")


@recorded("auto-restart", server="auto_restart", variants={"alone": (0,), "with-queue": (2,)})
async def killed_and_back(kernel: RecordedKernel, behind: int) -> None:
    """A kernel that is killed in mid-cell is started again."""
    await kernel.submit(SLEEP)
    for _ in range(behind):
        await kernel.submit("'never'")
    await kernel.printed("on")
    kernel.kill()
    await kernel.event("restarted")
    await kernel.refresh()
    await kernel.run("1")


@recorded("auto-restart", server="auto_restart")
async def ends_itself_twice(kernel: RecordedKernel) -> None:
    """Code ends the kernel's process, which is started again, twice."""
    for number in (1, 2):
        await kernel.submit("import os; print('on', flush=True); os._exit(7)")
        await kernel.event("restarted", number)
    await kernel.run("1")


@recorded("stop", kernels=BOTH)
async def stopped_while_idle(kernel: RecordedKernel) -> None:
    """A kernel is stopped when nothing runs."""
    await kernel.run("1")
    await kernel.stop()


@recorded("stop", variants={"alone": (0,), "with-queue": (3,)})
async def stopped(kernel: RecordedKernel, behind: int) -> None:
    """A kernel is stopped in mid-cell."""
    await kernel.submit(SLEEP)
    for _ in range(behind):
        await kernel.submit("'never'")
    await kernel.printed("on")
    await kernel.stop()


@recorded("stop")
async def exits(kernel: RecordedKernel) -> None:
    """Code asks the kernel to end, as ``exit`` does, while another cell waits."""
    await kernel.run("import time; 1")
    await kernel.submit("time.sleep(.3); exit")
    await kernel.submit("get_ipython().ask_exit() if hasattr(get_ipython(), 'ask_exit') else 1")


@recorded("stale", server="impatient", variants={"alone": (0,), "with-queue": (1,)})
async def silent(kernel: RecordedKernel, behind: int) -> None:
    """A kernel that stands still is not heard of for too long; it comes back and is interrupted."""
    request = await kernel.submit(SLEEP)
    others = [await kernel.submit("'behind'") for _ in range(behind)]
    await kernel.printed("on")
    kernel.kill(signal.SIGSTOP)
    await kernel.result(request)
    kernel.kill(signal.SIGCONT)
    await kernel.interrupt()
    for other in others:
        await kernel.result(other)


@recorded("stale", server="impatient")
async def silent_and_killed(kernel: RecordedKernel) -> None:
    """A kernel that stands still is given up, and then killed."""
    request = await kernel.submit(SLEEP)
    await kernel.printed("on")
    kernel.kill(signal.SIGSTOP)
    await kernel.result(request)
    kernel.kill()
    await kernel.event("died")
