"""A server that is killed loses nothing of its own kernels, and says what it lost of others'."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from himalia.kernels.model import NoListener
from himalia.kernels.recovery import Leftovers
from himalia.kernels.request import Code, Request
from himalia.log import open_log
from himalia.protocol.models import ExecutionStatus
from himalia.pubsub import PubSubManager
from himalia.record import Record
from himalia.settings import Settings
from tests.keeper.keepers import printed as spooled
from tests.kernels.hosts import (
    DEADLINE_S,
    Hosting,
    ended,
    events,
    hosting,
    is_running,
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

LINES = 60
COUNTING = f"""
import time
for i in range({LINES}):
    print(i, flush=True)
    time.sleep(0.03)
"""
COUNTED = "".join(f"{i}\n" for i in range(LINES))


def closed(found: list[Record], request_id: str) -> list[dict[str, Any]]:
    return [event for event in events(found, "request_closed") if event["of"] == request_id]


async def until_closed(hosting: Hosting, kernel_id: str, request_id: str) -> list[Record]:
    return await until_recorded(hosting, kernel_id, lambda found: closed(found, request_id))


async def test_server_killed_in_mid_cell(hosting: Hosting) -> None:
    """A server killed while a cell prints finds it again: nothing is missing, nothing comes twice, it ends ok."""
    server = await hosting.serve()
    kernel_id = (await server.ask("start"))["kernel"]
    request_id = (await server.ask("execute", kernel=kernel_id, code=COUNTING))["request"]
    await server.ask("printed", kernel=kernel_id, text="9\\n")
    server.kill()

    host = await hosting.open()
    assert list(host.kernels) == [kernel_id]
    found = await until_closed(hosting, kernel_id, request_id)
    assert printed(found, request_id) == COUNTED
    assert not repeated(found)
    assert [event["status"] for event in closed(found, request_id)] == ["ok"]
    assert "reattached" in names(found) and "gap" not in names(found)
    result = await host.result(kernel_id, request_id)
    assert (result.status, text_of(result)) == ("ok", COUNTED)
    assert (await hosting.run(host.get(kernel_id), "1+1")).status == "ok"


async def test_cell_ends_while_no_server_is_there(hosting: Hosting) -> None:
    """A cell that ends between two servers is closed by the second, with all of its output."""
    server = await hosting.serve()
    started = await server.ask("start")
    kernel_id = started["kernel"]
    mark = hosting.directory / "done"
    code = COUNTING + f"open({str(mark)!r}, 'w').close()"
    request_id = (await server.ask("execute", kernel=kernel_id, code=code))["request"]
    await server.ask("printed", kernel=kernel_id, text="3\\n")
    server.kill()
    await until(mark.exists)

    await hosting.open()
    found = await until_closed(hosting, kernel_id, request_id)
    assert printed(found, request_id) == COUNTED
    assert not repeated(found)
    assert [event["status"] for event in closed(found, request_id)] == ["ok"]


async def test_error_while_no_server_is_there(hosting: Hosting) -> None:
    """A cell that fails between two servers is closed as an error, though its reply is lost."""
    server = await hosting.serve()
    kernel_id = (await server.ask("start"))["kernel"]
    mark = hosting.directory / "go"
    code = f"import os, time\nprint('waits')\nwhile not os.path.exists({str(mark)!r}): time.sleep(.01)\n1/0"
    request_id = (await server.ask("execute", kernel=kernel_id, code=code))["request"]
    await server.ask("printed", kernel=kernel_id, text="waits")
    server.kill()
    mark.touch()

    host = await hosting.open()
    await until_closed(hosting, kernel_id, request_id)
    result = await host.result(kernel_id, request_id)
    assert result.status == "error"
    assert result.error is not None and result.error.ename == "ZeroDivisionError"


async def test_killed_again_and_again(hosting: Hosting) -> None:
    """However often servers are killed during one cell, its output is whole and in order."""
    server = await hosting.serve()
    kernel_id = (await server.ask("start"))["kernel"]
    code = COUNTING.replace("0.03", "0.1")
    request_id = (await server.ask("execute", kernel=kernel_id, code=code))["request"]
    for line in (2, 20, 38):
        await server.ask("printed", kernel=kernel_id, text=f"{line}\\n")
        server.kill()
        server = await hosting.serve()
    server.kill()

    await hosting.open()
    found = await until_closed(hosting, kernel_id, request_id)
    assert printed(found, request_id) == COUNTED
    assert not repeated(found)
    assert len(closed(found, request_id)) == 1


async def test_queued_requests_close_as_aborted(hosting: Hosting) -> None:
    """What was queued and not sent when the server was killed is closed as aborted, and is never run."""
    server = await hosting.serve()
    kernel_id = (await server.ask("start"))["kernel"]
    running = (await server.ask("execute", kernel=kernel_id, code=COUNTING))["request"]
    waiting = [
        (await server.ask("execute", kernel=kernel_id, code="print('never')"))["request"] for _ in range(3)
    ]
    await server.ask("printed", kernel=kernel_id, text="1\\n")
    server.kill()

    await hosting.open()
    found = await until_closed(hosting, kernel_id, running)
    for request_id in waiting:
        assert [event["status"] for event in closed(found, request_id)] == ["aborted"]
        assert printed(found, request_id) == ""
    assert [event["status"] for event in closed(found, running)] == ["ok"]


async def test_kernel_died_while_no_server_was_there(hosting: Hosting) -> None:
    """The output of a kernel that died between two servers is in its topic, and its request is closed as died."""
    server = await hosting.serve()
    started = await server.ask("start")
    kernel_id = started["kernel"]
    mark = hosting.directory / "go"
    code = (
        f"import os, time\nprint('waits', flush=True)\nwhile not os.path.exists({str(mark)!r}): time.sleep(.01)\n"
        "for i in range(1000): print(i, flush=True)\n"
        "import sys; sys.stdout.flush(); time.sleep(0.3); os.kill(os.getpid(), 9)"
    )
    request_id = (await server.ask("execute", kernel=kernel_id, code=code))["request"]
    kernel = psutil.Process(started["pid"])
    await server.ask("printed", kernel=kernel_id, text="waits")
    server.kill()
    mark.touch()
    await until(lambda: not is_running(kernel))

    host = await hosting.open()
    found = await until_recorded(hosting, kernel_id, lambda found: names(found)[-1] == "died")
    assert printed(found, request_id) == "waits\n" + "".join(f"{i}\n" for i in range(1000))
    assert not repeated(found)
    assert [event["status"] for event in closed(found, request_id)] == ["died"]
    await until(lambda: not host.kernels)
    await until(lambda: not hosting.left())


async def test_keeper_killed_while_no_server_was_there(hosting: Hosting) -> None:
    """Of a kernel whose keeper is gone too, the spool that it left is still read before it is removed."""
    server = await hosting.serve()
    started = await server.ask("start")
    kernel_id = started["kernel"]
    mark = hosting.directory / "done"
    code = COUNTING + f"open({str(mark)!r}, 'w').close()\nimport time; time.sleep(1000)"
    request_id = (await server.ask("execute", kernel=kernel_id, code=code))["request"]
    await server.ask("printed", kernel=kernel_id, text="3\\n")
    kernel = psutil.Process(started["pid"])
    keeper = kernel.parent()
    assert keeper is not None
    server.kill()
    await until(mark.exists)
    keeper.kill()
    await until(lambda: not is_running(kernel))

    host = await hosting.open()
    found = await hosting.records(kernel_id)
    assert printed(found, request_id) == COUNTED
    assert not repeated(found)
    assert [event["status"] for event in closed(found, request_id)] == ["died"]
    assert names(found)[-1] == "died"
    assert not host.kernels and not list(hosting.runtime.glob("*/kernels/*"))


STEPS = """
import time
with open({path!r}, "w") as said:
    for step in range(1000):
        said.write(f"{{step}}\\n")
        said.flush()
        print(step, flush=True)
        time.sleep(0.05)
