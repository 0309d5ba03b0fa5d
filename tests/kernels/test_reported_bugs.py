"""What people suffer from elsewhere, by the report that tells of it (PAINS.md), on real kernels."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import re
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

import himalia
from himalia.errors import KernelFailed
from himalia.iopub.result import ExecutionResult
from himalia.jupyter.records import read_headers
from himalia.jupyter.wire import NOT_ON_IOPUB, Wire
from himalia.kernels.host import HostOptions, KernelHost
from himalia.kernels.model import KernelState
from himalia.kernels.request import Code
from himalia.log.api import Appended, Batch
from himalia.record import Record
from himalia.settings import Settings
from tests.keeper.keepers import printed as spooled
from tests.kernels.fake_kernel import FakeKernel
from tests.kernels.hosts import (
    DEADLINE_S,
    Hosting,
    ended,
    events,
    hosting,
    messages,
    names,
    printed,
    repeated,
    text_of,
    until,
    until_recorded,
)

__all__ = ["hosting"]

pytestmark = pytest.mark.slow

WAIT = "import time; print('on', flush=True); time.sleep(1000)"


async def running(hosting: Hosting, kernel, code: str = WAIT, **options):  # type: ignore[no-untyped-def]
    """A request that is known to run, as it has printed something."""
    request = await kernel.execute(Code(code=code, **options))
    await until_recorded(hosting, kernel.id, lambda found: printed(found, request.id))
    return request


# Concurrency


async def test_jupyter_client_429_concurrent_requests(hosting: Hosting) -> None:
    """200 requests at a time on 4 kernels each get their own output and result, all of it and nothing else."""
    await hosting.open()
    kernels = await asyncio.gather(*[hosting.start() for _ in range(4)])

    async def ask(number: int) -> ExecutionResult:
        code = f"import sys\nprint('out {number}')\nprint('err {number}', file=sys.stderr)\n{number} * 2"
        return await hosting.run(kernels[number % 4], code)

    results = await asyncio.gather(*[ask(number) for number in range(200)])
    for number, result in enumerate(results):
        assert result.status == "ok"
        assert result.kernel_id == kernels[number % 4].id
        values = [o["data"]["text/plain"] for o in result.outputs if o["output_type"] == "execute_result"]
        assert values == [str(number * 2)]
        assert text_of(result, "stdout") == f"out {number}\n"
        assert text_of(result, "stderr") == f"err {number}\n"
        assert result.execution_count == number // 4 + 1
    for kernel in kernels:
        assert not repeated(await hosting.records(kernel.id))


# Drops


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("lines", "flush"), [(100_000, False), (20_000, True)])
async def test_ark_129_and_nteract_4188_nothing_of_a_flood_is_lost(
    hosting: Hosting, lines: int, flush: bool
) -> None:
    """Of 100,000 printed lines, or of lines that are messages each, none is lost, none comes twice, and it ends ok."""
    await hosting.open()
    kernel = await hosting.start()
    async with asyncio.timeout(240):
        request = await kernel.execute(Code(code=f"for i in range({lines}): print(i, flush={flush})"))
        assert await request.closed == "ok"
    found = await hosting.records(kernel.id)
    assert printed(found, request.id) == "".join(f"{i}\n" for i in range(lines))
    assert len({record.id for record in found}) == len(found)
    result = await hosting.result(kernel, request)
    assert text_of(result) == printed(found, request.id) and result.dropped == 0


def gated(hosting: Hosting) -> asyncio.Event:
    """Have the log take nothing until the event is set."""
    gate = asyncio.Event()
    publish = hosting.manager.publish

    def wait_and_publish(batch: Batch) -> asyncio.Future[Appended]:
        async def wait() -> Appended:
            await gate.wait()
            return await publish(batch)

        return asyncio.ensure_future(wait())

    hosting.manager.publish = wait_and_publish  # type: ignore[method-assign]
    return gate


async def test_flood_into_a_log_that_is_slow(hosting: Hosting) -> None:
    """When more waits for the log than may, the rest comes from the spool: in order, and without a gap."""
    await hosting.open(kernel_buffer_bytes=64 * 1024)
    gate = gated(hosting)
    gate.set()
    kernel = await hosting.start()
    for round in range(3):
        mark = hosting.directory / f"done{round}"
        gate.set()
        request = await kernel.execute(
            Code(code=f"for i in range(3000): print(i, flush=True)\nopen({str(mark)!r}, 'w').close()")
        )
        gate.clear()
        await until(mark.exists)
        await until(lambda: kernel.output.topic_writer.is_full)
        assert not request.closed.done()
        gate.set()
        result = await hosting.result(kernel, request)
        assert (result.status, result.reason) == ("ok", "")
        assert text_of(result) == "".join(f"{i}\n" for i in range(3000))
    found = await hosting.records(kernel.id)
    assert not repeated(found) and "gap" not in names(found)


async def test_flood_and_sudden_end(hosting: Hosting) -> None:
    """All that a kernel has said before it ends is in its topic, however far behind the log is at that moment."""
    await hosting.open(kernel_buffer_bytes=64 * 1024)
    gate = gated(hosting)
    gate.set()
    kernel = await hosting.start()
    request = await running(
        hosting, kernel, "for i in range(3000): print(i, flush=True)\nimport time; time.sleep(999)"
    )
    gate.clear()
    await until(lambda: kernel.output.topic_writer.is_full)
    assert kernel.process is not None
    spooled = kernel.process.read_spool
    await until(lambda: any(b"2999" in frames[-1] for _, frames in spooled(-1)))
    os.kill(kernel.model().pid or 0, signal.SIGKILL)
    await until(lambda: kernel.state is KernelState.DEAD)
    gate.set()
    result = await hosting.result(kernel, request)
    assert result.status == "died"
    assert text_of(result) == "".join(f"{i}\n" for i in range(3000))
    found = await hosting.records(kernel.id)
    assert not repeated(found) and "gap" not in names(found)


# Order


async def test_services_44_and_notebook_4807_reply_before_output(hosting: Hosting) -> None:
    """A reply that overtakes the output does not end the request: it is done when idle has come too."""
    fake, kernel = await attached_fake(hosting)
    request = await kernel.execute(Code(code="x"))
    asked = await fake.next_request()
    await fake.publish("status", asked, execution_state="busy")
    await fake.reply(asked, "execute_reply", status="ok", execution_count=7)
    await until_recorded(hosting, kernel.id, lambda found: messages(found, "execute_reply"))
    assert not request.closed.done()
    await fake.publish("stream", asked, name="stdout", text="late but there")
    await fake.publish("status", asked, execution_state="idle")
    result = await hosting.result(kernel, request)
    assert (result.status, text_of(result), result.execution_count) == ("ok", "late but there", 7)


async def test_output_after_idle_from_a_thread(hosting: Hosting) -> None:
    """What a thread prints after its cell has ended is in the topic, as the cell's, and in the result that is late."""
    await hosting.open()
    kernel = await hosting.start()
    mark = hosting.directory / "go"
    code = (
        f"import os, threading, time\ndef late():\n    while not os.path.exists({str(mark)!r}): time.sleep(.01)\n"
        "    print('from the thread', flush=True)\n"
        "threading.Thread(target=late).start(); print('cell')"
    )
    request = await kernel.execute(Code(code=code))
    result = await hosting.result(kernel, request)
    assert (result.status, text_of(result)) == ("ok", "cell\n")
    mark.touch()
    await until_recorded(hosting, kernel.id, lambda found: "from the thread" in printed(found, request.id))
    late = await hosting.result(kernel, request, late=True)
    assert text_of(late) == "cell\nfrom the thread\n"
    assert text_of(await hosting.result(kernel, request)) == "cell\n"


