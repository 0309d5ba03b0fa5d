from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from himalia.client import Client, Execution, Submitted, SyncClient
from himalia.errors import (
    BadRequest,
    ExecutionNotFound,
    HimaliaError,
    KernelNotFound,
    KernelUnavailable,
)
from himalia.protocol.models import Kernel
from tests.servers import DEADLINE_S, RunningServer
from tests.shared_kernel_server import kernel_server

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with kernel_server(tmp_path_factory.mktemp("kernels")) as server:
        yield server


@pytest.fixture(scope="module")
def kernel(kernels: RunningServer) -> Kernel:
    with SyncClient(kernels.url) as client:
        return client.start_kernel("python3")


@pytest.fixture
async def client(kernels: RunningServer) -> AsyncIterator[Client]:
    async with Client(kernels.url) as client:
        yield client


async def until_closed(client: Client, submitted: Submitted) -> list[str]:
    """The types of the records of a request, up to the one that says how it ended."""
    seen = []
    async with (
        asyncio.timeout(DEADLINE_S),
        client.subscribe(submitted.topic, from_=submitted.offset) as events,
    ):
        async for event in events:
            if event.headers["parent_id"] == submitted.request_id:
                seen.append(event.headers["msg_type"])
                if event.payload["content"].get("event") == "request_closed":
                    break
    return seen


async def until_type(client: Client, submitted: Submitted, msg_type: str) -> None:
    """Wait for a record of this type of a request."""
    async with (
        asyncio.timeout(DEADLINE_S),
        client.subscribe(submitted.topic, from_=submitted.offset) as events,
    ):
        async for event in events:
            if (event.headers["parent_id"], event.headers["msg_type"]) == (submitted.request_id, msg_type):
                return


async def test_execute_waits_for_the_result(client: Client, kernel: Kernel) -> None:
    """With ``wait`` the answer is the whole result, and can be had again by its id."""
    done = await client.execute(kernel.id, "print('hello'); 6 * 7")
    assert isinstance(done, Execution)
    assert (done.status, done.error, done.code) == ("ok", None, "print('hello'); 6 * 7")
    assert [output["output_type"] for output in done.outputs] == ["stream", "execute_result"]
    assert done.outputs[1]["data"]["text/plain"] == "42"
    assert await client.execution(kernel.id, done.request_id) == done


async def test_code_that_fails_is_a_result_too(client: Client, kernel: Kernel) -> None:
    """What the code raises is in the answer, and not raised here."""
    done = await client.execute(kernel.id, "1 / 0")
    assert done.status == "error"
    assert done.error is not None
    assert done.error.ename == "ZeroDivisionError"


async def test_how_long_code_ran(client: Client, kernel: Kernel) -> None:
    """``run_us`` is the duration of the code, also of one that is too short for the times of the log."""
    done = await client.execute(kernel.id, "import time; time.sleep(0.02)")
    assert isinstance(done, Execution)
    assert done.run_us is not None
    assert done.run_us >= 20_000


async def test_without_waiting_it_is_told_where_to_look(client: Client, kernel: Kernel) -> None:
    """Without ``wait`` the answer says from where in the kernel's topic all of it can be seen."""
    submitted = await client.execute(kernel.id, "print('seen')", wait=False)
    assert isinstance(submitted, Submitted)
    assert submitted.topic == kernel.topic
    seen = await until_closed(client, submitted)
    assert seen[0] == seen[-1] == "kernel_event"
    assert "stream" in seen


async def test_a_timeout_is_the_codes_and_not_the_calls(kernels: RunningServer, kernel: Kernel) -> None:
    """``timeout_s`` of ``execute`` ends the code; the client's own does not bound how long a result is waited for."""
    async with Client(kernels.url, timeout_s=0.5) as client:
        done = await client.execute(kernel.id, "import time; time.sleep(30)", timeout_s=1)
    assert done.status == "timeout"


async def test_cancelling(client: Client, kernel: Kernel) -> None:
    """A request that runs is interrupted, one that waits never runs; both end as cancelled."""
    running = await client.execute(kernel.id, "import time\nprint('on')\ntime.sleep(30)", wait=False)
    waiting = await client.execute(kernel.id, "print('never')", wait=False)
    await until_type(client, running, "stream")
    for submitted in (waiting, running):
        assert (await client.cancel_execution(kernel.id, submitted.request_id)).status == "cancelled"
    assert (await client.execution(kernel.id, waiting.request_id)).outputs == []
    assert (await client.execute(kernel.id, "1")).status == "ok"


