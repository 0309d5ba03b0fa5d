"""jupyter_client's managers with kernels under a keeper: all that they do works, also after a server's death."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvloop
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import AsyncKernelManager

from himalia.keeper.client import KeeperClient, KernelNotStarted, read_spool
from himalia.keeper.provisioner import KeeperProvisioner, detach_manager, reattach
from tests.keeper.keepers import (
    DEADLINE_S,
    Nursery,
    client_of,
    is_alive,
    keeper_of,
    printed,
    run,
    spooled_headers,
    until,
    until_printed,
    wait_gone,
)

pytestmark = pytest.mark.slow


@pytest.fixture
def nursery(tmp_path: Path) -> Iterator[Nursery]:
    made = Nursery(tmp_path / "kernels" / "kept")
    yield made
    made.end()


def provisioner_of(manager: AsyncKernelManager) -> KeeperProvisioner:
    assert isinstance(manager.provisioner, KeeperProvisioner)
    return manager.provisioner


async def gone(*pids: int) -> None:
    for pid in pids:
        await asyncio.to_thread(wait_gone, pid)


async def whole_life(nursery: Nursery) -> None:
    manager = await nursery.start_kernel()
    keeper = keeper_of(manager)
    client = await client_of(manager)
    assert (await run(client, "print('one')"))["status"] == "ok"

    request = client.execute("import time; print('two', flush=True)\nwhile True: time.sleep(0.01)")
    await until(lambda: "two\n" in printed(nursery.directory))
    await manager.interrupt_kernel()
    reply = await client._async_recv_reply(request, timeout=DEADLINE_S)
    assert reply["content"]["ename"] == "KeyboardInterrupt"

    await manager.restart_kernel()
    again = nursery.track_keeper(keeper_of(manager))
    assert again.info.pid != keeper.info.pid
    await gone(keeper.info.keeper_pid, keeper.info.pid)
    await client.wait_for_ready(timeout=DEADLINE_S)
    assert (await run(client, "print('three')"))["status"] == "ok"

    client.stop_channels()
    await manager.shutdown_kernel()
    assert not await manager.is_alive()
    await gone(again.info.keeper_pid, again.info.pid)
    assert not nursery.directory.exists()


async def test_the_whole_life_of_a_kernel(nursery: Nursery) -> None:
    """Start, execute, interrupt, restart, shut down; nothing stays behind."""
    await whole_life(nursery)


def test_the_whole_life_of_a_kernel_on_uvloop(nursery: Nursery) -> None:
    """The server's own event loop makes no difference."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(whole_life(nursery))


async def test_a_kernel_in_another_implementation(nursery: Nursery) -> None:
    """Nothing here depends on ipykernel: xeus-python is kept alike."""
    manager = await nursery.start_kernel("xpython")
    keeper = keeper_of(manager)
    client = await client_of(manager)
    assert (await run(client, "print('hello')"))["status"] == "ok"
    await until(lambda: printed(nursery.directory).strip() == "hello")
    client.stop_channels()
    await manager.shutdown_kernel()
    await gone(keeper.info.keeper_pid, keeper.info.pid)


async def test_a_restart_goes_on_with_the_spool(nursery: Nursery) -> None:
    """The same connection file, the same ports, and numbers without a hole: a reader need not know of it."""
    manager = await nursery.start_kernel()
    client = await client_of(manager)
    await run(client, "print('before')")
    await until_printed(nursery.directory, "before\n")
    ports, last = manager.ports, list(read_spool(nursery.directory))[-1].seq
    await manager.restart_kernel(now=True)
    nursery.track_keeper(keeper_of(manager))
    await client.wait_for_ready(timeout=DEADLINE_S)
    await run(client, "print('after')")
    assert manager.ports == ports
    await until_printed(nursery.directory, "before\nafter\n")
    seqs = [entry.seq for entry in read_spool(nursery.directory)]
    assert seqs == list(range(len(seqs))) and seqs[-1] > last
    client.stop_channels()
    await manager.shutdown_kernel(now=True)


async def test_a_kernel_that_was_killed_can_be_restarted(nursery: Nursery) -> None:
    """The manager sees its end, and starts another."""
    manager = await nursery.start_kernel()
    await keeper_of(manager).signal(signal.SIGKILL)
    await asyncio.wait_for(keeper_of(manager).wait(), DEADLINE_S)
    assert not await manager.is_alive()
    await manager.restart_kernel(now=True)
    nursery.track_keeper(keeper_of(manager))
    client = await client_of(manager)
    assert (await run(client, "1 + 1"))["status"] == "ok"
    client.stop_channels()
    await manager.shutdown_kernel(now=True)