"""
"""Prints until it is killed; a file tells how far it came."""


async def test_what_was_kept_is_there_however_late_a_server_comes(hosting: Hosting) -> None:
    """A cell that is ended in its middle, without a server for too long: all that it printed is in its topic."""
    server = await hosting.serve(kernel_keep_s=0.2, kernel_busy_keep_s=1)
    kernel_id = (await server.ask("start"))["kernel"]
    path = hosting.directory / "said"
    code = STEPS.format(path=str(path))
    request_id = (await server.ask("execute", kernel=kernel_id, code=code))["request"]
    await server.ask("printed", kernel=kernel_id, text="2\\n")
    server.kill()
    await until(lambda: not hosting.left())
    said = path.read_text()
    assert said.count("\n") > 10

    host = await hosting.open()
    assert not host.kernels
    found = await hosting.records(kernel_id)
    # The last step may have been killed between the file and the print.
    assert printed(found, request_id) in (said, said[: said.rindex("\n", 0, -1) + 1])
    assert not repeated(found) and "gap" not in names(found)
    (close,) = closed(found, request_id)
    assert close["status"] == "died" and "no server came back for it within 1 s" in close["reason"]
    assert close["finished_us"] >= close["started_us"]
    died = events(found)[-1]
    assert died["event"] == "died" and died["returncode"] is not None and died["ended_us"] > 0
    assert (await host.result(kernel_id, request_id)).status is ExecutionStatus.DIED
    assert not list(hosting.runtime.glob("*/kernels/*")), "it was read, so it is removed"
    await hosting.close()
    await hosting.open()
    assert len(await hosting.records(kernel_id)) == len(found)


async def test_a_busy_kernel_is_not_ended_by_the_ordinary_lease(hosting: Hosting) -> None:
    """It runs its cell to the end, then has the ordinary time; a later server closes the cell as it ended."""
    server = await hosting.serve(kernel_keep_s=0.3)
    started = await server.ask("start")
    kernel_id, mark = started["kernel"], hosting.directory / "go"
    code = (
        f"import os, time\nprint('waits', flush=True)\nwhile not os.path.exists({str(mark)!r}): time.sleep(.01)\n"
        "print('done')"
    )
    request_id = (await server.ask("execute", kernel=kernel_id, code=code))["request"]
    await server.ask("printed", kernel=kernel_id, text="waits")
    server.kill()
    await asyncio.sleep(1.5)
    assert is_running(psutil.Process(started["pid"]))
    mark.touch()
    await until(lambda: not hosting.left())

    await hosting.open()
    found = await hosting.records(kernel_id)
    assert printed(found, request_id) == "waits\ndone\n"
    assert [event["status"] for event in closed(found, request_id)] == ["ok"]
    assert "no server came back for it within 0.3 s" in events(found)[-1]["reason"]


async def without_topic(hosting: Hosting, kernel_id: str) -> None:
    """The log as it is when a backup is restored that is older than the kernel."""
    log = open_log(hosting.url)
    await log.open()
    await log.delete(f"kernels.{kernel_id}")
    await log.close()


async def test_a_kernel_whose_topic_is_not_in_the_log_is_found_again(hosting: Hosting) -> None:
    """It lives on under the next server, is still its owner's, and all that its spool has is in a new topic."""
    server = await hosting.serve()
    kernel_id = (await server.ask("start", owner="key:ann"))["kernel"]
    request_id = (await server.ask("execute", kernel=kernel_id, code=COUNTING))["request"]
    await server.ask("printed", kernel=kernel_id, text="9\\n")
    server.kill()
    await without_topic(hosting, kernel_id)

    host = await hosting.open()
    kernel = host.get(kernel_id)
    assert (kernel.owner, (await hosting.log.info(kernel.topic)).owner) == ("key:ann", "key:ann")
    found = await until_recorded(hosting, kernel_id, lambda found: printed(found, request_id) == COUNTED)
    assert names(found)[0] == "reattached"
    assert (await hosting.run(kernel, "1+1")).status == "ok"


