"""The keeper: it outlives the server, keeps what the kernel says, and never stays behind."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import select
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from himalia.keeper.client import (
    KeeperClient,
    KeeperGone,
    KeeperRefused,
    KernelNotStarted,
    list_keeper_directories,
    log_tail,
    open_spool_notices,
    read_exit,
    read_spool,
    remove_stale_directory,
)
from himalia.keeper.lease import Lease
from himalia.keeper.log_file import LOG_BYTES_MAX
from himalia.keeper.server_connection import KeeperConnection
from himalia.keeper.spool import SpoolReader
from tests.keeper.keepers import (
    DEADLINE_S,
    SLEEP,
    Nursery,
    client_of,
    content_of,
    is_alive,
    keeper_of,
    printed,
    run,
    spooled_headers,
    until,
    until_printed,
    wait_gone,
)


@pytest.fixture
def nursery(tmp_path: Path) -> Iterator[Nursery]:
    made = Nursery(tmp_path / "kernels" / "kept")
    yield made
    made.end()


async def gone(*pids: int) -> None:
    for pid in pids:
        await asyncio.to_thread(wait_gone, pid)


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


# What it is made of


def test_the_keeper_is_small() -> None:
    """There is one for each kernel: it loads the standard library and pyzmq, and nothing else."""
    code = "import himalia.keeper.process, sys; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-P", "-c", code], check=True, capture_output=True, text=True, timeout=30
    )
    modules = {name.partition(".")[0] for name in loaded.stdout.split()}
    foreign = modules - sys.stdlib_module_names - {"himalia", "zmq", "__main__", "cython_runtime"}
    assert not {name for name in foreign if not name.startswith("_")}
    assert not modules & {"asyncio", "logging", "msgspec", "pydantic", "jupyter_client", "traitlets"}
    ours = {name for name in loaded.stdout.split() if name.startswith("himalia")}
    others = {name for name in ours if not name.startswith("himalia.keeper")}
    assert others == {
        "himalia",
        "himalia.child_process",
        "himalia.file_lock",
        "himalia.jupyter",
        "himalia.jupyter.burst",
        "himalia.ndjson",
    }


def test_a_lease_is_over_when_nobody_held_it_for_its_time() -> None:
    """Only the time since the last holder left counts, and a holder stops it."""
    now = 0.0
    lease = Lease(10.0, clock=lambda: now)
    lease.acquire()
    lease.acquire()
    now = 100.0
    assert lease.remaining_s is None and not lease.is_over
    lease.release()
    assert lease.remaining_s is None
    lease.release()
    now = 109.0
    assert lease.remaining_s == 1.0
    lease.set_duration(20.0)
    now = 110.0
    assert lease.remaining_s == 10.0 and not lease.is_over
    now = 120.0
    assert lease.is_over


def test_a_busy_kernel_has_a_lease_of_its_own() -> None:
    """While busy it has the longer time, counted from when the server left; once idle the ordinary one, from then."""
    now = 0.0
    lease = Lease(10.0, 100.0, clock=lambda: now)
    lease.set_busy(True)
    now = 90.0
    assert (lease.remaining_s, lease.term_s) == (10.0, 100.0)
    lease.set_busy(False)
    assert (lease.remaining_s, lease.term_s) == (10.0, 10.0)
    now = 99.0
    assert lease.remaining_s == 1.0
    lease.set_busy(True)
    assert lease.remaining_s == 1.0
    now = 100.0
    assert lease.is_over


@pytest.mark.parametrize(("busy_keep_s", "left_s"), [(0.0, None), (1.0, 10.0)])
def test_a_busy_lease_that_is_for_ever_or_shorter(busy_keep_s: float, left_s: float | None) -> None:
    """0 is for ever; and a busy kernel is never ended before an idle one would be."""
    lease = Lease(10.0, busy_keep_s, clock=lambda: 0.0)
    lease.set_busy(True)
    assert lease.remaining_s == left_s and not lease.is_over


# A server that dies, and one that comes back


@pytest.mark.slow
async def test_kill_9_of_the_server_loses_nothing(nursery: Nursery) -> None:
    """Kernel and keeper live on; what the kernel printed meanwhile is in the spool, every line; one can re-attach."""
    server, keeper_pid, pid = await nursery.start_server()
    client = await _client_at(nursery.directory / "connection.json")
    client.execute("for number in range(20_000): print(number)")
    await until(lambda: "1000\n" in printed(nursery.directory))
    server.kill()
    server.wait(DEADLINE_S)
    assert (await run(client, "print('after')"))["status"] == "ok"
    client.stop_channels()
    assert is_alive(keeper_pid) and is_alive(pid)

    keeper = await KeeperClient.connect(nursery.directory)
    assert (keeper.info.keeper_pid, keeper.info.pid) == (keeper_pid, pid)
    lines = [f"{number}\n" for number in range(20_000)]
    await until_printed(nursery.directory, "".join(lines) + "after\n")
    seqs = [entry.seq for entry in read_spool(nursery.directory)]
    state = await keeper.spool_state()
    assert seqs == list(range(len(seqs))) and state.dropped == 0
    await keeper.release()
    await gone(keeper_pid, pid)
    assert not nursery.directory.exists()


async def _client_at(connection_file: Path) -> Any:
    from jupyter_client.asynchronous.client import AsyncKernelClient

    client = AsyncKernelClient(connection_file=str(connection_file))
    client.load_connection_file()
    # Without the heartbeat: by it a client takes a kernel for dead that has not run for a second.
    client.start_channels(hb=False)
    await client.wait_for_ready(timeout=DEADLINE_S)
    return client


@pytest.mark.parametrize("keeps_files", [True, False])
async def test_when_the_lease_is_over_only_what_can_be_read_stays(
    nursery: Nursery, keeps_files: bool
) -> None:
    """Without a server for its time all processes end; how, and the spool, stay for a server that can come for them."""
    code = f"import signal, subprocess; print(subprocess.Popen({SLEEP!r}).pid, flush=True); signal.pause()"
    keeper = await nursery.start(python(code), keep_s=600, keeps_files=keeps_files)
    await until(lambda: keeper.log_tail().endswith("\n"))
    grandchild = int(keeper.log_tail())
    nursery.track(grandchild)
    await keeper.set_lease(0.0)
    assert is_alive(keeper.info.pid), "a server that is connected holds the lease"
    await keeper.close()
    await gone(keeper.info.keeper_pid, keeper.info.pid, grandchild)
    with pytest.raises(KeeperGone):
        await KeeperClient.connect(nursery.directory)
    assert nursery.directory.exists() == keeps_files
    if keeps_files:
        left = {path.name for path in nursery.directory.iterdir()}
        assert left == {"keeper.json", "connection.json", "kernel.log", "spool"}
        exit_ = read_exit(nursery.directory)
        assert exit_ is not None and (exit_.returncode, exit_.lost) == (-signal.SIGTERM, 0)
        assert exit_.reason == "no server came back for it within 0 s"


async def test_how_a_kernel_ended_by_itself_is_on_disk_at_once(nursery: Nursery) -> None:
    """Also if the keeper is killed before a server comes."""
    keeper = await nursery.start(python("raise SystemExit(3)"))
    assert await asyncio.wait_for(keeper.wait(), DEADLINE_S) == 3
    await keeper.close()
    os.kill(keeper.info.keeper_pid, signal.SIGKILL)
    await gone(keeper.info.keeper_pid)
    exit_ = read_exit(nursery.directory)
    assert exit_ is not None and (exit_.returncode, exit_.reason) == (3, "")


async def test_a_server_that_returns_in_time_holds_the_lease_again(nursery: Nursery) -> None:
    """The countdown stops with the new connection, and begins anew when that one leaves."""
    first = await nursery.start(SLEEP, keep_s=600)
    await first.close()
    second = await KeeperClient.connect(nursery.directory)
    await second.set_lease(0.0)
    third = await KeeperClient.connect(nursery.directory)
    await second.close()
    assert await third.signal(0)
    await third.close()
    await gone(first.info.keeper_pid, first.info.pid)


async def test_a_kernel_that_ignores_sigterm_is_killed(nursery: Nursery) -> None:
    """It gets its grace, then SIGKILL."""
    code = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); signal.pause()"
    keeper = await nursery.start(python(code), grace_s=0.1)
    await until(lambda: "deaf" in keeper.log_tail())
    await keeper.release()
    assert keeper.returncode == -signal.SIGKILL
    await gone(keeper.info.keeper_pid, keeper.info.pid)


async def test_sigterm_to_the_keeper_ends_the_kernel(nursery: Nursery) -> None:
    """As where a machine shuts down; what it said stays, since no server may have read it."""
    keeper = await nursery.start(SLEEP)
    os.kill(keeper.info.keeper_pid, signal.SIGTERM)
    assert await asyncio.wait_for(keeper.wait(), DEADLINE_S) == -signal.SIGTERM
    await gone(keeper.info.keeper_pid, keeper.info.pid)
    exit_ = read_exit(nursery.directory)
    assert exit_ is not None and "SIGTERM" in exit_.reason


async def test_a_keeper_that_is_killed_takes_its_kernel_along(nursery: Nursery) -> None:
    """Nobody could find or end such a kernel: it goes at once, the server is told, and leftovers can be removed."""
    keeper = await nursery.start(SLEEP)
    assert not remove_stale_directory(nursery.directory), "not while it lives"
    os.kill(keeper.info.keeper_pid, signal.SIGKILL)
    assert await asyncio.wait_for(keeper.wait(), DEADLINE_S) == -signal.SIGKILL
    await gone(keeper.info.keeper_pid, keeper.info.pid)
    with pytest.raises(KeeperGone):
        await keeper.signal(signal.SIGINT)
    runtime_dir = nursery.directory.parents[1]
    assert list_keeper_directories(runtime_dir) == [nursery.directory]
    with pytest.raises(KeeperGone):
        await KeeperClient.connect(nursery.directory)
    assert remove_stale_directory(nursery.directory)
    assert list_keeper_directories(runtime_dir) == []
    assert not nursery.directory.exists()


async def test_a_start_that_is_given_up_leaves_nothing(nursery: Nursery) -> None:
    """Whoever is cancelled while a kernel starts leaves none that nobody knows of."""
    for turns in (1, 3, 10, 30):
        starting = asyncio.ensure_future(nursery.start(SLEEP))
        for _ in range(turns):
            await asyncio.sleep(0)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        await until(lambda: remove_stale_directory(nursery.directory))
        assert not nursery.directory.exists()


async def test_waiting_for_a_kernel_that_was_let_go_ends(nursery: Nursery) -> None:
    """Nobody would tell of its end: the waiter is told that, at once."""
    keeper = await nursery.start(SLEEP)
    waiting = asyncio.ensure_future(keeper.wait())
    await asyncio.sleep(0)
    await keeper.close()
    with pytest.raises(KeeperGone):
        await asyncio.wait_for(waiting, DEADLINE_S)
    with pytest.raises(KeeperGone):
        await keeper.wait()
    await (await KeeperClient.connect(nursery.directory)).release()


# The end of a kernel


@pytest.mark.slow
async def test_kill_9_of_the_kernel_is_told_at_once(nursery: Nursery) -> None:
    """A callback is called, once, with the signal; a server that connects later is notified as well."""
    keeper = await nursery.start(SLEEP)
    told: list[int] = []
    keeper.add_exit_callback(told.append)
    started = asyncio.get_running_loop().time()
    os.kill(keeper.info.pid, signal.SIGKILL)
    assert await asyncio.wait_for(keeper.wait(), DEADLINE_S) == -signal.SIGKILL
    assert asyncio.get_running_loop().time() - started < 1.0
    assert told == [-signal.SIGKILL]
    later = await KeeperClient.connect(nursery.directory)
    assert (later.process_state.alive, later.returncode) == (False, -signal.SIGKILL)
    ended = asyncio.get_running_loop().create_future()
    later.add_exit_callback(ended.set_result)
    assert await asyncio.wait_for(ended, DEADLINE_S) == -signal.SIGKILL
    assert not await later.signal(signal.SIGINT), "there is nobody to signal"
    await keeper.close()
    await later.release()
    assert told == [-signal.SIGKILL]


@pytest.mark.slow
async def test_what_a_kernel_last_said_is_spooled_before_its_end_is_told(nursery: Nursery) -> None:
    """When ``wait`` returns, the reply to the shutdown, a kernel's last message, can be read."""
    manager = await nursery.start_kernel()
    client = await client_of(manager)
    client.shutdown()
    assert await asyncio.wait_for(keeper_of(manager).wait(), DEADLINE_S) == 0
    assert spooled_headers(nursery.directory)[-1]["msg_type"] in ("shutdown_reply", "status")
    assert "shutdown_reply" in [header["msg_type"] for header in spooled_headers(nursery.directory)]
    client.stop_channels()
    await manager.shutdown_kernel(now=True)


