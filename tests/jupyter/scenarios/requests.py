"""Requests of the server's own: how they run, fail, show, ask, wait, and are interrupted."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import httpx

from tests.jupyter.recording import RecordedKernel
from tests.jupyter.scenarios.registry import ALL, BOTH, IPYKERNEL, Family

recorded = Family()

SLEEP = "import time\nprint('on', flush=True)\ntime.sleep(60)"
SPIN = "print('on', flush=True)\nwhile True: pass"
PROGRAMS: dict[str, tuple[list[str]]] = {
    "expression": (["6 * 7"],),
    "prints": (["print('out')", "import sys; print('err', file=sys.stderr); print('out')"],),
    "silent": (["x = 1", "", "pass", "# nothing"],),
    "sleeps": (["import time; time.sleep(0.2); print('slept')", "time.sleep(0.05)"],),
    "unicode": (["print('hällo €😀')", "'ünï' * 3"],),
    "large": (["print('0123456789' * 2000)", "list(range(50))"],),
    "many": ([f"x = {number}; x * x" for number in range(8)],),
    "steps": (["import time\nfor i in range(5): print(i, flush=True); time.sleep(0.03)", "i"],),
}


@recorded("ok", kernels=ALL, variants=PROGRAMS)
async def one_by_one(kernel: RecordedKernel, cells: list[str]) -> None:
    """Cells run one after the other."""
    for cell in cells:
        await kernel.run(cell)


@recorded("ok", variants={name: PROGRAMS[name] for name in ("prints", "sleeps", "many", "steps")})
async def at_once(kernel: RecordedKernel, cells: list[str]) -> None:
    """Cells are queued together and sent one at a time."""
    for request in [await kernel.submit(cell) for cell in cells]:
        await kernel.result(request)


@recorded(
    "error",
    kernels=ALL,
    variants={
        "zero": ("1/0",),
        "syntax": ("x = = 1",),
        "own": ("class Mine(Exception): pass\nprint('before')\nraise Mine('of my own', 5)",),
        "chained": ("try:\n    {}['k']\nexcept KeyError as e:\n    raise ValueError('outer') from e",),
    },
)
async def fails(kernel: RecordedKernel, code: str) -> None:
    """A cell raises; the next one runs."""
    await kernel.run(code)
    await kernel.run("'after'")


@recorded(
    "error",
    variants={
        "system-exit": ("raise SystemExit('bye')",),
        "keyboard": ("raise KeyboardInterrupt",),
        "empty-value": ("raise ValueError",),
        "long-value": ("raise ValueError('x' * 5000)",),
    },
)
async def raises(kernel: RecordedKernel, code: str) -> None:
    """A cell raises something unusual."""
    await kernel.run(code)


@recorded("error", variants={"stop": (True,), "go-on": (False,)})
async def fails_in_queue(kernel: RecordedKernel, stop_on_error: bool) -> None:
    """A cell fails while others wait behind it; all of them run."""
    codes = ["1", "1/0", "2", "3"]
    requests = [await kernel.submit(code, stop_on_error=stop_on_error) for code in codes]
    for request in requests:
        await kernel.result(request)


OPTIONS = {
    "silent": ({"silent": True},),
    "no-history": ({"store_history": False},),
    "neither": ({"silent": True, "store_history": False},),
}


@recorded("options", variants=OPTIONS)
async def options(kernel: RecordedKernel, given: dict[str, bool]) -> None:
    """Requests that are silent or not counted, one of which fails, between ordinary ones."""
    await kernel.run("1")
    await kernel.run("print('quiet'); 5", **given)
    await kernel.run("1/0", **given)
    await kernel.run("2")


@recorded("stdin")
async def answered(kernel: RecordedKernel) -> None:
    """Code asks twice and gets its answers."""
    request = await kernel.submit("print(input('name? ')); print(input('age? '))", allow_stdin=True)
    await kernel.asked(1)
    await kernel.answer("Ada")
    await kernel.asked(2)
    await kernel.answer("36")
    await kernel.result(request)


@recorded("stdin")
async def password(kernel: RecordedKernel) -> None:
    """Code asks for a password, whose answer is not stored."""
    request = await kernel.submit("import getpass; print(len(getpass.getpass()))", allow_stdin=True)
    await kernel.asked()
    await kernel.answer("a word")
    await kernel.result(request)


@recorded("stdin", variants={"interrupted": ("interrupt",), "cancelled": ("cancel",)})
async def unanswered(kernel: RecordedKernel, how: str) -> None:
    """Code that asks for input is ended instead."""
    request = await kernel.submit("print(input('name? '))", allow_stdin=True)
    await kernel.asked()
    await (kernel.interrupt() if how == "interrupt" else kernel.cancel(request))
    await kernel.result(request)
    await kernel.run_if_alive("'after'")


@recorded("stdin")
async def refused(kernel: RecordedKernel) -> None:
    """Code asks for input that its request does not allow."""
    await kernel.run("input('name? ')")
    await kernel.run("1")


DISPLAYS = {
    "update": (
        [
            "from IPython.display import display, HTML\nh = display(HTML('<b>1</b>'), display_id=True)",
            "h.update(HTML('<b>2</b>'))",
        ],
    ),
    "clear": (
        [
            "from IPython.display import clear_output\nprint('1'); clear_output(); print('2')",
            "print('3'); clear_output(wait=True); print('4')",
        ],
    ),
    "clear-error": (
        [
            "from IPython.display import clear_output\nimport sys\nprint('1')\nclear_output()\n1/0",
        ],
    ),
    "rich": (
        [
            "from IPython.display import display, Markdown, JSON\ndisplay(Markdown('*a*'), JSON({'n': 1}))",
            "display({'text/html': '<i>x</i>', 'text/plain': 'x'}, raw=True)",
        ],
    ),
    "comm": (
        [
            "from comm import create_comm\nc = create_comm(target_name='t', data={'a': 1})",
            "c.send({'b': 2})",
            "c.close()",
        ],
    ),
}


@recorded("display", variants=DISPLAYS)
async def displays(kernel: RecordedKernel, cells: list[str]) -> None:
    """Displays that are updated and cleared, results with several media types, comms."""
    for cell in cells:
        await kernel.run(cell)


@recorded("interrupt", variants={"sleeping": (SLEEP,), "spinning": (SPIN,)})
async def running(kernel: RecordedKernel, code: str) -> None:
    """A running cell is interrupted, with another one behind it."""
    request, behind = await kernel.submit(code), await kernel.submit("'behind'")
    await kernel.printed("on")
    await kernel.interrupt()
    await kernel.result(request)
    await kernel.result(behind)


@recorded("interrupt")
async def swallowed(kernel: RecordedKernel) -> None:
    """A cell catches the interrupt and ends well."""
    code = "import time\ntry:\n    print('on', flush=True); time.sleep(60)\nexcept KeyboardInterrupt: print('no')"
    request = await kernel.submit(code)
    await kernel.printed("on")
    await kernel.interrupt()
    await kernel.result(request)


@recorded("interrupt")
async def idle(kernel: RecordedKernel) -> None:
    """An interrupt while nothing runs, and one between two cells."""
    await kernel.run("1")
    await kernel.interrupt()
    await kernel.run_if_alive("2")


@recorded("interrupt", variants={"two": (2,), "three": (3,)})
async def again(kernel: RecordedKernel, times: int) -> None:
    """Cell after cell is interrupted."""
    for _ in range(times):
        sleeping = asyncio.create_task(kernel.run_if_alive(SLEEP))
        await asyncio.sleep(0.5)
        if not sleeping.done():
            await kernel.interrupt()
        await sleeping


@recorded("cancel", variants={"alone": (0,), "with-others": (2,)})
async def cancel_running(kernel: RecordedKernel, behind: int) -> None:
    """A running request is cancelled."""
    request = await kernel.submit(SLEEP)
    others = [await kernel.submit("'behind'") for _ in range(behind)]
    await kernel.printed("on")
    await kernel.cancel(request)
    for other in others:
        await kernel.result(other)
    await kernel.run_if_alive("'after'")


@recorded("cancel")
async def cancel_queued(kernel: RecordedKernel) -> None:
    """Requests that wait are cancelled, the first and the last of three."""
    first = await kernel.submit(kernel.wait_code())
    waiting = [await kernel.submit(f"print({number})") for number in range(3)]
    await kernel.cancel(waiting[0])
    await kernel.cancel(waiting[2])
    kernel.release()
    await kernel.result(first)
    await kernel.result(waiting[1])


@recorded("cancel")
async def cancel_at_once(kernel: RecordedKernel) -> None:
    """Requests are cancelled before the kernel has begun with them."""
    await kernel.cancel(await kernel.submit(SPIN))
    await kernel.run_if_alive("1")
    with suppress(httpx.HTTPStatusError):  # it may have ended
        await kernel.cancel(await kernel.submit(SPIN))
        await kernel.run_if_alive("2")


@recorded("cancel")
async def cancel_swallowed(kernel: RecordedKernel) -> None:
    """A cancelled cell catches the interrupt and prints on."""
    code = (
        "import time\ntry:\n    print('on', flush=True); time.sleep(60)\n"
        "except KeyboardInterrupt:\n    for i in range(3): print(i, flush=True); time.sleep(.02)\n'done'"
    )
    request = await kernel.submit(code)
    await kernel.printed("on")
    await kernel.cancel(request)
    await kernel.run_if_alive("'after'")


@recorded("timeout", variants={"at-once": (0.001,), "soon": (0.1,), "later": (0.5,)})
async def times_out(kernel: RecordedKernel, timeout_s: float) -> None:
    """A request that runs too long is interrupted; what waits behind it runs."""
    request = await kernel.submit(SLEEP, timeout_s=timeout_s)
    behind = await kernel.submit("print('behind')")
    await kernel.result(request)
    await kernel.result(behind)


@recorded("timeout")
async def in_time(kernel: RecordedKernel) -> None:
    """A request that ends within its time; waiting does not count."""
    first = await kernel.submit("import time; time.sleep(0.5)", timeout_s=30)
    await kernel.result(await kernel.submit("1", timeout_s=20))
    await kernel.result(first)


@recorded("priorities", variants={"few": ([0, 5],), "many": ([0, 5, -1, 5, 0, 9],)})
async def priorities(kernel: RecordedKernel, given: list[int]) -> None:
    """What waits is sent by priority."""
    requests = [await kernel.submit(kernel.wait_code())]
    requests += [await kernel.submit(f"print({one})", priority=one) for one in given]
    kernel.release()
    for request in requests:
        await kernel.result(request)


@recorded("late", kernels=BOTH)
async def thread(kernel: RecordedKernel) -> None:
    """A thread prints after its cell has ended."""
    code = (
        "import threading, time, os\ndef late():\n"
        f"    while not os.path.exists({str(kernel.scratch / 'go')!r}): time.sleep(.01)\n"
        "    print('late', flush=True)\nthreading.Thread(target=late).start()\nprint('in time')"
    )
    await kernel.run(code)
    kernel.release()
    await kernel.printed("late")


@recorded("late", kernels=BOTH)
async def thread_in_the_next_cell(kernel: RecordedKernel) -> None:
    """A thread of one cell prints while the next one runs, and after that."""
    code = (
        "import threading, time\ndef late():\n    for i in range(12): print('late', i, flush=True); time.sleep(.05)\n"
        "t = threading.Thread(target=late); t.start()"
    )
    await kernel.run(code)
    await kernel.run("time.sleep(.2); print('mine')")
    await kernel.printed("11")


@recorded("late", kernels=BOTH)
async def subprocess_output(kernel: RecordedKernel) -> None:
    """What a child process prints, in the cell and after it."""
    await kernel.run("import subprocess; subprocess.run(['sh', '-c', 'echo child; echo oops >&2'])")
    await kernel.run("p = subprocess.Popen(['sh', '-c', 'sleep .3; echo later']); 'begun'")
    await kernel.run("p.wait()")


@recorded("late", kernels=IPYKERNEL)
async def task(kernel: RecordedKernel) -> None:
    """An asyncio task prints after its cell has ended."""
    code = (
        "import asyncio\nasync def late():\n    await asyncio.sleep(.2); print('late', flush=True)\n"
        "t = asyncio.get_event_loop().create_task(late())\nprint('in time')"
    )
    await kernel.run(code)
    await kernel.printed("late")


@recorded("flood", variants={"some": (60,), "more": (250,)})
async def burst(kernel: RecordedKernel, count: int) -> None:
    """A cell prints many lines at once."""
    await kernel.run(f"for i in range({count}): print(i, flush=True)")
    await kernel.run("1")


@recorded("flood", server="small_messages")
async def too_large(kernel: RecordedKernel) -> None:
    """Messages that are too large to be kept, among others, and a result that is."""
    await kernel.run("print('before', flush=True)\nprint('x' * 50_000, flush=True)\nprint('after')")
    await kernel.run("'y' * 60_000")
    await kernel.run("1")


@recorded("flood", server="small_messages")
async def too_large_error(kernel: RecordedKernel) -> None:
    """An error whose message is too large to be kept: only the reply tells of it."""
    await kernel.run("raise ValueError('z' * 60_000)")
    await kernel.run("1")