async def test_message_before_its_registration(hosting: Hosting) -> None:
    """What comes before anybody has registered for it is claimed by registering, in order."""
    await hosting.open()
    kernel = await hosting.start()
    assert kernel.process is not None
    client = await hosting.client(hosting.host._directory / "kernels" / kernel.id / "connection.json")
    request_id = client.execute("print('early')")
    await until(lambda: kernel.output.broker.stats().orphan_messages >= 4)
    await until(lambda: any(o.message.parent_id == request_id for o in kernel.output.broker.orphans()))
    await until_recorded(hosting, kernel.id, lambda found: len(messages(found, "status", request_id)) == 2)

    channels, collector = ExecutionResult.create_channels()
    kernel.output.broker.register_request(request_id, channels)
    assert [item.message.msg_type for item in collector.in_order()] == [
        "status",
        "execute_input",
        "stream",
        "status",
    ]


# Death


async def test_papermill_125_and_nbclient_88_kill_9_in_mid_cell(hosting: Hosting) -> None:
    """When a kernel is killed, all that wait for it are told at once, with the output so far."""
    host = await hosting.open()
    kernel = await hosting.start()
    request = await running(hosting, kernel)
    waiting = [await kernel.execute(Code(code="1")) for _ in range(5)]
    started_s = time.monotonic()
    os.kill(kernel.model().pid or 0, signal.SIGKILL)
    statuses = await asyncio.gather(*[ended(one) for one in [request, *waiting]])
    assert time.monotonic() - started_s < 5
    assert set(statuses) == {"died"}
    result = await hosting.result(kernel, request)
    assert text_of(result) == "on\n" and "signal 9" in result.reason
    await until(lambda: not host.kernels)
    await until(lambda: not hosting.left())
    found = await hosting.records(kernel.id)
    assert names(found)[-1] == "died" and events(found, "died")[0]["returncode"] == -9


