"""Limits that the operating system holds kernels to: real kernels."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import httpx
import psutil
import pytest
from pydantic import ValidationError

from himalia.errors import KernelFailed
from himalia.keeper.limits import Limits, exit_reason
from himalia.settings import Settings
from tests.kernels.hosts import Hosting, events, hosting, text_of, until
from tests.server.server_process import ServerProcess

__all__ = ["hosting"]

GIB = 1 << 30
EXCEED = "import os, signal; os.kill(os.getpid(), signal.SIGXCPU)"
"""What the system does to a kernel at its CPU limit, without the time that it takes to get there."""
LIMITS = (
    "import resource; print(resource.getrlimit(resource.RLIMIT_AS), resource.getrlimit(resource.RLIMIT_CPU))"
)


async def test_a_cell_over_the_memory_limit_gets_a_memory_error(hosting: Hosting) -> None:
    """The cell fails, nothing else: the kernel runs what comes next, and what fits works."""
    await hosting.open(kernel_memory_max=2 * GIB)
    kernel = await hosting.start()
    refused = await hosting.run(kernel, f"x = bytearray({3 * GIB})")
    assert refused.status == "error" and refused.error is not None and refused.error.ename == "MemoryError"
    assert text_of(await hosting.run(kernel, "x = bytearray(1 << 20); print(len(x))")) == "1048576\n"


async def test_a_kernel_over_the_cpu_limit_is_ended(hosting: Hosting) -> None:
    """Its request has died, with the reason, and so does its topic say; others run on."""
    await hosting.open(kernel_cpu_s_max=6)
    kernel = await hosting.start()
    sentence = "used more than 6 s of CPU time, its limit (kernel_cpu_s_max)"
    died = await hosting.run(kernel, "while True: pass")
    assert died.status == "died" and sentence in died.reason
    await until(lambda: not hosting.host.kernels)
    (event,) = events(await hosting.records(kernel.id), "died")
    assert sentence in event["reason"] and event["returncode"] == -24


async def test_limits_hold_after_a_restart_and_for_children(hosting: Hosting) -> None:
    """A restarted kernel has them too, and so has every process that it starts; the server has none."""
    await hosting.open(kernel_memory_max=2 * GIB, kernel_cpu_s_max=100)
    kernel = await hosting.start()
    expected = f"{(2 * GIB, 2 * GIB)} {(100, 105)}\n"
    assert text_of(await hosting.run(kernel, LIMITS)) == expected
    await kernel.restart()
    assert text_of(await hosting.run(kernel, LIMITS)) == expected
    child = f"import subprocess, sys\nprint(subprocess.check_output([sys.executable, '-c', {LIMITS!r}], text=True))"
    assert text_of(await hosting.run(kernel, child)) == f"{expected}\n"
    assert resource.getrlimit(resource.RLIMIT_CPU)[0] == resource.RLIM_INFINITY


@pytest.mark.slow
def test_the_descriptors_of_the_server_are_not_those_of_kernels(tmp_path: Path) -> None:
    """A kernel may open as many files as the server at its start, before that raised its limit: code that uses
    ``select`` fails above 1,023. So it is after a restart, also by another server, and the code may raise it."""
    look = "import resource; print(resource.getrlimit(resource.RLIMIT_NOFILE))"
    with ServerProcess(tmp_path, descriptors=(600, 2000)) as server:
        assert psutil.Process(server.pid).rlimit(psutil.RLIMIT_NOFILE) == (2000, 2000)
        with server.http() as http:
            kernel = http.post("/api/kernels").raise_for_status().json()["id"]
            assert cell(http, kernel, look) == "(600, 2000)\n"
            http.post(f"/api/kernels/{kernel}/restart").raise_for_status()
            assert cell(http, kernel, look) == "(600, 2000)\n"
    with ServerProcess(tmp_path, descriptors=(700, 1900)) as server, server.http() as http:
        assert cell(http, kernel, look) == "(600, 2000)\n"
        http.post(f"/api/kernels/{kernel}/restart").raise_for_status()
        assert cell(http, kernel, look) == "(700, 1900)\n"
        raised = "resource.setrlimit(resource.RLIMIT_NOFILE, (1900, 1900))"
        assert cell(http, kernel, f"{look}; {raised}; {look}") == "(700, 1900)\n(1900, 1900)\n"
        http.delete(f"/api/kernels/{kernel}").raise_for_status()


def cell(http: httpx.Client, kernel: str, code: str) -> str:
    """What it prints."""
    asked = {"code": code, "wait": True}
    done = http.post(f"/api/kernels/{kernel}/execute", json=asked).raise_for_status().json()
    assert done["status"] == "ok", done
    return "".join(output["text"] for output in done["outputs"])


async def test_a_later_server_tells_of_the_limits_a_kernel_was_started_with(hosting: Hosting) -> None:
    """Its own settings do not matter: the kernel has the limits of the server that started it."""
    server = await hosting.serve(kernel_cpu_s_max=100)
    started = await server.ask("start")
    server.kill()
    host = await hosting.open(kernel_cpu_s_max=500)
    died = await hosting.run(host.get(started["kernel"]), EXCEED)
    assert died.status == "died" and "more than 100 s of CPU time" in died.reason


async def test_a_kernel_that_ends_by_its_limit_while_no_server_is_there(hosting: Hosting) -> None:
    """The next server says why, also when the keeper has gone too."""
    go = hosting.directory / "go"
    server = await hosting.serve(kernel_cpu_s_max=100)
    started = await server.ask("start")
    keeper = psutil.Process(started["pid"]).parent()
    waits = f"import os, time\nprint('waits', flush=True)\nwhile not os.path.exists({str(go)!r}): time.sleep(.01)\n"
    asked = await server.ask("execute", kernel=started["kernel"], code=waits + EXCEED)
    await server.ask("printed", kernel=started["kernel"], text="waits")
    server.kill()
    assert keeper is not None
    # So that it hears of the kernel's end and of its own at the same time.
    keeper.suspend()
    go.touch()
    # With all of its threads: before that its parent is not told.
    await until(
        lambda: started["pid"] not in hosting.left() and len(os.listdir(f"/proc/{started['pid']}/task")) == 1
    )
    keeper.terminate()
    keeper.resume()
    await until(lambda: not hosting.left())
    host = await hosting.open()
    died = await host.result(started["kernel"], asked["request"])
    assert died.status == "died" and "more than 100 s of CPU time" in died.reason


async def test_a_kernel_that_cannot_start_within_its_limit_says_so(hosting: Hosting) -> None:
    """The error names the setting."""
    await hosting.open(kernel_memory_max=100 << 20)
    with pytest.raises(KernelFailed, match="kernel_memory_max"):
        await hosting.start()
    assert not hosting.host.kernels


def test_what_an_end_is_put_down_to() -> None:
    """A limit is named only where there is one, and only where it can be the reason."""
    limits = Limits(memory_max=1000, cpu_s_max=5)
    for code in (0, 1, -6, -9, -24):
        assert "kernel_" not in exit_reason(code, Limits())
    assert exit_reason(0, limits) == "ended with code 0"
    assert exit_reason(-15, limits) == "killed by signal 15 (SIGTERM)"
    assert "kernel_memory_max" in exit_reason(-6, limits) and "kernel_memory_max" in exit_reason(1, limits)
    assert "kernel_cpu_s_max" in exit_reason(-24, limits) and "kernel_cpu_s_max" in exit_reason(-9, limits)


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("kernel_memory_max", 1_000_000, "no kernel starts in 1000000 bytes"),
        ("kernel_memory_max", -1, "greater than or equal to 0"),
        ("kernel_memory_max", 2**63, "less than or equal to"),
        ("kernel_cpu_s_max", -1, "greater than or equal to 0"),
        ("kernel_cpu_s_max", 0.5, "integer"),
        ("kernel_env_keep", ["AWS=*"], "not the name of a variable"),
        ("kernel_env_keep", [""], "not the name of a variable"),
    ],
    ids=[
        "memory_small",
        "memory_negative",
        "memory_huge",
        "cpu_negative",
        "cpu_fraction",
        "env_equals",
        "env_empty",
    ],
)
def test_settings_that_cannot_work_are_refused(name: str, value: object, sentence: str) -> None:
    """With the setting's name and a sentence."""
    with pytest.raises(ValidationError, match=sentence) as refused:
        Settings(**{name: value})  # type: ignore[arg-type]
    assert refused.value.errors()[0]["loc"][0] == name
