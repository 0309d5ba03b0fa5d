"""Kernels that another program started, and requests that another client makes: several in flight, of every kind."""

from __future__ import annotations

import asyncio
from typing import Any

from jupyter_client.asynchronous.client import AsyncKernelClient

from tests.jupyter.recording import RecordedKernel
from tests.jupyter.scenarios.registry import BOTH, Family
from tests.jupyter.scenarios.requests import SLEEP

recorded = Family()


async def attached(kernel: RecordedKernel) -> AsyncKernelClient:
    """Attach the server; returns a client of the kernel's own."""
    await kernel.attach()
    return await kernel.client()


async def ask(client: AsyncKernelClient, kind: str) -> str:
    """A request other than to execute; returns its id."""
    arguments: dict[str, tuple[Any, ...]] = {
        "complete": ("imp", 3),
        "inspect": ("print", 3),
        "is_complete": ("if 1:",),
        "kernel_info": (),
        "history": (),
        "comm_info": (),
    }
    return str(getattr(client, kind)(*arguments[kind]))


async def comm(client: AsyncKernelClient, msg_type: str, **content: Any) -> str:
    """A comm message of the client's to the kernel; returns its id."""
    message = client.session.msg(msg_type, {"comm_id": "c1", "data": {}, **content})
    client.shell_channel.send(message)
    return str(message["header"]["msg_id"])


KINDS = ("complete", "inspect", "is_complete", "kernel_info", "history", "comm_info")


@recorded(
    "foreign",
    is_foreign=True,
    variants={
        "one": (["print('theirs'); 6 * 7"],),
        "error": (["1/0", "'after'"],),
        "several": (["x = 1", "print(x)", "x + 1", "import sys; print('e', file=sys.stderr)"],),
    },
)
async def one_by_one(kernel: RecordedKernel, codes: list[str]) -> None:
    """Another client runs one cell after the other."""
    client = await attached(kernel)
    for code in codes:
        await kernel.idle_of(client.execute(code))


@recorded(
    "foreign",
    is_foreign=True,
    variants={
        "ok": (["import time; time.sleep(.2)", "print(1)", "2"], True),
        "error": (["import time; time.sleep(.2)", "1/0", "print('never')", "3"], True),
        "go-on": (["import time; time.sleep(.2)", "1/0", "print('all the same')", "3"], False),
    },
)
async def in_flight(kernel: RecordedKernel, codes: list[str], stop_on_error: bool) -> None:
    """Another client has several requests in flight, one of which may fail and abort the others."""
    client = await attached(kernel)
    requests = [client.execute(code, stop_on_error=stop_on_error) for code in codes]
    for request in requests:
        await kernel.idle_of(request)


@recorded("foreign", is_foreign=True, variants={"silent": (True, False), "no-history": (False, False)})
async def options(kernel: RecordedKernel, silent: bool, store_history: bool) -> None:
    """Another client's requests that are silent or not counted."""
    client = await attached(kernel)
    await kernel.idle_of(client.execute("print('quiet')", silent=silent, store_history=store_history))
    await kernel.idle_of(client.execute("1/0", silent=silent, store_history=store_history))
    await kernel.idle_of(client.execute("2"))


@recorded("foreign", is_foreign=True)
async def other_kinds(kernel: RecordedKernel) -> None:
    """Another client completes, inspects and asks, before, between and behind cells."""
    client = await attached(kernel)
    for kind in KINDS:
        await kernel.idle_of(await ask(client, kind))
    requests = [client.execute("import time; time.sleep(.2)")]
    requests += [await ask(client, kind) for kind in KINDS]
    requests.append(client.execute("1"))
    for request in requests:
        await kernel.idle_of(request)


@recorded("foreign", is_foreign=True)
async def comms(kernel: RecordedKernel) -> None:
    """Another client opens a comm of an unknown target, and sends to one that the kernel has."""
    client = await attached(kernel)
    await kernel.idle_of(await comm(client, "comm_open", target_name="unknown"))
    code = (
        "from comm import create_comm\nc = create_comm(target_name='t', comm_id='c1')\n"
        "c.on_msg(lambda m: print('got it', flush=True))"
    )
    await kernel.idle_of(client.execute(code))
    await kernel.idle_of(await comm(client, "comm_msg"))
    await kernel.idle_of(await comm(client, "comm_close"))


@recorded(
    "foreign",
    is_foreign=True,
    variants={
        "attached": (),
    },
)
async def both_clients(kernel: RecordedKernel) -> None:
    """The server's requests and another client's run in turns, several in flight."""
    client = await attached(kernel)
    theirs, ours = [], []
    for number in range(4):
        theirs.append(client.execute(f"print('theirs', {number})"))
        theirs.append(await ask(client, KINDS[number]))
        ours.append(await kernel.submit(f"print('ours', {number})"))
    for request in ours:
        await kernel.result(request)
    for request in theirs:
        await kernel.idle_of(request)