async def test_keeper_is_killed(hosting: Hosting) -> None:
    """A kernel whose keeper is killed ends with it: that is told like any other end, and nothing is left."""
    host = await hosting.open()
    kernel = await hosting.start()
    request = await running(hosting, kernel)
    parent = psutil.Process(kernel.model().pid or 0).parent()
    assert parent is not None
    parent.kill()
    assert await ended(request) == "died"
    await until(lambda: not host.kernels and not hosting.left())
    assert names(await hosting.records(kernel.id))[-1] == "died"
    assert not list(hosting.runtime.glob("*/kernels/*"))


async def test_auto_restart(hosting: Hosting) -> None:
    """With kernel_auto_restart a kernel that dies is started again; what waited has died, what comes is run."""
    await hosting.open(kernel_auto_restart=True)
    kernel = await hosting.start()
    first = kernel.model().pid
    request = await running(hosting, kernel)
    os.kill(first or 0, signal.SIGKILL)
    assert await ended(request) == "died"
    found = await until_recorded(hosting, kernel.id, lambda found: "restarted" in names(found))
    hosting.track()
    assert kernel.state is KernelState.IDLE and kernel.model().pid != first
    assert [name for name in names(found) if not name.startswith("request")] == [
        "started", "died", "restarting", "restarted",
    ]  # fmt: skip
    assert (await hosting.run(kernel, "1+1")).execution_count == 1


