"""How servers end and come back while kernels run.

Each function yields when the server may end, and again when the next one may start.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from tests.jupyter.recording import RecordedKernel
from tests.jupyter.scenarios.registry import BOTH, Family
from tests.jupyter.scenarios.requests import SLEEP

recorded = Family()

STEPS = "import time\nfor i in range({}): print('step', i, flush=True); time.sleep(.05)\n"


@recorded("server-killed", server="killed", variants={"alone": (0,), "with-queue": (2,)})
async def in_mid_cell(kernel: RecordedKernel, behind: int) -> AsyncGenerator[None]:
    """The server is killed while a cell prints, and comes back before its end."""
    await kernel.run("x = 1")
    request = await kernel.submit(kernel.wait_code() + "\nprint('released'); 5")
    for _ in range(behind):
        await kernel.submit("'never'")
    await kernel.begun(request)
    yield
    yield
    kernel.release()
    await kernel.result(request)
    await kernel.run("'after'")


@recorded(
    "server-killed",
    server="killed",
    variants={"ok": ("5",), "error": ("1/0",), "prints": (STEPS.format(20),)},
)
async def ends_while_away(kernel: RecordedKernel, code: str) -> AsyncGenerator[None]:
    """A cell ends while no server listens: its reply is lost."""
    request = await kernel.submit(f"{kernel.wait_code()}\n{kernel.mark_code()}\n{code}")
    await kernel.begun(request)
    yield
    kernel.release()
    await kernel.marked()
    await asyncio.sleep(1.5)
    yield
    await kernel.result(request)
    await kernel.run("'after'")


@recorded("server-killed", server="killed")
async def killed_twice(kernel: RecordedKernel) -> AsyncGenerator[None]:
    """Two servers are killed during one cell."""
    request = await kernel.submit(kernel.wait_code() + "\n" + STEPS.format(5) + kernel.wait_code("again"))
    await kernel.begun(request)
    yield
    kernel.release()
    yield
    await kernel.printed("step 4")
    yield
    kernel.release("again")
    yield
    await kernel.result(request)


@recorded("server-killed", server="killed", variants={"kernel": (False,), "keeper": (True,)})
async def dies_while_away(kernel: RecordedKernel, is_keeper: bool) -> AsyncGenerator[None]:
    """The kernel, or its keeper, is killed in mid-cell while no server listens."""
    code = f"{kernel.wait_code()}\n{STEPS.format(3)}{kernel.mark_code()}\ntime.sleep(60)"
    request = await kernel.submit(code)
    await kernel.submit("'never'")
    await kernel.begun(request)
    yield
    kernel.release()
    await kernel.marked()
    await asyncio.sleep(0.3)
    if is_keeper:
        kernel.kill_keeper()
    else:
        kernel.kill()
    await kernel.gone()
    await asyncio.sleep(0.5)
    yield
    await kernel.event("died")


@recorded("server-killed", server="killed")
async def idle_kernel(kernel: RecordedKernel) -> AsyncGenerator[None]:
    """The server is killed when nothing runs."""
    await kernel.run("x = 5")
    yield
    yield
    await kernel.run("x")


@recorded("server-killed", server="killed")
async def idle_kernel_dies(kernel: RecordedKernel) -> AsyncGenerator[None]:
    """The kernel is killed when nothing runs and no server listens."""
    await kernel.run("x = 5")
    yield
    kernel.kill()
    await kernel.gone()
    yield
    await kernel.event("died")


@recorded("server-killed", server="killed")
async def just_sent(kernel: RecordedKernel) -> AsyncGenerator[None]:
    """The server is killed at the moment at which requests are queued and sent."""
    await kernel.run("1")
    for number in range(4):
        await kernel.submit(f"print({number})")
    yield
    await asyncio.sleep(1)
    yield
    await kernel.run("'after'")


@recorded("server-killed", server="killed")
async def client_while_away(kernel: RecordedKernel) -> AsyncGenerator[None]:
    """Another client runs code on the kernel while no server listens."""
    await kernel.run("x = 5")
    path = kernel.connection_file
    yield
    assert path.exists()
    client = await kernel.client()
    for code in ("print(x)", "1/0", "x"):
        await client.execute_interactive(code, timeout=60, output_hook=lambda message: None)
    yield
    await kernel.run("'after'")


@recorded("gap", server="small_spool", kernels=BOTH, variants={"ok": ("5",), "error": ("1/0",)})
async def beyond_the_spool(kernel: RecordedKernel, last: str) -> AsyncGenerator[None]:
    """A flood while no server listens is larger than the spool: its beginning is missing."""
    code = f"{kernel.wait_code()}\nfor i in range(400): print(i, flush=True)\n{kernel.mark_code()}\n{last}"
    request = await kernel.submit(code)
    await kernel.begun(request)
    yield
    kernel.release()
    await kernel.marked()
    await asyncio.sleep(1.5)
    yield
    await kernel.result(request)
    await kernel.run("'after'")


@recorded("gap", server="small_spool")
async def begins_beyond_the_spool(kernel: RecordedKernel) -> AsyncGenerator[None]:
    """Requests of another client while no server listens, of which the first are missing in part."""
    await kernel.run("x = 5")
    yield
    client = await kernel.client()
    for code in ("1", "for i in range(300): print(i, flush=True)", "x"):
        await client.execute_interactive(code, timeout=60, output_hook=lambda message: None)
    yield
    await kernel.run("'after'")


@recorded("gap", server="small_spool")
async def dies_beyond_the_spool(kernel: RecordedKernel) -> AsyncGenerator[None]:
    """A flood beyond the spool, in which the kernel dies, while no server listens."""
    code = f"{kernel.wait_code()}\nfor i in range(400): print(i, flush=True)\n{kernel.mark_code()}\n{SLEEP}"
    await kernel.begun(await kernel.submit(code))
    yield
    kernel.release()
    await kernel.marked()
    await asyncio.sleep(1)
    kernel.kill()
    await kernel.gone()
    yield
    await kernel.event("died")


@recorded("server-stopped", server="stopped", variants={"idle": ("",), "in-mid-cell": (SLEEP,)})
async def server_stops(kernel: RecordedKernel, code: str) -> AsyncGenerator[None]:
    """The server is stopped, and its kernels with it."""
    await kernel.run("1")
    if code:
        await kernel.submit(code)
        await kernel.submit("'never'")
        await kernel.printed("on")
    yield
    yield


@recorded("server-stopped", server="stayed", variants={"alone": (0,), "with-queue": (2,)})
async def kernels_stay(kernel: RecordedKernel, behind: int) -> AsyncGenerator[None]:
    """The server is stopped and leaves its kernels to the next one, in mid-cell."""
    request = await kernel.submit(kernel.wait_code() + "\n6 * 7")
    for _ in range(behind):
        await kernel.submit("'never'")
    await kernel.begun(request)
    yield
    yield
    kernel.release()
    await kernel.result(request)
    await kernel.run("'after'")