@recorded(
    "foreign",
    variants={"ok": ("print('theirs')",), "error": ("1/0",), "sleep": ("import time; time.sleep(.3)",)},
)
async def on_our_kernel(kernel: RecordedKernel, code: str) -> None:
    """Another client uses a kernel of the server's own while the server has requests queued."""
    client = await kernel.client()
    ours = [await kernel.submit(f"print('ours', {number})") for number in range(3)]
    theirs = [client.execute(code), client.execute("2"), await ask(client, "complete")]
    for request in ours:
        await kernel.result(request)
    for request in theirs:
        await kernel.idle_of(request)


@recorded("foreign", is_foreign=True)
async def two_others(kernel: RecordedKernel) -> None:
    """Two other clients have requests in flight at the same time."""
    clients = [await attached(kernel), await kernel.client()]
    requests = []
    for number in range(3):
        for who, client in enumerate(clients):
            requests.append(client.execute(f"print({who}, {number})"))
            requests.append(await ask(client, KINDS[number + who]))
    for request in requests:
        await kernel.idle_of(request)


@recorded("foreign", is_foreign=True)
async def killed_in_mid_cell(kernel: RecordedKernel) -> None:
    """A foreign kernel is killed with its client's requests and the server's own open."""
    client = await attached(kernel)
    theirs = client.execute(SLEEP)
    client.execute("'never'")
    await kernel.begun(theirs)
    await kernel.submit("'never'")
    kernel.kill()
    await kernel.event("died")


@recorded("foreign", variants={"killed": ("kill",), "restarted": ("restart",), "stopped": ("stop",)})
async def ours_ends(kernel: RecordedKernel, how: str) -> None:
    """The server's own kernel ends while it runs another client's cell, with more requests open."""
    client = await kernel.client()
    theirs = client.execute(SLEEP)
    client.execute("'never'")
    await kernel.begun(theirs)
    await kernel.submit("'never'")
    if how == "kill":
        kernel.kill()
        await kernel.event("died")
    elif how == "restart":
        await kernel.restart()
        await kernel.run("1")
    else:
        await kernel.stop()


@recorded("foreign", is_foreign=True)
async def detached(kernel: RecordedKernel) -> None:
    """The server stops to listen in the middle of another client's cell."""
    client = await attached(kernel)
    theirs = client.execute(SLEEP)
    await kernel.begun(theirs)
    await kernel.stop()


@recorded("foreign", is_foreign=True, variants={"ok": ("print('end')",), "error": ("1/0",)})
async def attached_in_mid_cell(kernel: RecordedKernel, code: str) -> None:
    """The server attaches in the middle of another client's cell, of whose beginning it knows nothing."""
    client = await kernel.client()
    theirs = client.execute(f"{kernel.wait_code()}\n{code}")
    behind = client.execute("'behind'", stop_on_error=False)
    await asyncio.sleep(0.5)
    await kernel.attach()
    kernel.release()
    await kernel.idle_of(theirs)
    await kernel.idle_of(behind)
    await kernel.run("'ours'")


@recorded("foreign", is_foreign=True, variants={"by-server": (True,), "by-client": (False,)})
async def interrupted(kernel: RecordedKernel, by_server: bool) -> None:
    """Another client's cell is interrupted, with more behind it."""
    client = await attached(kernel)
    theirs = client.execute(SLEEP)
    behind = client.execute("'behind'")
    await kernel.printed("on")
    if by_server:
        await kernel.interrupt()
    else:
        assert kernel.manager is not None
        await kernel.manager.interrupt_kernel()
    for request in (theirs, behind):
        await kernel.idle_of(request)


@recorded("foreign", is_foreign=True)
async def asks_its_client(kernel: RecordedKernel) -> None:
    """Another client's code asks that client for input, which the server does not see."""
    client = await attached(kernel)
    theirs = client.execute("print(input('name? '))", allow_stdin=True)
    await client.get_stdin_msg(timeout=30)
    client.input("Ada")
    await kernel.idle_of(theirs)


@recorded("foreign", kernels=BOTH)
async def same_code(kernel: RecordedKernel) -> None:
    """Another client and the server run the same code, one after the other, many times."""
    client = await kernel.client()
    for _ in range(4):
        theirs = client.execute("x = 1; x")
        ours = await kernel.submit("x = 1; x")
        await kernel.result(ours)
        await kernel.idle_of(theirs)