@pytest.mark.parametrize(("code", "returncode"), [("raise SystemExit(7)", 7), ("", 0)])
async def test_an_exit_code_is_told(nursery: Nursery, code: str, returncode: int) -> None:
    """As ``subprocess`` has it."""
    keeper = await nursery.start(python(code))
    assert await asyncio.wait_for(keeper.wait(), DEADLINE_S) == returncode
    await keeper.release()


async def test_a_server_of_the_version_before(nursery: Nursery) -> None:
    """It does not say how many files the kernel may open: that is the keeper's own limit, as it was."""
    look = "import resource; print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])"
    keeper = await nursery.start(python(look), lacks="descriptors")
    assert await asyncio.wait_for(keeper.wait(), DEADLINE_S) == 0
    assert keeper.log_tail().strip() == str(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    await keeper.release()


async def test_a_kernel_that_fails_at_its_start_says_why(nursery: Nursery) -> None:
    """What it wrote to stderr can be read until it is released."""
    keeper = await nursery.start([sys.executable, "-m", "no_such_kernel"])
    assert await asyncio.wait_for(keeper.wait(), DEADLINE_S) == 1
    assert "No module named no_such_kernel" in keeper.log_tail()
    await keeper.release()
    assert not nursery.directory.exists()


async def test_a_command_that_cannot_be_run_says_why(nursery: Nursery) -> None:
    """The error names the command; the keeper ends."""
    with pytest.raises(KernelNotStarted, match=r"cannot run \['/no/such/kernel'\] in /") as caught:
        await nursery.start(["/no/such/kernel"])
    assert "/no/such/kernel" in caught.value.data["log"]
    assert remove_stale_directory(nursery.directory)
    assert not nursery.directory.exists()


async def test_the_log_of_a_kernel_is_bounded(nursery: Nursery) -> None:
    """However much a kernel writes to stdout, its files stay small, and have the end of it."""
    keeper = await nursery.start(python("for n in range(300_000): print('line', n)"))
    assert await asyncio.wait_for(keeper.wait(), DEADLINE_S) == 0
    size = sum(path.stat().st_size for path in nursery.directory.glob("kernel.log*"))
    assert size <= LOG_BYTES_MAX
    assert log_tail(nursery.directory).endswith("line 299998\nline 299999\n")
    assert len(log_tail(nursery.directory, 100)) == 100
    await keeper.release()


# Following its spool


def _heard(notices: socket.socket) -> bytes:
    """What has come by now; empty if nothing has."""
    try:
        return notices.recv(1 << 16)
    except BlockingIOError:
        return b""


async def _until_heard(notices: socket.socket) -> None:
    await asyncio.wait_for(asyncio.to_thread(select.select, [notices], [], []), DEADLINE_S)
    assert _heard(notices)


@pytest.mark.slow
async def test_whoever_follows_is_told_when_the_spool_has_grown(nursery: Nursery) -> None:
    """There is a notice for whatever comes, and it is not before that can be read."""
    manager = await nursery.start_kernel()
    client = await client_of(manager)
    notices = open_spool_notices(keeper_of(manager).info.socket)
    reader = SpoolReader(nursery.directory)
    text = ""
    for number in range(20):
        await run(client, f"print({number})")
        while f"{number}\n" not in text:
            # First the notice, then what it is about: it must be there.
            await _until_heard(notices)
            text += "".join(content_of(entry).get("text", "") for entry in reader.read())
    reader.close()
    notices.close()
    client.stop_channels()
    await manager.shutdown_kernel(now=True)


def test_notices_that_are_not_read_do_not_pile_up() -> None:
    """Whoever does not read costs nothing and is not waited for; having read, it is told of what comes."""
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    connection = KeeperConnection(ours)
    for _ in range(100_000):
        connection.notify()
    assert not connection.has_unsent and not connection.is_closed
    unread = 0
    while data := _heard(theirs):
        unread += len(data)
    assert 0 < unread < 10_000
    connection.notify()
    assert _heard(theirs) == b"\n"
    theirs.close()
    connection.notify()
    assert connection.is_closed
    connection.release()


def test_a_notice_waits_for_nothing_that_is_unsent() -> None:
    """Behind an answer that has no room it is not sent: the answer tells as much."""
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    connection = KeeperConnection(ours)
    while not connection.has_unsent:
        connection.send({"ok": "x" * 10_000})
    connection.notify()
    received = bytearray()
    while data := _heard(theirs):
        received += data
        connection.flush()
    assert b"\n\n" not in received and received.endswith(b"}\n")
    theirs.close()
    connection.release()


async def test_whoever_follows_does_not_hold_the_lease(nursery: Nursery) -> None:
    """It neither keeps the kernel when the last server leaves, nor ends it by leaving."""
    keeper = await nursery.start(SLEEP, keep_s=600)
    for _ in range(3):
        notices = open_spool_notices(keeper.info.socket)
        await asyncio.wait_for(asyncio.to_thread(select.select, [notices], [], []), DEADLINE_S)
        assert b'"ok": true' in _heard(notices)
        notices.close()
    await keeper.set_lease(0.0)
    assert await keeper.signal(0), "those who left held nothing"
    notices = open_spool_notices(keeper.info.socket)
    await asyncio.wait_for(asyncio.to_thread(select.select, [notices], [], []), DEADLINE_S)
    await keeper.close()
    await gone(keeper.info.keeper_pid, keeper.info.pid)
    notices.setblocking(True)
    assert notices.recv(1 << 16).endswith(b"\n")
    assert notices.recv(1 << 16) == b""
    notices.close()


async def test_following_nobody_is_an_error(tmp_path: Path) -> None:
    """Whoever follows a keeper that is gone is told so, and nothing is left open."""
    before = psutil.Process().num_fds()
    with pytest.raises(OSError):
        open_spool_notices(str(tmp_path / "keeper.sock"))
    assert psutil.Process().num_fds() == before


# Signals


async def test_ctrl_c_reaches_the_kernel_only_when_it_is_asked_for(nursery: Nursery) -> None:
    """Kernel and keeper have sessions of their own; SIGINT and SIGHUP to the keeper change nothing; ``signal`` does."""
    keeper = await nursery.start(SLEEP)
    sessions = {os.getsid(pid) for pid in (os.getpid(), keeper.info.keeper_pid, keeper.info.pid)}
    assert len(sessions) == 3
    for signum in (signal.SIGINT, signal.SIGHUP):
        os.kill(keeper.info.keeper_pid, signum)
        assert (await keeper.spool_state()).dropped == 0
    assert keeper.returncode is None
    assert await keeper.signal(signal.SIGINT)
    assert await asyncio.wait_for(keeper.wait(), DEADLINE_S) in (-signal.SIGINT, 1)
    await keeper.release()


async def test_a_kernel_can_be_interrupted_though_its_server_ignores_interrupts(nursery: Nursery) -> None:
    """What the server ignores, as it does under nohup, is not inherited by the kernel."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        keeper = await nursery.start(["sleep", "1000"])
    finally:
        signal.signal(signal.SIGINT, before)
    await keeper.signal(signal.SIGINT)
    assert await asyncio.wait_for(keeper.wait(), DEADLINE_S) == -signal.SIGINT
    await keeper.release()


# The disk


@pytest.mark.slow
async def test_a_full_disk_is_survived(nursery: Nursery) -> None:
    """What cannot be written waits in the keeper; when there is room again it is all there, without another word."""
    manager = await nursery.start_kernel()
    keeper = keeper_of(manager)
    client = await client_of(manager)
    pid = keeper.info.keeper_pid
    limits = resource.prlimit(pid, resource.RLIMIT_FSIZE, (50_000, resource.RLIM_INFINITY))
    assert (await run(client, "for n in range(100): print(n, 'x' * 1000, flush=True)"))["status"] == "ok"
    while not (full := await keeper.spool_state()).unwritten:
        assert full.size_bytes <= 50_000
    resource.prlimit(pid, resource.RLIMIT_FSIZE, limits)
    await until_printed(nursery.directory, "".join(f"{n} {'x' * 1000}\n" for n in range(100)))
    assert (await run(client, "print('room again')"))["status"] == "ok"
    await until(lambda: printed(nursery.directory).endswith("room again\n"))
    await keeper.signal(signal.SIGKILL)
    await asyncio.wait_for(keeper.wait(), DEADLINE_S)
    state = await keeper.spool_state()
    seqs = [entry.seq for entry in read_spool(nursery.directory)]
    assert seqs == list(range(state.end)) and (state.dropped, state.unwritten, keeper.lost) == (0, 0, 0)
    client.stop_channels()
    await manager.shutdown_kernel(now=True)


@pytest.mark.slow
async def test_a_kernel_ends_while_the_disk_is_full(nursery: Nursery) -> None:
    """Its end is told when the disk has taken what it said."""
    manager, keeper, limits = await _kernel_on_a_full_disk(nursery)
    await keeper.signal(signal.SIGKILL)
    await gone(keeper.info.pid)
    assert keeper.returncode is None, "not before everything can be read"
    resource.prlimit(keeper.info.keeper_pid, resource.RLIMIT_FSIZE, limits)
    assert await asyncio.wait_for(keeper.wait(), DEADLINE_S) == -signal.SIGKILL
    assert printed(nursery.directory) == "x" * 100_000 + "\n" and keeper.lost == 0
    await manager.shutdown_kernel(now=True)


@pytest.mark.slow
async def test_a_kernel_ends_and_the_disk_stays_full(nursery: Nursery) -> None:
    """Its end is told all the same, after a while, with the number of what is lost."""
    manager, keeper, _ = await _kernel_on_a_full_disk(nursery)
    await keeper.signal(signal.SIGKILL)
    assert await asyncio.wait_for(keeper.wait(), DEADLINE_S) == -signal.SIGKILL
    seqs = [entry.seq for entry in read_spool(nursery.directory)]
    state = await keeper.spool_state()
    assert keeper.lost == state.dropped == state.end - len(seqs) > 0
    later = await KeeperClient.connect(nursery.directory)
    assert later.lost == keeper.lost
    await later.close()
    await manager.shutdown_kernel(now=True)


async def _kernel_on_a_full_disk(nursery: Nursery) -> tuple[Any, KeeperClient, tuple[int, int]]:
    """A kernel whose output waits in its keeper."""
    manager = await nursery.start_kernel()
    keeper = keeper_of(manager)
    client = await client_of(manager)
    pid = keeper.info.keeper_pid
    limits = resource.prlimit(pid, resource.RLIMIT_FSIZE, (50_000, resource.RLIM_INFINITY))
    assert (await run(client, "print('x' * 100_000)"))["status"] == "ok"
    client.stop_channels()
    while not (await keeper.spool_state()).unwritten:
        pass
    return manager, keeper, limits


@pytest.mark.slow
async def test_the_spool_is_bounded(nursery: Nursery) -> None:
    """A flood takes no more of the disk than it may; the newest output is kept, and the rest counted."""
    manager = await nursery.start_kernel(spool_bytes_max=200_000)
    client = await client_of(manager)
    assert (await run(client, "for n in range(500): print(n, 'x' * 1000, flush=True)"))["status"] == "ok"
    await until(lambda: printed(nursery.directory).endswith("499 " + "x" * 1000 + "\n"))
    await keeper_of(manager).signal(signal.SIGKILL)
    await asyncio.wait_for(keeper_of(manager).wait(), DEADLINE_S)
    state = await keeper_of(manager).spool_state()
    files = (nursery.directory / "spool").glob("*.seg")
    assert sum(path.stat().st_size for path in files) == state.size_bytes <= 200_000
    seqs = [entry.seq for entry in read_spool(nursery.directory)]
    assert seqs[0] == state.first == state.dropped > 0
    assert seqs == list(range(seqs[0], seqs[-1] + 1))
    client.stop_channels()
    await manager.shutdown_kernel(now=True)


@pytest.mark.slow
async def test_a_keeper_with_a_full_spool_takes_little_memory(nursery: Nursery) -> None:
    """What a kernel prints goes to the disk: however much went over the bound, it leaves less than 20 MiB in memory."""
    bytes_max = 8 << 20
    manager = await nursery.start_kernel(spool_bytes_max=bytes_max)
    keeper, client = keeper_of(manager), await client_of(manager)
    process = psutil.Process(keeper.info.keeper_pid)
    before_bytes = process.memory_info().rss
    # In parts, since the keeper of a busy machine may be behind, and then has in memory what is on its way to it.
    for part in range(40):
        code = f"for n in range(10): print('x' * 100_000, flush=True)\nprint('end of', {part})"
        assert (await run(client, code))["status"] == "ok"
        await until(lambda end=f"end of {part}\n": printed(nursery.directory).endswith(end))
    state = await keeper.spool_state()
    assert state.dropped > 200
    assert bytes_max // 2 < state.size_bytes <= bytes_max
    assert process.memory_info().rss - before_bytes < 20 << 20
    client.stop_channels()
    await manager.shutdown_kernel(now=True)


# Its socket and its files


async def test_a_path_too_long_for_a_socket_is_no_obstacle(nursery: Nursery) -> None:
    """The socket is then elsewhere, in a private directory that goes with the kernel."""
    nursery.directory = nursery.directory / ("long" * 30)
    keeper = await nursery.start(SLEEP)
    assert len(keeper.info.socket) < 104
    path = Path(keeper.info.socket)
    assert not path.is_relative_to(nursery.directory)
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    again = await KeeperClient.connect(nursery.directory)
    await again.release()
    assert not path.parent.exists() and not nursery.directory.exists()


async def test_its_files_are_private_and_hold_no_secrets(nursery: Nursery) -> None:
    """Only their user can read them; the environment, with its tokens, is not on disk but can be asked for."""
    keeper = await nursery.start(
        SLEEP,
        env={**os.environ, "TOKEN": "s3cret-token"},
        launch={"args": {"env": {"TOKEN": "s3cret-token"}}},
    )
    assert stat.S_IMODE(nursery.directory.stat().st_mode) & 0o077 == 0
    for path in nursery.directory.rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path
        assert not path.is_file() or b"s3cret-token" not in path.read_bytes()
    assert await keeper.launch() == {"args": {"env": {"TOKEN": "s3cret-token"}}}
    about = json.loads((nursery.directory / "keeper.json").read_bytes())
    assert (about["kernel_id"], about["pid"]) == ("kept", keeper.info.pid)
    await keeper.release()


async def test_one_directory_has_one_keeper(nursery: Nursery) -> None:
    """A second one is refused, and the first is not disturbed."""
    keeper = await nursery.start(SLEEP)
    with pytest.raises(KernelNotStarted, match="another keeper lives"):
        await nursery.start(SLEEP)
    assert (await KeeperClient.connect(nursery.directory)).info.pid == keeper.info.pid
    assert await keeper.signal(0)
    await keeper.release()


async def test_release_leaves_what_is_not_the_keepers(nursery: Nursery) -> None:
    """A directory that was named by mistake loses nothing of its own."""
    nursery.directory.mkdir(parents=True)
    (nursery.directory / "thesis.txt").write_text("years")
    keeper = await nursery.start(SLEEP)
    await keeper.release()
    assert [path.name for path in nursery.directory.iterdir()] == ["thesis.txt"]


async def test_a_bad_request_is_answered_and_the_connection_lives_on(nursery: Nursery) -> None:
    """Whatever a client sends, the keeper answers, and goes on."""
    keeper = await nursery.start(SLEEP)
    lines = [b"not json", b"[]", b"{}", b'{"op":"dance","id":1}', b'{"op":"signal","id":2}']
    lines += [b'{"op":"signal","id":3,"signum":4711}', b'{"op":"stay","id":4,"seconds":"long"}', b"\xff\xfe"]
    reader, writer = await asyncio.open_unix_connection(keeper.info.socket)
    for line in lines:
        writer.write(line + b"\n")
        answer = json.loads(await asyncio.wait_for(reader.readline(), DEADLINE_S))
        assert answer["ok"] is False and answer["error"]
    writer.write(b'{"op":"hello","id":5}\n')
    assert json.loads(await asyncio.wait_for(reader.readline(), DEADLINE_S))["pid"] == keeper.info.pid
    writer.close()
    with pytest.raises(KeeperRefused, match="4711"):
        await keeper.signal(4711)
    await keeper.release()


async def test_a_server_that_never_reads_does_not_stall_the_keeper(nursery: Nursery) -> None:
    """Its answers wait for it, up to a limit; others are served meanwhile."""
    keeper = await nursery.start(SLEEP)
    with socket.socket(socket.AF_UNIX) as deaf:
        deaf.connect(keeper.info.socket)
        deaf.setblocking(False)
        try:
            for _ in range(100_000):
                deaf.sendall(b'{"op":"hello","id":1}\n')
        except BlockingIOError:
            pass
        assert await keeper.signal(0)
    await keeper.release()


async def test_two_servers_can_ask_at_once(nursery: Nursery) -> None:
    """Each answer goes to the request it belongs to, also when a release is under way."""
    one = await nursery.start(SLEEP)
    two = await KeeperClient.connect(nursery.directory)
    states = await asyncio.gather(*(keeper.spool_state() for keeper in (one, two) for _ in range(50)))
    assert len(states) == 100
    await asyncio.gather(one.release(), two.release())
    assert one.returncode == two.returncode == -signal.SIGTERM
    await gone(one.info.keeper_pid)