async def test_kernel_that_cannot_start_says_why(hosting: Hosting, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error of a kernel that does not start has its last words, and nothing of it is left."""
    host = await hosting.open()
    specs = hosting.directory / "jupyter" / "kernels"
    for name, argv in {
        "broken": ["python3", "-c", "import sys; sys.exit('no such luck')"],
        "absent": ["/nowhere/at/all"],
    }.items():
        (specs / name).mkdir(parents=True)
        (specs / name / "kernel.json").write_text(
            json.dumps({"argv": argv, "display_name": name, "language": "none"})
        )
    host.specs.kernel_dirs = [str(specs), *host.specs.kernel_dirs]
    with pytest.raises(KernelFailed, match="no such luck"):
        await host.start("broken")
    with pytest.raises(KernelFailed, match="/nowhere/at/all"):
        await host.start("absent")
    hosting.track()
    assert not host.kernels and not hosting.left()
    assert not list(hosting.runtime.glob("*/kernels/*"))


# Interrupt, restart, timeout, cancel


async def test_interrupt_is_the_kernels_own_error(hosting: Hosting) -> None:
    """An interrupted request ends as an error, KeyboardInterrupt, and the next one runs."""
    await hosting.open()
    kernel = await hosting.start()
    request = await running(hosting, kernel)
    await kernel.interrupt()
    result = await hosting.result(kernel, request)
    assert result.status == "error"
    assert result.error is not None and result.error.ename == "KeyboardInterrupt"
    assert text_of(result) == "on\n"
    assert "interrupted" in names(await hosting.records(kernel.id))
    assert (await hosting.run(kernel, "1+1")).status == "ok"


async def test_restart_ends_what_waits(hosting: Hosting) -> None:
    """A restart ends the running request and those behind it as aborted; the kernel then starts from nothing."""
    await hosting.open()
    kernel = await hosting.start()
    assert (await hosting.run(kernel, "x = 1")).status == "ok"
    request = await running(hosting, kernel)
    waiting = [await kernel.execute(Code(code="1")) for _ in range(3)]
    await kernel.restart()
    hosting.track()
    assert {await ended(one) for one in [request, *waiting]} == {"aborted"}
    result = await hosting.run(kernel, "x")
    assert result.status == "error" and result.error is not None and result.error.ename == "NameError"
    found = await hosting.records(kernel.id)
    assert not repeated(found)
    lives = [name for name in names(found) if not name.startswith("request")]
    assert lives == ["started", "restarting", "restarted"]
    # Both processes have said so.
    starting = [m for m in messages(found, "status") if m.decoded_content()["execution_state"] == "starting"]
    assert len(starting) == 2


@pytest.mark.parametrize("timeout_s", [0.0, 0.001, 0.5])
async def test_timeout_interrupts_and_the_queue_goes_on(hosting: Hosting, timeout_s: float) -> None:
    """A request that takes too long, or hardly begins, is interrupted; what waits behind it is run."""
    await hosting.open()
    kernel = await hosting.start()
    slow = await kernel.execute(Code(code=WAIT, timeout_s=timeout_s))
    behind = await kernel.execute(Code(code="print('behind')"))
    assert await ended(slow) == "timeout"
    result = await hosting.result(kernel, behind)
    assert (result.status, text_of(result)) == ("ok", "behind\n")


async def test_cancel_queued_and_running(hosting: Hosting) -> None:
    """A queued request that is cancelled never runs, a running one is interrupted; both are closed as cancelled."""
    await hosting.open()
    kernel = await hosting.start()
    first = await running(hosting, kernel)
    queued = await kernel.execute(Code(code="print('never')"))
    behind = await kernel.execute(Code(code="print('behind')"))
    kernel.scheduler.cancel(queued.id)
    kernel.scheduler.cancel(first.id)
    assert await ended(queued) == await ended(first) == "cancelled"
    assert (await hosting.result(kernel, behind)).status == "ok"
    found = await hosting.records(kernel.id)
    assert printed(found) == "on\nbehind\n"
    assert len(events(found, "request_closed")) == 3


async def test_cancel_at_once(hosting: Hosting) -> None:
    """A request that is cancelled before the kernel has begun with it does not run on and block the others."""
    await hosting.open()
    kernel = await hosting.start()
    for _ in range(5):
        request = await kernel.execute(Code(code="while True: pass"))
        kernel.scheduler.cancel(request.id)
        assert await ended(request) == "cancelled"
        assert (await hosting.run(kernel, "1+1")).status == "ok"


# Other clients


async def test_client_of_its_own_on_the_same_kernel(hosting: Hosting) -> None:
    """Another client of a foreign kernel is undisturbed, and what it runs is in the topic too."""
    path, _ = await hosting.start_foreign()
    client = await hosting.client(path)
    host = await hosting.open()
    kernel = await host.attach(str(path))
    got: list[str] = []

    async def theirs(number: int) -> str:
        reply = await client.execute_interactive(
            f"print('theirs {number}')",
            timeout=DEADLINE_S,
            output_hook=lambda m: got.append(m["content"].get("text", "")),
        )
        return str(reply["content"]["status"])

    for number in range(10):
        both = asyncio.gather(theirs(number), hosting.run(kernel, f"print('ours {number}')"))
        status, ours = await both
        assert (status, ours.status, text_of(ours)) == ("ok", "ok", f"ours {number}\n")
    assert "".join(got) == "".join(f"theirs {number}\n" for number in range(10))
    found = await until_recorded(hosting, kernel.id, lambda found: "theirs 9" in printed(found))
    lines = printed(found).splitlines()
    assert sorted(lines) == sorted([f"{who} {n}" for who in ("ours", "theirs") for n in range(10)])
    await host.stop(kernel.id)
    assert await theirs(10) == "ok"  # it was only let go


async def test_attach_while_a_cell_runs(hosting: Hosting) -> None:
    """A kernel that is busy with another's cell is attached to at once, and its output kept from there on."""
    path, _ = await hosting.start_foreign()
    client = await hosting.client(path)
    mark = hosting.directory / "go"
    client.execute(
        f"import os, time\nwhile not os.path.exists({str(mark)!r}): time.sleep(.01)\nprint('after')"
    )
    host = await hosting.open()
    async with asyncio.timeout(20):
        kernel = await host.attach(str(path))
    assert await host.attach(str(path)) is kernel
    mark.touch()
    await until_recorded(hosting, kernel.id, lambda found: printed(found) == "after\n")


# Bad messages


_fakes: list[FakeKernel] = []


@pytest.fixture(autouse=True)
async def _close_fakes() -> AsyncIterator[None]:
    yield
    while _fakes:
        _fakes.pop().close()


async def attached_fake(hosting: Hosting, **settings):  # type: ignore[no-untyped-def]
    fake = FakeKernel(hosting.directory / "kernel-fake.json")
    _fakes.append(fake)
    host = await hosting.open(**settings)
    return fake, await host.attach(str(fake.path))


async def test_forged_signatures_are_counted_and_not_stored(hosting: Hosting) -> None:
    """Messages with a wrong, or without any, signature never reach the topic; they are counted."""
    fake, kernel = await attached_fake(hosting)
    forger = Wire(b"not the key")
    unsigned = Wire(b"")
    for _ in range(10):
        await fake.publish("stream", wire=forger, name="stdout", text="forged")
    await fake.publish("stream", wire=unsigned, name="stdout", text="unsigned")
    await fake.publish_frames([b"rubbish"])
    await fake.publish_frames([b"topic", b"<IDS|MSG>", b"", b"{}"])
    await fake.publish("stream", name="stdout", text="genuine")
    found = await until_recorded(hosting, kernel.id, printed)
    assert printed(found) == "genuine"
    assert kernel.connector.faults == {"bad_signature": 10, "unsigned": 1, "short": 2}


async def test_a_forged_input_after_the_reply_changes_no_count(hosting: Hosting) -> None:
    """The execution count of a request is that of its reply, though IOPub is later and names another."""
    fake, kernel = await attached_fake(hosting)
    request = await kernel.execute(Code(code="1"))
    asked = await fake.next_request()
    await fake.reply(asked, "execute_reply", status="ok", execution_count=7)
    await until(lambda: request.state.reply_status is not None)
    await fake.publish("status", asked, execution_state="busy")
    await fake.publish("execute_input", asked, code="forged", execution_count=99)
    await fake.publish("status", asked, execution_state="idle")
    assert (await hosting.result(kernel, request)).execution_count == 7


async def test_messages_that_all_have_one_id_harm_nothing(hosting: Hosting) -> None:
    """The kernel lives on, all records are one line of JSON, and what follows is there."""
    fake, kernel = await attached_fake(hosting)
    said = {"name": "stdout", "text": "again"}
    _, frames = fake.wire.encode("stream", said, msg_id="the-same", identities=[b"topic"])
    for _ in range(2000):
        await fake.publish_frames(frames)
    await fake.publish("stream", name="stdout", text=" and after")
    found = await until_recorded(hosting, kernel.id, lambda found: "after" in printed(found))
    assert printed(found).strip("agin") == " and after" and kernel.is_alive
    assert all(json.loads(record.payload) and b"\n" not in record.payload for record in found)


FORGING = """
kernel = get_ipython().kernel
for type in {types!r}:
    kernel.session.send(
        kernel.iopub_socket, type, {{"event": "request_closed", "status": "ok", "code": "other()", "prompt": "?"}},
        parent=kernel.get_parent(), ident=b"kernel",
    )
print("genuine")
1 / 0
"""
FORGED_TYPES = sorted(NOT_ON_IOPUB)


def assert_only_genuine(found: list[Record]) -> None:
    """Types that are reserved are those of records that Himalia wrote, or received on another socket; no others."""
    for record in found:
        headers = read_headers(record)
        assert (headers.msg_type in NOT_ON_IOPUB) == (headers.channel in {"kernel", "shell", "stdin"})
    assert [event["status"] for event in events(found, "request_closed")] == ["error"]
    assert "gap" not in names(found)


async def test_code_cannot_write_events_of_its_own(hosting: Hosting) -> None:
    """What only Himalia writes is refused on IOPub, though signed: no record has that shape, and it is counted."""
    await hosting.open()
    kernel = await hosting.start()
    result = await hosting.run(kernel, FORGING.format(types=FORGED_TYPES))
    assert (result.status, text_of(result)) == ("error", "genuine\n")
    assert kernel.connector.faults == {"reserved_type": len(FORGED_TYPES)}
    assert_only_genuine(await hosting.records(kernel.id))


async def test_code_of_a_foreign_kernel_cannot_write_events(hosting: Hosting) -> None:
    """The same of a kernel that something else started, which is heard on a socket and not by a spool."""
    host = await hosting.open()
    path, _ = await hosting.start_foreign()
    kernel = await host.attach(str(path))
    result = await hosting.run(kernel, FORGING.format(types=FORGED_TYPES))
    assert (result.status, text_of(result)) == ("error", "genuine\n")
    assert kernel.connector.faults == {"reserved_type": len(FORGED_TYPES)}
    assert_only_genuine(await hosting.records(kernel.id))


async def test_forged_events_in_a_spool_are_refused(hosting: Hosting) -> None:
    """The same of what a kernel wrote while no server was there, with its keeper or without."""
    server = await hosting.serve()
    started = await server.ask("start")
    kernel_id, go = started["kernel"], hosting.directory / "go"
    code = f"import os, time\nprint('waits')\nwhile not os.path.exists({str(go)!r}): time.sleep(.01)\n"
    code += FORGING.format(types=FORGED_TYPES)
    await server.ask("execute", kernel=kernel_id, code=code)
    await server.ask("printed", kernel=kernel_id, text="waits")
    server.kill()
    go.touch()
    directory = next(hosting.runtime.glob(f"*/kernels/{kernel_id}"))
    await until(lambda: "genuine" in spooled(directory))
    keeper = psutil.Process(started["pid"]).parent()
    assert keeper is not None
    keeper.terminate()
    await until(lambda: not hosting.left())
    await hosting.open()
    found = await hosting.records(kernel_id)
    iopub = [record for record in found if read_headers(record).channel not in ("kernel", "shell", "stdin")]
    assert "genuine" in printed(found)
    assert not [record for record in iopub if read_headers(record).msg_type in NOT_ON_IOPUB]


def test_what_readers_tell_events_by_is_reserved() -> None:
    """Every type that the page or the pipeline takes for something of another channel cannot come by IOPub."""
    page = (Path(himalia.__file__).parent / "page" / "live" / "kernel_session.js").read_text()
    of_iopub = {"status", "execute_input", "execute_result", "error"}
    taken = set(re.findall(r'message\.type === "(\w+)"', page)) - of_iopub
    assert {"kernel_event", "execute_request", "input_reply"} <= taken <= NOT_ON_IOPUB
    pipeline = (Path(himalia.__file__).parent / "spark" / "transforms" / "iopub.py").read_text()
    for channel in ("shell", "kernel"):
        types = re.search(rf'"{channel}": \(([^)]*)\)', pipeline)
        assert types is not None and set(re.findall(r'"(\w+)"', types[1])) <= NOT_ON_IOPUB


async def test_message_that_is_too_large_leaves_a_marker(hosting: Hosting) -> None:
    """Of a message over kernel_message_bytes_max the topic has its type, size and request, and what follows it."""
    await hosting.open(kernel_message_bytes_max=100_000)
    kernel = await hosting.start()
    result = await hosting.run(kernel, "print('x' * 200_000, flush=True)\nprint('after', flush=True)")
    assert result.status == "ok" and result.dropped == 1
    assert text_of(result) == "after\n"
    marked = events(await hosting.records(kernel.id), "message_too_large")
    assert len(marked) == 1
    assert marked[0]["of"] == result.request_id
    assert marked[0]["msg_type"] == "stream" and marked[0]["size_bytes"] > 200_000


async def test_kernel_that_never_says_idle(hosting: Hosting, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that replies and loses its idle, or says idle and loses its reply, does not hang its requests."""
    monkeypatch.setattr("himalia.kernels.scheduler.SETTLE_S", 0.3)
    fake, kernel = await attached_fake(hosting)
    request = await kernel.execute(Code(code="x"))
    asked = await fake.next_request()
    await fake.publish("status", asked, execution_state="busy")
    await fake.reply(asked, "execute_reply", status="ok", execution_count=1)
    assert await ended(request) == "ok"
    request = await kernel.execute(Code(code="y"))
    asked = await fake.next_request()
    await fake.publish("status", asked, execution_state="busy")
    await fake.publish("error", asked, ename="E", evalue="v", traceback=[])
    await fake.publish("status", asked, execution_state="idle")
    assert await ended(request) == "error"
    assert "never replied" in (await hosting.result(kernel, request)).reason


# Silence


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


async def open_with_clock(hosting: Hosting, clock: Clock, **settings) -> KernelHost:  # type: ignore[no-untyped-def]
    host = await hosting.open(**settings)
    await host.close()
    again = KernelHost(
        hosting.manager, Settings(log=hosting.url, **settings), options=HostOptions(clock=clock)
    )
    await again.open()
    assert hosting._opened is not None
    hosting._opened.host = again
    return again


async def test_silent_for_ten_minutes_while_the_heart_beats(hosting: Hosting) -> None:
    """A cell that is silent for long is not given up while its kernel's heart beats."""
    clock = Clock()
    await open_with_clock(hosting, clock, kernel_heartbeat_s=0.02, kernel_cleanup_s=1)
    kernel = await hosting.start()
    mark = hosting.directory / "go"
    code = (
        f"import os, time\nprint('on', flush=True)\nwhile not os.path.exists({str(mark)!r}): time.sleep(.01)"
    )
    request = await running(hosting, kernel, code + "\nprint('off')")
    for _ in range(10):
        clock.now_s += 60
        before = kernel.output.broker.stats()
        beaten = asyncio.Event()
        touch = kernel.scheduler.touch
        kernel.scheduler.touch = lambda touch=touch, beaten=beaten: (touch(), beaten.set())  # type: ignore
        await asyncio.wait_for(beaten.wait(), DEADLINE_S)
        kernel.output.broker.cleanup()
        assert kernel.output.broker.stats().active_requests == before.active_requests == 1
    assert kernel.output.broker.stats().stale == 0
    mark.touch()
    result = await hosting.result(kernel, request)
    assert (result.status, text_of(result)) == ("ok", "on\noff\n")


async def test_silent_with_its_heart_stopped(hosting: Hosting) -> None:
    """A request of which nothing is heard, nor of its kernel, is closed as stale; the kernel can come back."""
    clock = Clock()
    await open_with_clock(hosting, clock, kernel_heartbeat_s=1000, kernel_cleanup_s=1)
    kernel = await hosting.start()
    request = await running(hosting, kernel)
    os.kill(kernel.model().pid or 0, signal.SIGSTOP)
    clock.now_s += 301
    assert await ended(request) == "stale"
    os.kill(kernel.model().pid or 0, signal.SIGCONT)
    # Until its main thread sleeps again, Linux may give a signal to another thread, and the sleep goes on.
    await until(lambda: psutil.Process(kernel.model().pid).status() == psutil.STATUS_SLEEPING)
    await kernel.interrupt()
    assert (await hosting.run(kernel, "1+1")).status == "ok"
    assert len(events(await hosting.records(kernel.id), "request_closed")) == 2


# Input


async def test_stdin_answered(hosting: Hosting) -> None:
    """Code that may ask for input gets the answer; both are in the topic, a password's answer is not."""
    await hosting.open()
    kernel = await hosting.start()
    request = await kernel.execute(
        Code(code="import getpass\nprint(input('name? ')); print(len(getpass.getpass()))", allow_stdin=True)
    )
    await until(lambda: kernel.inputs.is_pending)
    kernel.inputs.reply("Ada")
    await until(lambda: kernel.inputs.is_pending)
    kernel.inputs.reply("secret")
    result = await hosting.result(kernel, request)
    assert (result.status, text_of(result)) == ("ok", "Ada\n6\n")
    found = await hosting.records(kernel.id)
    assert [read_headers(r).msg_type for r in found if read_headers(r).channel == "stdin"] == [
        "input_request", "input_reply", "input_request",
    ]  # fmt: skip
    assert not any(b"secret" in record.payload for record in found)


async def test_stdin_refused(hosting: Hosting) -> None:
    """Code that may not ask for input ends with an error; an answer nobody waits for is refused."""
    from himalia.errors import KernelUnavailable

    await hosting.open()
    kernel = await hosting.start()
    result = await hosting.run(kernel, "input('name? ')")
    assert result.status == "error"
    assert result.error is not None and result.error.ename == "StdinNotImplementedError"
    with pytest.raises(KernelUnavailable):
        kernel.inputs.reply("nobody asked")
    request = await kernel.execute(Code(code="input()", allow_stdin=True))
    await until(lambda: kernel.inputs.is_pending)
    await kernel.interrupt()
    assert await ended(request) == "error"
    with pytest.raises(KernelUnavailable):
        kernel.inputs.reply("too late")


# Queue, culling


async def test_priorities(hosting: Hosting) -> None:
    """What waits is run by priority, and among equals in the order it came."""
    await hosting.open()
    kernel = await hosting.start()
    mark = hosting.directory / "go"
    wait = f"import os, time\nwhile not os.path.exists({str(mark)!r}): time.sleep(.01)"
    requests = [await kernel.execute(Code(code=wait))]
    for name, priority in [("a", 0), ("b", 5), ("c", -1), ("d", 5), ("e", 0)]:
        requests.append(await kernel.execute(Code(code=f"print({name!r}, end='')", priority=priority)))
    mark.touch()
    for request in requests:
        assert await ended(request) == "ok"
    assert printed(await hosting.records(kernel.id)) == "bdaec"


async def test_culling(hosting: Hosting) -> None:
    """A kernel that does nothing for kernel_cull_s is stopped; one that runs something is not."""
    host = await hosting.open(kernel_cull_s=1)
    busy = await hosting.start()
    request = await running(hosting, busy)
    idle = await hosting.start()
    await until(lambda: idle.id not in host.kernels)
    assert events(await hosting.records(idle.id), "stopped")[0]["reason"].startswith("it did nothing")
    assert busy.id in host.kernels and not request.closed.done()


# Another implementation


async def test_xeus_python(hosting: Hosting) -> None:
    """A kernel of another implementation runs, fails, is interrupted, restarted and killed like any other."""
    host = await hosting.open()
    kernel = await hosting.start("xpython")
    result = await hosting.run(kernel, "print('hello')\n6 * 7")
    assert (result.status, text_of(result)) == ("ok", "hello\n")
    assert [o["data"]["text/plain"] for o in result.outputs if o["output_type"] == "execute_result"] == ["42"]
    result = await hosting.run(kernel, "1/0")
    assert result.status == "error"
    assert result.error is not None and "ZeroDivisionError" in result.error.ename
    # Two messages each. In a burst of 4,000, under load, it leaves some out that neither we nor the keeper hear.
    result = await hosting.run(kernel, "for i in range(400): print(i, flush=True)")
    assert text_of(result) == "".join(f"{i}\n" for i in range(400))
    await kernel.restart()
    hosting.track()
    assert (await hosting.run(kernel, "1+1")).status == "ok"
    request = await running(hosting, kernel)
    os.kill(kernel.model().pid or 0, signal.SIGKILL)
    assert await ended(request) == "died"
    assert not repeated(await hosting.records(kernel.id))
    await until(lambda: not host.kernels)


# Leaks


SETTLE_LOOKS = 50


def descriptors() -> int:
    """Open ones of this process, without what earlier tests left as garbage."""
    gc.collect()
    return psutil.Process().num_fds()


async def test_requests_leave_nothing_behind(hosting: Hosting) -> None:
    """50 requests one after the other leave no more tasks, descriptors, threads or entries than those before them.

    Something that is made once, such as a connection more to read the log by, may be there after one batch of them.
    """
    await hosting.open()
    kernel = await hosting.start()

    def counts() -> tuple[int, ...]:
        stats = kernel.output.broker.stats()
        tasks, threads = len(asyncio.all_tasks()), psutil.Process().num_threads()
        return tasks, descriptors(), threads, stats.active_requests, stats.orphan_messages

    async def requests(number: int) -> tuple[int, ...]:
        """The counts after them, which may have to settle: a file may be open just now."""
        for _ in range(number):
            await hosting.run(kernel, "print(1)")
        seen = [counts()]
        while len(seen) < SETTLE_LOOKS and any(now > was for now, was in zip(seen[-1], before, strict=True)):
            await asyncio.sleep(0.1)
            seen.append(counts())
        return tuple(map(min, zip(*seen, strict=True)))

    before: tuple[int, ...] = (1 << 30,) * len(counts())
    before = await requests(5)
    for _ in range(3):
        after = await requests(50)
        if all(now <= was for now, was in zip(after, before, strict=True)):
            break
        before = after
    else:
        pytest.fail(f"each batch left more behind: {after}")
    stats = kernel.output.broker.stats()
    assert stats.active_requests == 0 and stats.orphan_messages <= before[-1]
    assert not kernel.scheduler.is_busy and kernel.output.topic_writer.buffered_bytes == 0


async def test_kernels_leave_nothing_behind(hosting: Hosting) -> None:
    """Kernels that came and went leave no tasks, descriptors, processes or files."""
    host = await hosting.open()

    async def come_and_go() -> None:
        kernel = await hosting.start()
        await hosting.run(kernel, "print(1)")
        await host.stop(kernel.id)

    await come_and_go()
    before = (len(asyncio.all_tasks()), descriptors())
    for _ in range(3):
        await come_and_go()
    await until(lambda: not hosting.left())
    after = (len(asyncio.all_tasks()), descriptors())
    assert after[0] <= before[0] and after[1] <= before[1], (before, after)
    assert not list(hosting.runtime.glob("*/kernels/*"))