async def test_a_kernel_whose_keeper_was_killed_can_be_restarted(nursery: Nursery) -> None:
    """The loss of the keeper is the end of the kernel; the next keeper goes on in its place."""
    manager = await nursery.start_kernel()
    client = await client_of(manager)
    await run(client, "print('before')")
    await until_printed(nursery.directory, "before\n")
    keeper = keeper_of(manager)
    nursery.track(keeper.info.keeper_pid)
    os.kill(keeper.info.keeper_pid, signal.SIGKILL)
    await asyncio.wait_for(keeper.wait(), DEADLINE_S)
    await gone(keeper.info.pid)
    assert not await manager.is_alive()
    await manager.restart_kernel()
    nursery.track_keeper(keeper_of(manager))
    await client.wait_for_ready(timeout=DEADLINE_S)
    await run(client, "print('after')")
    await until_printed(nursery.directory, "before\nafter\n")
    client.stop_channels()
    await manager.shutdown_kernel()
    assert not nursery.directory.exists()


async def test_a_command_that_cannot_be_run_leaves_nothing(nursery: Nursery) -> None:
    """The error and the provisioner say why."""
    manager = nursery.manager()
    manager._kernel_spec = KernelSpec(argv=["/no/such/kernel", "{connection_file}"], display_name="None")
    provisioner_of(manager).kernel_spec = manager.kernel_spec
    with pytest.raises(KernelNotStarted, match="/no/such/kernel"):
        await manager.start_kernel()
    assert "/no/such/kernel" in provisioner_of(manager).last_log
    assert not manager.has_kernel
    assert not nursery.directory.exists()


async def test_a_kernel_that_cannot_start_says_why(nursery: Nursery) -> None:
    """Its stderr can be read while it is kept and, from the provisioner, afterwards."""
    manager = nursery.manager()
    spec = KernelSpec(argv=[sys.executable, "-m", "no_such_kernel"], display_name="None", language="none")
    manager._kernel_spec = provisioner_of(manager).kernel_spec = spec
    await manager.start_kernel()
    keeper = nursery.track_keeper(keeper_of(manager))
    assert await asyncio.wait_for(keeper.wait(), DEADLINE_S) == 1
    assert "No module named no_such_kernel" in keeper.log_tail()
    await manager.shutdown_kernel(now=True)
    assert "No module named no_such_kernel" in provisioner_of(manager).last_log
    assert not nursery.directory.exists()


async def test_what_a_keeper_cannot_pass_on_is_refused(nursery: Nursery) -> None:
    """An argument of ``Popen`` is not dropped in silence."""
    with pytest.raises(TypeError, match="umask"):
        await nursery.manager().start_kernel(umask=0o22)
    assert not nursery.directory.exists() or not (nursery.directory / "keeper.json").exists()


async def test_environment_and_directory_reach_the_kernel(nursery: Nursery, tmp_path: Path) -> None:
    """As they were given to ``start_kernel``, and again after a restart by a later server."""
    manager = nursery.manager()
    env = {"PATH": "/usr/bin:/bin", "GREETING": "hello"}
    await manager.start_kernel(env=env, cwd=str(tmp_path))
    nursery.track_keeper(keeper_of(manager))
    show = "import os; print(os.environ['GREETING'], os.getcwd())"
    await detach_manager(manager)
    manager = await reattach(nursery.directory)
    await manager.restart_kernel(now=True)
    nursery.track_keeper(keeper_of(manager))
    client = await client_of(manager)
    await run(client, show)
    await until_printed(nursery.directory, f"hello {tmp_path}\n")
    client.stop_channels()
    await manager.shutdown_kernel(now=True)


async def test_a_later_server_manages_the_kernel_as_its_own(nursery: Nursery) -> None:
    """After kill -9 of the server its variables are there; interrupt, restart and shutdown work, on the same ports."""
    server, keeper_pid, pid = await nursery.start_server()
    server.kill()
    server.wait(DEADLINE_S)
    manager = await reattach(nursery.directory)
    assert (keeper_of(manager).info.keeper_pid, keeper_of(manager).info.pid) == (keeper_pid, pid)
    assert await manager.is_alive() and manager.has_kernel
    client = await client_of(manager)
    await run(client, "kept = 42")

    code = "import time; print('busy', flush=True)\nwhile True: time.sleep(0.01)"
    request = client.execute(code, stop_on_error=False)
    await until(lambda: "busy\n" in printed(nursery.directory))
    await manager.interrupt_kernel()
    assert (await client._async_recv_reply(request, timeout=DEADLINE_S))["content"]["status"] == "error"
    assert (await run(client, "assert kept == 42"))["status"] == "ok"

    ports = manager.ports
    await manager.restart_kernel()
    nursery.track_keeper(keeper_of(manager))
    assert manager.ports == ports
    await client.wait_for_ready(timeout=DEADLINE_S)
    assert (await run(client, "kept"))["ename"] == "NameError"
    client.stop_channels()
    await manager.shutdown_kernel()
    assert not nursery.directory.exists()
    await gone(keeper_pid, pid)