async def test_an_interrupt_is_an_error_of_the_code(client: Client, kernel: Kernel) -> None:
    """``interrupt_kernel`` ends what runs with its language's own exception."""
    submitted = await client.execute(kernel.id, "import time\nprint('on')\ntime.sleep(30)", wait=False)
    await until_type(client, submitted, "stream")
    await client.interrupt_kernel(kernel.id)
    await until_closed(client, submitted)
    done = await client.execution(kernel.id, submitted.request_id)
    assert done.error is not None
    assert done.error.ename == "KeyboardInterrupt"


async def test_input_is_answered(client: Client, kernel: Kernel) -> None:
    """With ``allow_stdin`` the code may ask, and gets what ``answer_input`` gives; else it may not."""
    submitted = await client.execute(kernel.id, "print(input('who? ')[::-1])", wait=False, allow_stdin=True)
    await until_type(client, submitted, "input_request")
    await client.answer_input(kernel.id, "abc")
    await until_closed(client, submitted)
    done = await client.execution(kernel.id, submitted.request_id)
    assert done.outputs[0]["text"] == "cba\n"
    with pytest.raises(KernelUnavailable):
        await client.answer_input(kernel.id, "again")
    assert (await client.execute(kernel.id, "input()")).status == "error"


async def test_the_life_of_a_kernel(client: Client, kernel: Kernel, tmp_path: Path) -> None:
    """It is started where it is told, listed, restarted under its id, and stopped; its executions stay."""
    started = await client.start_kernel(cwd=tmp_path, env={"SHOP": "A-17"})
    assert {started.id, kernel.id} <= {one.id for one in await client.kernels()}
    assert (await client.kernel(started.id)).topic == f"kernels.{started.id}"
    done = await client.execute(started.id, "import os; x = 1; print(os.getcwd(), os.environ['SHOP'])")
    assert done.outputs[0]["text"] == f"{tmp_path} A-17\n"
    restarted = await client.restart_kernel(started.id)
    assert restarted.id == started.id
    assert restarted.pid != started.pid
    assert (await client.execute(started.id, "x")).status == "error"
    await client.stop_kernel(started.id)
    with pytest.raises(KernelNotFound):
        await client.kernel(started.id)
    assert (await client.execution(started.id, done.request_id)).status == "ok"


async def test_kernelspecs(client: Client) -> None:
    """What can be started is told, with its names and language."""
    specs = await client.kernelspecs()
    spec = specs.kernelspecs[specs.default]
    assert (spec.name, spec.language) == ("python3", "python")
    assert spec.display_name


async def test_what_cannot_be_is_raised(client: Client, kernel: Kernel, tmp_path: Path) -> None:
    """A kernel, a request, a kind or a directory that is not there is an error of its own kind."""
    with pytest.raises(KernelNotFound):
        await client.execute("nobody", "1")
    with pytest.raises(ExecutionNotFound):
        await client.execution(kernel.id, "nothing")
    with pytest.raises(HimaliaError, match="klingon"):
        await client.start_kernel("klingon")
    with pytest.raises(BadRequest, match="no directory"):
        await client.start_kernel(cwd=tmp_path / "nowhere")


def test_the_synchronous_client_does_the_same(kernels: RunningServer, kernel: Kernel) -> None:
    """``SyncClient`` has every method for kernels, by the same names."""
    with SyncClient(kernels.url) as client:
        assert kernel.id in [one.id for one in client.kernels()]
        assert client.kernel(kernel.id).name == "python3"
        assert "python3" in client.kernelspecs().kernelspecs
        assert client.execute(kernel.id, "1 + 1", priority=1).outputs[0]["data"]["text/plain"] == "2"
        submitted = client.execute(kernel.id, "1", wait=False)
        with client.subscribe(submitted.topic, from_=submitted.offset) as events:
            while events.next(DEADLINE_S).payload["content"].get("event") != "request_closed":
                pass
        assert client.execution(kernel.id, submitted.request_id, late=True).status == "ok"
        assert client.cancel_execution(kernel.id, submitted.request_id).status == "ok"
        assert client.attach_all_kernels().attached == []
        client.interrupt_kernel(kernel.id)
        with pytest.raises(HimaliaError):
            client.attach_kernel("kernel-nowhere.json")
        with pytest.raises(KernelUnavailable):
            client.answer_input(kernel.id, "x")
        with pytest.raises(KernelNotFound):
            client.restart_kernel("nobody")
        with pytest.raises(KernelNotFound):
            client.stop_kernel("nobody")


def test_both_clients_have_the_same_methods() -> None:
    """Nothing that ``Client`` can do is missing from ``SyncClient``."""
    public = {name for name in vars(Client) if not name.startswith("_")}
    assert public <= {name for name in vars(SyncClient) if not name.startswith("_")}


async def test_health_and_stats_count_kernels(client: Client, kernel: Kernel) -> None:
    """What the server says of itself has the number of kernels that run."""
    assert (await client.health()).kernels == (await client.stats()).kernels == len(await client.kernels())
