"""What no well-behaved kernel says: code that signs messages of its own, replies and idles that are lost or late.

Only ipykernel lets code reach its session; xeus-python does not. Everything here is published by a real kernel.
"""

from __future__ import annotations

import asyncio

from tests.jupyter.recording import RecordedKernel
from tests.jupyter.scenarios.registry import IPYKERNEL, Family

recorded = Family()

TOOLS = """
import json, time, threading
kernel = get_ipython().kernel
def own():
    return kernel.get_parent()["header"]
def say(type, content, id=None, **header):
    parent = {"header": {**own(), **({} if id is None else {"msg_id": id}), **header}}
    kernel.session.send(kernel.iopub_socket, type, content, parent=parent, ident=b"kernel")
def state(state, id=None):
    say("status", {"execution_state": state}, id)
"""
"""Run first, silently: what the code of these scenarios uses."""

PATCH = """
session = kernel.session
send = type(session).send
def patched(stream, msg_or_type, *args, **kwargs):
    type_ = msg_or_type if isinstance(msg_or_type, str) else msg_or_type["header"]["msg_type"]
    content = args[0] if args else kwargs.get("content") or {}
    if isinstance(msg_or_type, dict):
        content = msg_or_type["content"]
    if wanted(type_, content):
        return otherwise(stream, msg_or_type, args, kwargs)
    return send(session, stream, msg_or_type, *args, **kwargs)
session.__dict__["send"] = patched
"""
"""Makes a session drop, repeat or delay what ``wanted`` finds."""

DROP = "def otherwise(stream, what, args, kwargs): return None\n"
TWICE = """
def otherwise(stream, what, args, kwargs):
    send(session, stream, what, *args, **kwargs)
    return send(session, stream, what, *args, **kwargs)
"""
LATER = """
def otherwise(stream, what, args, kwargs):
    time.sleep(.4)
    return send(session, stream, what, *args, **kwargs)
"""


def once(condition: str) -> str:
    """``wanted`` finds what fulfils a condition, once."""
    return (
        "found = []\ndef wanted(type, content):\n"
        f"    if not found and armed and ({condition}): found.append(1); return True\n    return False\narmed = []\n"
    )


REPLY = "type == 'execute_reply'"
IDLE = "type == 'status' and content.get('execution_state') == 'idle'"
BUSY = "type == 'status' and content.get('execution_state') == 'busy'"
INPUT = "type == 'execute_input'"


@recorded(
    "order",
    kernels=IPYKERNEL,
    variants={
        f"{name}-{how}-{who}": (condition, otherwise, who == "foreign")
        for who in ("ours", "foreign")
        for name, condition in {"reply": REPLY, "idle": IDLE, "busy": BUSY, "input": INPUT}.items()
        for how, otherwise in {"lost": DROP, "twice": TWICE, "late": LATER}.items()
        if not (name in ("busy", "input") and how == "late")
    },
)
async def out_of_order(kernel: RecordedKernel, condition: str, otherwise: str, is_foreign: bool) -> None:
    """A reply, idle, busy or execute_input is lost, comes twice or late, for one request among others."""
    await kernel.run(TOOLS, silent=True)
    await kernel.run(once(condition) + otherwise + PATCH, silent=True)
    arm = "armed.append(1); print('hit')"
    if condition in (BUSY, INPUT):
        # They come before the code runs: of the request after this one.
        await kernel.run("armed.append(1)", silent=True)
        arm = "print('hit')"
    if is_foreign:
        client = await kernel.client()
        hit = client.execute(arm)
        await kernel.until(lambda lines: any("hit" in str(line["message"]["payload"]) for line in lines))
        await kernel.idle_of(client.execute("'after'"))
        assert hit
    else:
        await kernel.run(arm)
    await kernel.run("'ours'")