async def test_a_manager_that_goes_leaves_the_kernel_what_it_needs(nursery: Nursery) -> None:
    """A server may stop and its kernels stay: the connection file is the keeper's, not the manager's."""
    manager = await nursery.start_kernel()
    await detach_manager(manager, keep_s=60.0)
    assert not manager.has_kernel
    manager.__del__()
    assert (nursery.directory / "connection.json").exists()
    again = await reattach(nursery.directory)
    client = await client_of(again)
    assert (await run(client, "1"))["status"] == "ok"
    client.stop_channels()
    await again.shutdown_kernel(now=True)


async def test_the_last_messages_can_be_read_before_they_go(nursery: Nursery) -> None:
    """``before_release`` sees the whole spool of a kernel that has ended."""
    manager = await nursery.start_kernel()
    client = await client_of(manager)
    await run(client, "print('last words')")
    client.stop_channels()
    seen: list[str] = []

    async def read(keeper: KeeperClient) -> None:
        assert keeper.returncode is not None
        seen.extend(header["msg_type"] for header in spooled_headers(keeper.directory))

    provisioner_of(manager).before_release = read
    await manager.shutdown_kernel()
    assert "stream" in seen and "shutdown_reply" in seen
    assert not nursery.directory.exists()


async def test_what_could_not_be_read_stays(nursery: Nursery) -> None:
    """If ``before_release`` fails the kernel and its keeper end, but not the spool."""
    manager = await nursery.start_kernel()
    keeper = keeper_of(manager)
    client = await client_of(manager)
    await run(client, "print('last words')")
    client.stop_channels()

    async def fail(keeper: KeeperClient) -> None:
        raise OSError("the log is not there")

    provisioner_of(manager).before_release = fail
    with pytest.raises(OSError, match="the log is not there"):
        await manager.shutdown_kernel()
    await gone(keeper.info.keeper_pid, keeper.info.pid)
    assert printed(nursery.directory) == "last words\n"


async def test_jupyter_client_finds_it_by_name(nursery: Nursery, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernelspec that names ``himalia-keeper`` is enough, for any program that starts kernels."""
    monkeypatch.setenv("HIMALIA_RUNTIME_DIR", str(nursery.directory.parents[1]))
    manager = AsyncKernelManager(kernel_name="python3", kernel_id="kept")
    assert manager.kernel_spec is not None
    manager.kernel_spec.metadata = {
        "kernel_provisioner": {"provisioner_name": "himalia-keeper", "config": {"keep_s": 5.0}}
    }
    await manager.start_kernel()
    keeper = nursery.track_keeper(keeper_of(manager))
    assert keeper.directory == nursery.directory
    assert provisioner_of(manager).keep_s == 5.0
    await manager.shutdown_kernel(now=True)
    await gone(keeper.info.keeper_pid, keeper.info.pid)


async def test_a_provisioner_can_be_saved_and_loaded(nursery: Nursery) -> None:
    """jupyter_client's own way to persist a kernel leads to the same keeper."""
    manager = await nursery.start_kernel()
    saved = await provisioner_of(manager).get_provisioner_info()
    loaded = KeeperProvisioner(kernel_spec=manager.kernel_spec, parent=manager)
    await loaded.load_provisioner_info(saved)
    assert loaded.keeper is not None and loaded.has_process
    assert loaded.keeper.info.pid == keeper_of(manager).info.pid == loaded.pid
    await loaded.keeper.close()
    await manager.shutdown_kernel(now=True)


async def test_an_encrypted_kernel_is_heard(nursery: Nursery) -> None:
    """Where jupyter_client gives a kernel CurveZMQ keys, the keeper uses them."""
    manager = nursery.manager()
    assert manager.kernel_spec is not None
    manager.kernel_spec.metadata = {"supported_encryption": "curve"}
    manager.transport_encryption = "required"
    await manager.start_kernel()
    nursery.track_keeper(keeper_of(manager))
    assert "curve_publickey" in json.loads((nursery.directory / "connection.json").read_bytes())
    client = await client_of(manager)
    await run(client, "print('secret')")
    await until_printed(nursery.directory, "secret\n")
    client.stop_channels()
    await manager.shutdown_kernel(now=True)


async def test_a_kernel_over_ipc_is_heard(nursery: Nursery) -> None:
    """Sockets in the file system work as ports do, and their files go as well."""
    manager = nursery.manager()
    manager.transport = "ipc"
    manager.ip = str(nursery.directory / "connection-ipc")
    await manager.start_kernel()
    keeper = nursery.track_keeper(keeper_of(manager))
    client = await client_of(manager)
    await run(client, "print('local')")
    await until_printed(nursery.directory, "local\n")
    client.stop_channels()
    await detach_manager(manager)
    assert is_alive(keeper.info.pid)
    await (await KeeperClient.connect(nursery.directory)).release()
    assert not nursery.directory.exists()