async def test_what_is_left_of_a_kernel_whose_topic_is_not_in_the_log(hosting: Hosting) -> None:
    """The topic that is made for it belongs to the kernel's owner."""
    kernel_id, request_id, _ = await left_behind(hosting, lines=10, owner="key:ann")
    await without_topic(hosting, kernel_id)
    await hosting.open()
    assert (await hosting.log.info(f"kernels.{kernel_id}")).owner == "key:ann"
    assert printed(await hosting.records(kernel_id), request_id).endswith("9\n")


async def test_a_host_that_cannot_be_opened_ends_no_kernel(
    hosting: Hosting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that fails at its start leaves the kernels of the one before to the next one."""
    server = await hosting.serve()
    kernel_id = (await server.ask("start"))["kernel"]
    server.kill()
    with monkeypatch.context() as patch:
        patch.setattr(Leftovers, "close_forgotten", None)
        with pytest.raises(TypeError):
            await hosting.open()
    assert (await hosting.run((await hosting.open()).get(kernel_id), "1+1")).status == "ok"


async def left_behind(hosting: Hosting, lines: int = 3000, owner: str | None = None) -> tuple[str, str, Path]:
    """A kernel and its keeper that are gone, and whose spool has output that is in no log: whose, and where."""
    server = await hosting.serve()
    started = await server.ask("start", owner=owner)
    kernel_id, go = started["kernel"], hosting.directory / "go"
    code = (
        f"import os, sys, time\nprint('waits', flush=True)\nwhile not os.path.exists({str(go)!r}): time.sleep(.01)\n"
        f"for i in range({lines}):\n sys.stdout.write(f'{{i}}\\n'); sys.stdout.flush()\n"
        "time.sleep(1000)"
    )
    request_id = (await server.ask("execute", kernel=kernel_id, code=code))["request"]
    await server.ask("printed", kernel=kernel_id, text="waits")
    server.kill()
    go.touch()
    directory = next(hosting.runtime.glob(f"*/kernels/{kernel_id}"))
    # Not when the kernel has printed it: its keeper may have received little of it by then.
    await until(lambda: spooled(directory).endswith(f"{lines - 1}\n"))
    keeper = psutil.Process(started["pid"]).parent()
    assert keeper is not None
    keeper.terminate()
    await until(lambda: not hosting.left())
    return kernel_id, request_id, directory


async def test_a_server_that_is_stopped_while_it_reads_leaves_the_rest(hosting: Hosting) -> None:
    """However often the reading of a spool is broken off, nothing is removed before it is in the log, once."""
    kernel_id, request_id, directory = await left_behind(hosting)
    broken_off = 0
    while directory.exists():
        log = open_log(hosting.url)
        await log.open()
        manager = PubSubManager(log)
        await manager.start()
        leftovers = Leftovers(manager, Settings(log=hosting.url, kernel_buffer_bytes=20_000), NoListener())
        settling = asyncio.create_task(leftovers.settle(directory))
        await asyncio.wait({settling}, timeout=0.02 * (broken_off + 1))
        broken_off += not settling.done()
        settling.cancel()
        await asyncio.wait({settling})
        await manager.stop()
        await log.close()
    assert broken_off
    await hosting.open()
    found = await hosting.records(kernel_id)
    assert printed(found, request_id) == "waits\n" + "".join(f"{i}\n" for i in range(3000))
    assert not repeated(found) and "gap" not in names(found)
    assert names(found).count("died") == 1
    assert [event["status"] for event in closed(found, request_id)] == ["died"]


async def test_a_spool_that_cannot_be_checked_is_not_thrown_away(hosting: Hosting) -> None:
    """Without its key it stays where it is, and the topic says where; later servers say nothing more."""
    kernel_id, request_id, directory = await left_behind(hosting, lines=10)
    connection_file = directory / "connection.json"
    connection = connection_file.read_bytes()
    connection_file.write_text("damaged")
    await hosting.open()
    found = await hosting.records(kernel_id)
    assert str(directory) in closed(found, request_id)[0]["reason"]
    assert names(found)[-1] == "died"
    await hosting.close()
    await hosting.open()
    assert len(await hosting.records(kernel_id)) == len(found)
    await hosting.close()

    connection_file.write_bytes(connection)
    await hosting.open()
    found = await hosting.records(kernel_id)
    assert printed(found, request_id) == "waits\n" + "".join(f"{i}\n" for i in range(10))
    assert not directory.exists()


async def test_graceful_close_leaves_no_process(hosting: Hosting) -> None:
    """A host that closes ends its kernels and their keepers, and removes what they had on disk."""
    await hosting.open()
    kernels = [await hosting.start(), await hosting.start()]
    request = await kernels[0].execute(Code(code="import time; print('on', flush=True); time.sleep(1000)"))
    await until_recorded(hosting, kernels[0].id, printed)
    assert len(hosting.left()) == 4
    await hosting.close()
    assert request.closed.result() == "aborted"
    await until(lambda: not hosting.left())
    assert not list(hosting.runtime.glob("*/kernels/*"))


async def test_kernels_stay_and_the_next_host_finds_them(hosting: Hosting) -> None:
    """With kernels_stay a graceful end leaves kernels running; what they run goes on and is found by the next."""
    host = await hosting.open(kernels_stay=True)
    kernel = await hosting.start()
    request = await kernel.execute(Code(code=COUNTING))
    await until_recorded(hosting, kernel.id, lambda found: "3\n" in printed(found))
    await hosting.close()
    assert len(hosting.left()) == 2
    host = await hosting.open()
    assert list(host.kernels) == [kernel.id]
    found = await until_closed(hosting, kernel.id, request.id)
    assert printed(found, request.id) == COUNTED
    assert not repeated(found)
    await host.stop(kernel.id)
    await until(lambda: not hosting.left())


async def test_the_next_host_finds_them_under_another_name_of_the_log(hosting: Hosting) -> None:
    """A server that opens the log by a symbolic link finds the kernels of one that opened it by its name."""
    await hosting.open(kernels_stay=True)
    kernel = await hosting.start()
    await hosting.close()
    link = hosting.directory / "link.db"
    link.symlink_to(hosting.directory / "log.db")
    hosting.url = f"sqlite://{link}"
    host = await hosting.open()
    assert list(host.kernels) == [kernel.id]
    assert "died" not in names(await hosting.records(kernel.id))


async def test_foreign_kernel_is_attached_again_with_a_gap(hosting: Hosting) -> None:
    """A foreign kernel is attached to again: its topic says where something may be missing, and goes on."""
    path, _ = await hosting.start_foreign()
    server = await hosting.serve()
    kernel_id = (await server.ask("attach", path=str(path)))["kernel"]
    mark = hosting.directory / "go"
    code = f"import os, time\nprint('waits')\nwhile not os.path.exists({str(mark)!r}): time.sleep(.01)\nprint('on')"
    request_id = (await server.ask("execute", kernel=kernel_id, code=code))["request"]
    await server.ask("printed", kernel=kernel_id, text="waits")
    server.kill()

    host = await hosting.open()
    assert host.get(kernel_id).is_foreign
    mark.touch()
    found = await until_closed(hosting, kernel_id, request_id)
    assert printed(found, request_id) == "waits\non\n"
    assert not repeated(found)
    assert [event["status"] for event in closed(found, request_id)] == ["ok"]
    gaps = events(found, "gap")
    assert len(gaps) == 1 and gaps[0]["since_us"] > 0
    assert (await hosting.run(host.get(kernel_id), "1+1")).status == "ok"


async def test_the_end_of_a_cell_is_heard_before_it_is_given_up(
    hosting: Hosting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cell that was running when the server was killed ends as it did, also if the request hears of that late."""
    deliver = Request.deliver

    def deliver_late(request: Request, *message: Any) -> None:
        time.sleep(0.2)
        deliver(request, *message)

    monkeypatch.setattr(Request, "deliver", deliver_late)
    path, _ = await hosting.start_foreign()
    server = await hosting.serve()
    kernel_id = (await server.ask("attach", path=str(path)))["kernel"]
    mark = hosting.directory / "go"
    code = f"import os, time\nprint('waits')\nwhile not os.path.exists({str(mark)!r}): time.sleep(.01)"
    request_id = (await server.ask("execute", kernel=kernel_id, code=code))["request"]
    await server.ask("printed", kernel=kernel_id, text="waits")
    server.kill()

    await hosting.open()
    mark.touch()
    found = await until_closed(hosting, kernel_id, request_id)
    assert [event["status"] for event in closed(found, request_id)] == ["ok"]


async def test_foreign_cell_that_ended_in_the_gap_is_closed(hosting: Hosting) -> None:
    """A request to a foreign kernel whose end nobody heard is closed as stale: nothing waits for ever."""
    path, _ = await hosting.start_foreign()
    server = await hosting.serve()
    kernel_id = (await server.ask("attach", path=str(path)))["kernel"]
    go, done = hosting.directory / "go", hosting.directory / "done"
    code = (
        f"import os, time\nprint('waits')\nwhile not os.path.exists({str(go)!r}): time.sleep(.01)\n"
        f"print('unheard')\nopen({str(done)!r}, 'w').close()"
    )
    request_id = (await server.ask("execute", kernel=kernel_id, code=code))["request"]
    queued = (await server.ask("execute", kernel=kernel_id, code="1"))["request"]
    await server.ask("printed", kernel=kernel_id, text="waits")
    server.kill()
    go.touch()
    client = await hosting.client(path)  # it answers when the cell is over
    await client.kernel_info(reply=True, timeout=DEADLINE_S)  # type: ignore[misc]
    assert done.exists()

    host = await hosting.open()
    found = await until_closed(hosting, kernel_id, request_id)
    assert [event["status"] for event in closed(found, request_id)] == ["stale"]
    assert [event["status"] for event in closed(found, queued)] == ["aborted"]
    assert (await hosting.run(host.get(kernel_id), "1+1")).status == "ok"


async def test_foreign_kernel_is_gone_when_the_server_comes_back(hosting: Hosting) -> None:
    """Of a foreign kernel that is gone, the requests are closed and the server starts without waiting for it."""
    path, manager = await hosting.start_foreign()
    server = await hosting.serve()
    kernel_id = (await server.ask("attach", path=str(path)))["kernel"]
    request_id = (
        await server.ask(
            "execute", kernel=kernel_id, code="print('on', flush=True)\nimport time; time.sleep(999)"
        )
    )["request"]
    await server.ask("printed", kernel=kernel_id, text="on")
    content = path.read_bytes()
    server.kill()
    await manager.shutdown_kernel(now=True)
    path.write_bytes(content)

    async with asyncio.timeout(20):
        host = await hosting.open()
        found = await until_closed(hosting, kernel_id, request_id)
    assert [event["status"] for event in closed(found, request_id)] == ["died"]
    assert not host.kernels
    assert messages(found, "stream")


async def test_request_that_was_sent_and_never_began(hosting: Hosting) -> None:
    """A request that the kernel had not begun with when the server was killed is closed, one way or the other."""
    server = await hosting.serve()
    started = await server.ask("start")
    kernel_id = started["kernel"]
    # Stopped, the kernel takes nothing from its sockets: what was sent is on its way when the server is killed.
    os.kill(started["pid"], signal.SIGSTOP)
    request_id = (await server.ask("execute", kernel=kernel_id, code="print('ran')"))["request"]
    server.kill()
    os.kill(started["pid"], signal.SIGCONT)

    host = await hosting.open()
    found = await until_closed(hosting, kernel_id, request_id)
    status = closed(found, request_id)[0]["status"]
    assert (status, printed(found, request_id)) in [("ok", "ran\n"), ("aborted", "")]
    assert (await hosting.run(host.get(kernel_id), "1+1")).status == "ok"


async def test_restart_of_a_kernel_found_again(hosting: Hosting) -> None:
    """A kernel that was found again can be restarted and interrupted like one of the server's own."""
    server = await hosting.serve()
    kernel_id = (await server.ask("start"))["kernel"]
    server.kill()
    host = await hosting.open()
    kernel = host.get(kernel_id)
    request = await kernel.execute(Code(code="import time; print('on', flush=True); time.sleep(1000)"))
    await until_recorded(hosting, kernel_id, lambda found: printed(found, request.id))
    await kernel.interrupt()
    assert await ended(request) == "error"
    await kernel.restart()
    hosting.track()
    assert (await hosting.run(kernel, "1+1")).execution_count == 1