FORGERIES = {
    "idle-early": "state('idle'); print('still here', flush=True); time.sleep(.1)",
    "idle-early-error": "state('idle'); time.sleep(.1); 1/0",
    "idle-many": "for _ in range(3): state('busy'); state('idle')",
    "busy-late": "say('status', {'execution_state': 'busy'}, date='2001-01-01T00:00:00.000000Z')",
    "unknown-idle": "state('idle', 'nobody'); state('busy', 'nobody'); state('idle', 'nobody')",
    "unknown-error": "say('error', {'ename': 'E', 'evalue': 'v', 'traceback': []}, 'nobody')",
    "unknown-request": (
        "state('busy', 'forged'); say('execute_input', {'code': 'forged()', 'execution_count': 99}, 'forged')\n"
        "say('stream', {'name': 'stdout', 'text': 'forged'}, 'forged'); state('idle', 'forged')"
    ),
    "unknown-request-error": (
        "say('execute_input', {'code': 'forged()', 'execution_count': 99}, 'forged')\n"
        "say('error', {'ename': 'E', 'evalue': 'v', 'traceback': []}, 'forged'); state('idle', 'forged')\n"
        "state('idle', 'forged'); say('execute_input', {'code': 'again()', 'execution_count': 100}, 'forged')"
    ),
    "unknown-request-open": "say('execute_input', {'code': 'forged()', 'execution_count': 99}, 'forged')",
    "unknown-idle-first": (
        "state('busy', 'forged'); state('idle', 'forged')\n"
        "say('execute_input', {'code': 'forged()', 'execution_count': 99}, 'forged')"
    ),
    "unknown-cleared-error": (
        "say('execute_input', {'code': 'forged()', 'execution_count': 99}, 'forged')\n"
        "say('error', {'ename': 'E', 'evalue': 'v', 'traceback': []}, 'forged')\n"
        "say('clear_output', {'wait': False}, 'forged'); state('idle', 'forged')"
    ),
    "input-own": "say('execute_input', {'code': 'forged()', 'execution_count': 99})",
    "error-own": "say('error', {'ename': 'E', 'evalue': 'v', 'traceback': []}); print('fine')",
    "error-own-odd": "say('error', {'ename': 5, 'evalue': ['v'], 'traceback': 'x'}); print('fine')",
    "result-count": "say('execute_result', {'data': {'text/plain': '1'}, 'metadata': {}, 'execution_count': 77})",
    "count-odd": (
        "for odd in ('7', 7.0, True, -1, None, [1], 2**40):\n"
        "    say('execute_result', {'data': {'text/plain': '1'}, 'metadata': {}, 'execution_count': odd})"
    ),
    "state-odd": "for odd in (5, None, [], {}, '', 'IDLE', 'idle '): state(odd)",
    "state-missing": "say('status', {}); say('status', {'state': 'idle'})",
    "starting": "state('starting'); state('restarting'); state('dead')",
    "content-odd": "for odd in ([], [1], 'idle', 5): say('status', odd)",
    "dates-odd": (
        "for odd in ('nonsense', '', '9999-99-99', '1970-01-01T00:00:00Z'):\n"
        "    say('status', {'execution_state': 'busy'}, date=odd)"
    ),
    "types-odd": "for odd in ('status ', 'STATUS', 'shutdown_reply', 'debug_event', 'mine'): say(odd, {'a': 1})",
    "reserved": (
        "for type in ('kernel_event', 'execute_request', 'execute_reply', 'input_request', 'input_reply'):\n"
        "    say(type, {'event': 'request_closed', 'status': 'ok', 'code': 'other()'})"
    ),
    "iopub-content": (
        "say('stream', {'event': 'request_closed', 'status': 'died', 'name': 'stdout', 'text': 'x',\n"
        "               'execution_state': 'idle', 'execution_count': 55})"
    ),
    "no-parent": (
        "kernel.session.send(kernel.iopub_socket, 'status', {'execution_state': 'idle'}, ident=b'kernel')\n"
        "kernel.session.send(kernel.iopub_socket, 'stream', {'name': 'stdout', 'text': 'x'}, ident=b'kernel')"
    ),
}


@recorded("forged", kernels=IPYKERNEL, variants={name: (code,) for name, code in FORGERIES.items()})
async def forges(kernel: RecordedKernel, code: str) -> None:
    """Code publishes messages of its own making, of its own request or of one that nobody made."""
    await kernel.run(TOOLS, silent=True)
    await kernel.run("'before'")
    await kernel.run(code)
    await kernel.run("'after'")


