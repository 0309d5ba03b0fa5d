"""The host: kernels come and go, by whoever's hand, at whatever moment, and none is lost, doubled or left behind."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from himalia.errors import (
    BadRequest,
    ExecutionNotFound,
    HimaliaError,
    KernelFailed,
    KernelNotFound,
    KernelUnavailable,
    TooManyKernels,
)
from himalia.jupyter.wire import KernelMessage
from himalia.keeper import provisioner
from himalia.keeper.ports import PortBlock, find_ports
from himalia.kernels.model import KernelState
from himalia.kernels.request import Code
from tests.kernels.fake_kernel import FakeKernel
from tests.kernels.hosts import (
    Hosting,
    ended,
    events,
    hosting,
    is_running,
    names,
    opened,
    printed,
    repeated,
    text_of,
    until,
    until_recorded,
)

__all__ = ["hosting"]

pytestmark = pytest.mark.slow

WAIT = "import time; print('on', flush=True); time.sleep(1000)"


@pytest.fixture
async def fakes() -> AsyncIterator[list[FakeKernel]]:
    made: list[FakeKernel] = []
    yield made
    for fake in made:
        fake.close()


def lives(found: Any) -> list[str]:
    return [name for name in names(found) if not name.startswith("request")]


def add_spec(hosting: Hosting, name: str, argv: list[str], **more: Any) -> None:
    specs = hosting.directory / "jupyter" / "kernels"
    (specs / name).mkdir(parents=True)
    spec = {"argv": argv, "display_name": name, "language": "none", **more}
    (specs / name / "kernel.json").write_text(json.dumps(spec))
    if str(specs) not in hosting.host.specs.kernel_dirs:
        hosting.host.specs.kernel_dirs = [str(specs), *hosting.host.specs.kernel_dirs]


# Starting


async def test_start_run_stop(hosting: Hosting) -> None:
    """A kernel is listed while it lives; its topic tells its life; its results stay when it is gone."""
    host = await hosting.open()
    kernel = await hosting.start()
    assert host.get(kernel.id) is kernel and kernel.state is KernelState.IDLE
    result = await hosting.run(kernel, "print('hello')\n1+1")
    assert (result.status, text_of(result), result.execution_count) == ("ok", "hello\n", 1)
    assert kernel.state is KernelState.IDLE
    await host.stop(kernel.id)
    assert not host.kernels
    await until(lambda: not hosting.left())
    found = await hosting.records(kernel.id)
    assert lives(found) == ["started", "stopped"] and names(found)[-1] == "stopped"
    assert not repeated(found)
    assert await host.result(kernel.id, result.request_id) == result
    with pytest.raises(KernelNotFound):
        host.get(kernel.id)
    with pytest.raises(KernelUnavailable):
        await kernel.execute(Code(code="1"))


async def test_state_follows_the_kernel(hosting: Hosting) -> None:
    """The state is what the kernel says of itself while it runs something, and idle after."""
    await hosting.open()
    kernel = await hosting.start()
    request = await kernel.execute(Code(code=WAIT))
    await until(lambda: kernel.state is KernelState.BUSY)
    assert kernel.model().active_request == request.id
    await kernel.interrupt()
    await ended(request)
    await until(lambda: kernel.state is KernelState.IDLE)


async def test_unknown_names(hosting: Hosting) -> None:
    """What does not exist is said so, with what to do."""
    host = await hosting.open()
    with pytest.raises(BadRequest, match="python3"):
        await host.start("no-such-kernel")
    with pytest.raises(BadRequest):
        await host.attach("no-such-file")
    with pytest.raises(KernelNotFound):
        await host.result("nobody", "nothing")
    kernel = await hosting.start()
    with pytest.raises(ExecutionNotFound):
        await host.result(kernel.id, "nothing")
    assert list(host.kernels) == [kernel.id]


async def test_limit_of_kernels(hosting: Hosting) -> None:
    """No more kernels than kernels_max, those that are being started included."""
    host = await hosting.open(kernels_max=2)
    started = await asyncio.gather(*[hosting.start() for _ in range(4)], return_exceptions=True)
    assert len([one for one in started if isinstance(one, TooManyKernels)]) == 2
    assert len(host.kernels) == 2


async def test_kernel_that_never_answers(hosting: Hosting) -> None:
    """A kernel that runs and does not answer is given up after kernel_start_timeout_s, and ended."""
    host = await hosting.open(kernel_start_timeout_s=0.5)
    add_spec(
        hosting,
        "mute",
        [sys.executable, "-c", "import sys, time; print('I am mute', flush=True); time.sleep(99)"],
    )
    with pytest.raises(KernelFailed, match=r"did not answer within 0\.5 s"):
        await hosting.start("mute")
    hosting.track()
    assert not host.kernels
    await until(lambda: not hosting.left())


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that belongs to somebody else."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


async def test_port_that_another_program_took(
    hosting: Hosting, monkeypatch: pytest.MonkeyPatch, taken: int
) -> None:
    """Ports are chosen before the kernel listens on them: one that is taken by then costs a start, not the kernel."""
    chosen = [PortBlock(taken, None)]
    monkeypatch.setattr(provisioner, "find_ports", lambda ip: chosen.pop() if chosen else find_ports(ip))
    await hosting.open()
    kernel = await hosting.start()
    assert text_of(await hosting.run(kernel, "print('here')")) == "here\n"
    assert kernel.process is not None
    found = await hosting.records(kernel.id)
    assert lives(found) == ["started", "moved"]
    assert events(found, "moved")[0]["pid"] == kernel.process.pid


async def test_ports_that_are_always_taken(
    hosting: Hosting, monkeypatch: pytest.MonkeyPatch, taken: int
) -> None:
    """A kernel that never finds a free port is given up, with what it said, and nothing stays behind."""
    monkeypatch.setattr(provisioner, "find_ports", lambda ip: PortBlock(taken, None))
    host = await hosting.open()
    with pytest.raises(KernelFailed, match="Address already in use"):
        await hosting.start()
    hosting.track()
    assert not host.kernels
    await until(lambda: not hosting.left())
    assert not list(hosting.runtime.glob("*/kernels/*"))


async def test_start_is_cancelled(hosting: Hosting) -> None:
    """Whoever starts a kernel may change their mind at any moment: nothing stays behind."""
    host = await hosting.open()
    add_spec(hosting, "mute", [sys.executable, "-c", "import time; time.sleep(99)"])
    for steps in (0, 1, 3, 10, 50):
        starting = asyncio.create_task(host.start("mute"))
        for _ in range(steps):
            await asyncio.sleep(0.01)
        hosting.track()
        starting.cancel()
        await asyncio.wait({starting})
        hosting.track()
    await until(lambda: not hosting.left())
    assert not host.kernels and not list(hosting.runtime.glob("*/kernels/*"))


# Restarting


async def test_restarts_at_a_time_are_one(hosting: Hosting) -> None:
    """Two who restart a kernel at the same time restart it once."""
    await hosting.open()
    kernel = await hosting.start()
    await asyncio.gather(kernel.restart(), kernel.restart())
    hosting.track()
    assert (await hosting.run(kernel, "1+1")).execution_count == 1
    assert lives(await hosting.records(kernel.id)) == ["started", "restarting", "restarted"]
    assert len(hosting.left()) == 2


async def test_code_that_comes_during_a_restart(hosting: Hosting) -> None:
    """A request that comes while the kernel restarts waits for it."""
    await hosting.open()
    kernel = await hosting.start()
    restarting = asyncio.create_task(kernel.restart())
    await until(lambda: kernel.state is KernelState.RESTARTING)
    await until_recorded(hosting, kernel.id, lambda found: "restarting" in names(found))
    result = await hosting.run(kernel, "print('new')")
    await restarting
    hosting.track()
    assert (result.status, text_of(result)) == ("ok", "new\n")


async def test_stop_during_a_restart(hosting: Hosting) -> None:
    """A kernel that is stopped while it restarts ends, once, and nothing of it stays behind."""
    host = await hosting.open()
    kernel = await hosting.start()
    restarting = asyncio.create_task(kernel.restart())
    await until(lambda: kernel.state is KernelState.RESTARTING)
    await host.stop(kernel.id)
    await asyncio.wait({restarting})
    hosting.track()
    assert not host.kernels
    await until(lambda: not hosting.left())
    assert lives(await hosting.records(kernel.id))[-1] == "stopped"
    assert not list(hosting.runtime.glob("*/kernels/*"))


async def test_restart_that_fails(hosting: Hosting) -> None:
    """A kernel that cannot be started again says why, ends its requests, and leaves nothing behind."""
    host = await hosting.open()
    script = hosting.directory / "run.sh"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -m ipykernel_launcher -f "$1"\n')
    script.chmod(0o700)
    add_spec(hosting, "brittle", [str(script), "{connection_file}"])
    kernel = await hosting.start("brittle")
    assert (await hosting.run(kernel, "print('once')")).status == "ok"
    script.write_text("#!/bin/sh\necho broken now; exit 3\n")
    with pytest.raises(KernelFailed, match="broken now"):
        await kernel.restart()
    hosting.track()
    await until(lambda: not host.kernels)
    await until(lambda: not hosting.left())
    found = await hosting.records(kernel.id)
    assert names(found)[-1] == "died" and not repeated(found)
    assert not list(hosting.runtime.glob("*/kernels/*"))
    with pytest.raises(HimaliaError):
        await kernel.execute(Code(code="1"))


async def test_restart_whose_command_is_gone(hosting: Hosting) -> None:
    """The same if the command itself is gone: what the old process said last is kept all the same."""
    host = await hosting.open()
    script = hosting.directory / "run.sh"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -m ipykernel_launcher -f "$1"\n')
    script.chmod(0o700)
    add_spec(hosting, "brittle", [str(script), "{connection_file}"])
    kernel = await hosting.start("brittle")
    code = "import atexit\natexit.register(lambda: print('last words', flush=True))"
    assert (await hosting.run(kernel, code)).status == "ok"
    script.unlink()
    with pytest.raises(KernelFailed):
        await kernel.restart()
    await until(lambda: not host.kernels)
    hosting.track()
    await until(lambda: not hosting.left())
    assert names(await hosting.records(kernel.id))[-1] == "died"
    assert not list(hosting.runtime.glob("*/kernels/*"))


async def test_port_that_is_taken_while_it_restarts(hosting: Hosting) -> None:
    """A kernel goes on elsewhere if its port is gone by the time its next process listens, with what waits for it."""
    await hosting.open(kernel_auto_restart=True)
    kernel = await hosting.start()
    assert kernel.process is not None and kernel.process.pid is not None
    port = kernel.process.connection.shell_port
    os.kill(kernel.process.pid, signal.SIGKILL)
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        await until(lambda: _binds(other, port))
        other.listen()
        await until(lambda: kernel.state is KernelState.RESTARTING)
        assert (await hosting.run(kernel, "1+1")).status == "ok"
        found = await until_recorded(hosting, kernel.id, lambda found: "restarted" in names(found))
        hosting.track()
    assert kernel.process.connection.shell_port != port
    assert lives(found) == ["started", "died", "restarting", "moved", "restarted"]


def _binds(other: socket.socket, port: int) -> bool:
    try:
        other.bind(("127.0.0.1", port))
    except OSError:
        return False
    return True


# Ending


async def test_stops_at_a_time_are_one(hosting: Hosting) -> None:
    """All who stop a kernel return when it is gone, and it is stopped once."""
    host = await hosting.open()
    kernel = await hosting.start()
    await asyncio.gather(*[host.stop(kernel.id) for _ in range(3)])
    await until(lambda: not hosting.left())
    assert lives(await hosting.records(kernel.id)) == ["started", "stopped"]


async def test_stop_is_cancelled(hosting: Hosting) -> None:
    """Whoever stops a kernel may go away: it ends all the same, and closing waits for that."""
    host = await hosting.open()
    kernel = await hosting.start()
    stopping = asyncio.create_task(host.stop(kernel.id))
    await until(lambda: not kernel.is_alive)
    stopping.cancel()
    await asyncio.wait({stopping})
    await host.close()
    await until(lambda: not hosting.left())
    assert lives(await hosting.records(kernel.id)) == ["started", "stopped"]


async def test_stop_while_it_dies(hosting: Hosting) -> None:
    """A kernel that is stopped while its death is dealt with has one end."""
    host = await hosting.open()
    kernel = await hosting.start()
    os.kill(kernel.model().pid or 0, signal.SIGKILL)
    await until(lambda: kernel.state is KernelState.DEAD)
    await kernel.stop()
    assert not host.kernels
    await until(lambda: not hosting.left())
    assert lives(await hosting.records(kernel.id)) == ["started", "died"]


async def test_kernel_dies_before_anybody_looks(hosting: Hosting) -> None:
    """The death of a kernel at the very moment it has answered is noticed."""
    host = await hosting.open()
    code = "import os, threading, time\nthreading.Timer({delay}, os._exit, [7]).start()\n"
    launch = "from ipykernel.kernelapp import launch_new_instance\nlaunch_new_instance()"
    for number, delay in enumerate((0.4, 0.5, 0.6, 0.7, 0.8)):
        argv = [sys.executable, "-c", code.format(delay=delay) + launch, "-f", "{connection_file}"]
        add_spec(hosting, f"short{number}", argv)
        try:
            await hosting.start(f"short{number}")
        except HimaliaError:
            pass
        hosting.track()
    await until(lambda: not host.kernels)
    await until(lambda: not hosting.left())


@pytest.mark.parametrize("when", ["early", "late"])
async def test_close_while_the_log_is_unwell(hosting: Hosting, when: str) -> None:
    """A host whose log takes nothing can be closed by cancelling: the spool keeps what the next server stores."""
    host = await hosting.open(kernel_buffer_bytes=1000)
    kernel = await hosting.start()
    publish = hosting.manager.publish
    request = await kernel.execute(Code(code="for i in range(500): print(i, flush=True)\n" + WAIT))
    never: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    hosting.manager.publish = lambda batch: asyncio.ensure_future(asyncio.shield(never))  # type: ignore
    assert kernel.process is not None
    spooled = kernel.process.read_spool
    await until(lambda: any(b'"on' in frames[-1] for _, frames in spooled(-1)))
    process = psutil.Process(kernel.model().pid)
    closing = asyncio.create_task(host.close())
    await until(lambda: not kernel.is_alive)
    if when == "late":
        # The kernel has ended; what it said waits in its spool for the log.
        await until(lambda: not is_running(process))
    closing.cancel()
    await asyncio.wait({closing}, timeout=30)
    assert closing.done()
    hosting.manager.publish = publish  # type: ignore[method-assign]
    await hosting.close()

    await hosting.open()
    found = await until_recorded(
        hosting,
        kernel.id,
        lambda found: printed(found, request.id) == "".join(f"{i}\n" for i in range(500)) + "on\n",
    )
    assert not repeated(found)


async def test_abort_what_lost_a_cancellation(hosting: Hosting) -> None:
    """An ending that is told to stop and goes on, as ``wait_for`` may have it, is told again."""
    await hosting.open()
    kernel = await hosting.start()

    async def loses_the_first() -> None:
        never = asyncio.Event()
        with suppress(asyncio.CancelledError):
            await never.wait()
        await never.wait()

    kernel.lifecycle._ending = asyncio.create_task(loses_the_first())
    await asyncio.sleep(0)
    await asyncio.wait_for(kernel.lifecycle.abort(), 30)
    assert len(hosting.left()) == 2, "the kernel and its keeper live on"


# Attaching


async def test_attach_twice_at_a_time(hosting: Hosting, fakes: list[FakeKernel]) -> None:
    """Two who attach the same kernel at the same time get one kernel: its output is kept once."""
    fake = FakeKernel(hosting.directory / "kernel-twice.json")
    fakes.append(fake)
    host = await hosting.open()
    kernels = await asyncio.gather(*[host.attach(str(fake.path)) for _ in range(3)])
    assert len({id(kernel) for kernel in kernels}) == 1 and list(host.kernels) == ["twice"]
    await fake.publish("stream", name="stdout", text="once")
    await fake.publish("stream", name="stdout", text="end")
    found = await until_recorded(hosting, "twice", lambda found: printed(found).endswith("end"))
    assert printed(found) == "onceend" and lives(found) == ["attached"]


async def test_connection_files_of_the_same_name(hosting: Hosting, fakes: list[FakeKernel]) -> None:
    """Two kernels whose connection files have the same name, in two directories, are two kernels."""
    host = await hosting.open()
    for place in ("a", "b"):
        (hosting.directory / place).mkdir()
        fakes.append(FakeKernel(hosting.directory / place / "kernel-1.json"))
    first, second = [await host.attach(str(fake.path)) for fake in fakes]
    assert first is not second and first.id != second.id
    assert await host.attach(str(fakes[1].path)) is second


async def test_attach_to_nobody(hosting: Hosting, fakes: list[FakeKernel]) -> None:
    """A connection file whose kernel is gone is refused at once, and no topic is made for it."""
    fake = FakeKernel(hosting.directory / "kernel-gone.json")
    fake.close()
    host = await hosting.open()
    async with asyncio.timeout(20):
        with pytest.raises(KernelUnavailable):
            await host.attach(str(fake.path))
    assert not host.kernels and not await hosting.log.topics()


async def test_foreign_kernel_whose_heart_stops(hosting: Hosting, fakes: list[FakeKernel]) -> None:
    """A foreign kernel that no longer answers is taken for dead: its requests end, and it is not remembered."""
    fake = FakeKernel(hosting.directory / "kernel-weak.json")
    fakes.append(fake)
    host = await hosting.open(kernel_heartbeat_s=0.05)
    kernel = await host.attach(str(fake.path))
    request = await kernel.execute(Code(code="x"))
    asked = await fake.next_request()
    await fake.publish("stream", asked, name="stdout", text="so far")
    fake.stop_heart()
    result = await hosting.result(kernel, request)
    assert (result.status, text_of(result)) == ("died", "so far")
    await until(lambda: not host.kernels)
    assert not list(hosting.runtime.glob("*/attached/*"))


async def test_stop_only_lets_a_foreign_kernel_go(hosting: Hosting) -> None:
    """A foreign kernel outlives both its stop and the end of the host; it cannot be restarted from here."""
    path, manager = await hosting.start_foreign()
    await hosting.client(path)
    host = await hosting.open()
    kernel = await host.attach(str(path))
    with pytest.raises(KernelUnavailable, match="not managed by Himalia"):
        await kernel.restart()
    await host.stop(kernel.id)
    assert await manager.is_alive()
    await host.attach(str(path))
    await hosting.close()
    assert await manager.is_alive()
    host = await hosting.open()
    assert list(host.kernels) == [kernel.id]
    assert events(await hosting.records(kernel.id), "gap")


async def test_a_foreign_kernel_that_is_restarted_leaves_a_gap(hosting: Hosting) -> None:
    """Whoever started it restarts it: what it said before it was heard again may be missing, and the topic says so.

    From then on it is heard as before.
    """
    path, manager = await hosting.start_foreign()
    await hosting.client(path)
    host = await hosting.open()
    kernel = await host.attach(str(path))
    await manager.restart_kernel(now=True)
    found = await until_recorded(hosting, kernel.id, lambda found: events(found, "gap"))
    [gap] = events(found, "gap")
    assert "count" not in gap and "restarted" in gap["reason"]
    client = await hosting.client(path)
    client.execute("print('again')")
    await until_recorded(hosting, kernel.id, lambda found: "again" in printed(found))


class Streams:
    """Counts what is printed, after the topic writer was offered it."""

    count = 0

    def offer(self, messages: Sequence[KernelMessage]) -> bool:
        self.count += sum(message.msg_type == "stream" for message in messages)
        return True


async def test_overflow_of_a_foreign_kernel_is_told(hosting: Hosting, fakes: list[FakeKernel]) -> None:
    """What a kernel without a spool says while the log takes nothing is lost, and the gap says how much it was."""
    fake = FakeKernel(hosting.directory / "kernel-fast.json")
    fakes.append(fake)
    host = await hosting.open(kernel_buffer_bytes=2000)
    kernel = await host.attach(str(fake.path))
    gate = asyncio.Event()
    publish = kernel.output.topic_writer._topic.publish

    def gated(batch: Any) -> Any:
        async def wait() -> Any:
            await gate.wait()
            return await publish(batch)

        return asyncio.ensure_future(wait())

    kernel.output.topic_writer._topic.publish = gated
    # Not all messages: what the kernel answered when it was attached may still be on its way.
    lines_heard = Streams()
    kernel.output.broker.add_global_subscriber(lines_heard)
    for number in range(100):
        await fake.publish("stream", name="stdout", text=f"{number}\n")
        if number == 40:
            # Else all of them might come at once, and one batch is taken whole.
            await until(lambda: kernel.output.topic_writer.is_full)
    await until(lambda: lines_heard.count == 100)
    gate.set()
    found = await until_recorded(hosting, kernel.id, lambda found: events(found, "gap"))
    lines = printed(found).splitlines()
    assert events(found, "gap")[0]["count"] == 100 - len(lines)
    assert lines == [str(number) for number in range(len(lines))]


# Coming back


async def test_leftovers_of_another_version(hosting: Hosting) -> None:
    """What cannot be understood in the runtime directory does not keep the server from starting."""
    host = await hosting.open()
    directory: Path = host._directory
    await hosting.close()
    strange = directory / "kernels" / "strange"
    strange.mkdir(parents=True)
    (strange / "keeper.json").write_text('{"socket": "/nowhere", "version": "99"}')
    (directory / "attached").mkdir()
    (directory / "attached" / "x.json").write_text("not json")
    host = await hosting.open()
    assert not host.kernels
    kernel = await hosting.start()
    assert (await hosting.run(kernel, "1")).status == "ok"


async def test_two_logs_do_not_see_each_others_kernels(hosting: Hosting) -> None:
    """Kernels belong to a log: a server on another log, in the same runtime directory, leaves them alone."""
    await hosting.open()
    kernel = await hosting.start()
    other = await opened(f"sqlite://{hosting.directory}/other.db")
    assert not other.host.kernels
    await other.close()
    assert (await hosting.run(kernel, "1")).status == "ok"