OF_OTHERS = {
    "idle": "state('idle', {other!r})",
    "busy": "state('busy', {other!r})",
    "input": "say('execute_input', {{'code': 'forged()', 'execution_count': 99}}, {other!r})",
    "error": "say('error', {{'ename': 'E', 'evalue': 'v', 'traceback': []}}, {other!r})",
    "all": (
        "state('busy', {other!r}); say('execute_input', {{'code': 'forged()', 'execution_count': 99}}, {other!r})\n"
        "say('error', {{'ename': 'E', 'evalue': 'v', 'traceback': []}}, {other!r}); state('idle', {other!r})"
    ),
}


@recorded("forged", kernels=IPYKERNEL, variants={name: (code,) for name, code in OF_OTHERS.items()})
async def forges_for_the_ended(kernel: RecordedKernel, code: str) -> None:
    """Code publishes messages for a request that has ended."""
    await kernel.run(TOOLS, silent=True)
    ended = await kernel.submit("'before'")
    await kernel.result(ended)
    await kernel.run(code.format(other=ended))
    await kernel.run("'after'")


@recorded("forged", kernels=IPYKERNEL, variants={name: (code,) for name, code in OF_OTHERS.items()})
async def forges_for_the_queued(kernel: RecordedKernel, code: str) -> None:
    """Code publishes messages for a request that waits behind it."""
    await kernel.run(TOOLS, silent=True)
    wait = f"{kernel.wait_code()}\nexec(open({str(kernel.scratch / 'code')!r}).read())"
    forger = await kernel.submit(wait)
    queued = await kernel.submit("'queued'")
    (kernel.scratch / "code").write_text(code.format(other=queued))
    await kernel.begun(forger)
    kernel.release()
    await kernel.result(forger)
    await kernel.result(queued)


@recorded("forged", kernels=IPYKERNEL, variants={name: (code,) for name, code in OF_OTHERS.items()})
async def forges_for_the_foreign(kernel: RecordedKernel, code: str) -> None:
    """Code of the server's publishes messages for another client's request that waits behind it."""
    await kernel.run(TOOLS, silent=True)
    wait = f"{kernel.wait_code()}\nexec(open({str(kernel.scratch / 'code')!r}).read())"
    client = await kernel.client()
    forger = await kernel.submit(wait)
    await kernel.begun(forger)
    theirs = client.execute("'theirs'", stop_on_error=False)
    (kernel.scratch / "code").write_text(code.format(other=theirs))
    kernel.release()
    await kernel.result(forger)
    await kernel.idle_of(client.execute("'behind'"))


@recorded(
    "forged",
    kernels=IPYKERNEL,
    variants={"killed": ("kill",), "restarted": ("restart",), "stopped": ("stop",)},
)
async def open_at_the_end(kernel: RecordedKernel, how: str) -> None:
    """Forged requests are open, and one has ended, when the kernel ends."""
    await kernel.run(TOOLS, silent=True)
    await kernel.run(
        FORGERIES["unknown-request"] + "\n" + FORGERIES["unknown-request-open"].replace("'forged'", "'open'")
    )
    await kernel.submit("print('on', flush=True); time.sleep(60)")
    await kernel.printed("on")
    if how == "kill":
        kernel.kill()
        await kernel.event("died")
    elif how == "restart":
        await kernel.restart()
        await kernel.run(TOOLS, silent=True)
        await kernel.run(FORGERIES["unknown-request"])
    else:
        await kernel.stop()


@recorded("forged", kernels=IPYKERNEL)
async def from_a_thread(kernel: RecordedKernel) -> None:
    """A thread of one cell says that the next one, which still runs, is idle."""
    await kernel.run(TOOLS, silent=True)
    code = (
        "def later():\n    time.sleep(.3); state('idle'); state('busy')\n"
        "threading.Thread(target=later).start(); 'begun'"
    )
    await kernel.run(code)
    await kernel.run("time.sleep(.6); 'mine'")
    await asyncio.sleep(0.3)
