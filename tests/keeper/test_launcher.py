"""How our own kernels are started: with room for a reader that falls behind, and without noise."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from himalia.keeper import kernel_directory
from himalia.keeper.launch import LAUNCHER, kernel_command
from himalia.kernels.kernel import Kernel
from himalia.kernels.request import Code
from tests.kernels.hosts import Hosting, ended, hosting, messages, text_of, until

__all__ = ["hosting"]

LINES = 8_000
"""With their padding some 14 MB: more than the sockets between kernel and keeper hold by themselves."""


def keeper_pid(kernel: Kernel) -> int:
    assert kernel.process is not None
    about = kernel_directory.read_info(kernel.process.directory)
    assert about is not None
    return int(about["keeper_pid"])


@pytest.mark.parametrize(
    ("argv", "wanted"),
    [
        (["/usr/bin/python3.11", "-m", "ipykernel_launcher", "-f", "x"], ["-Xfrozen_modules=off", "-f", "x"]),
        (["python", "-I", "-X", "dev", "-m", "ipykernel"], ["-I", "-X", "dev", "-Xfrozen_modules=off"]),
        (["python", "-Xfrozen_modules=on", "-m", "ipykernel_launcher"], ["-Xfrozen_modules=on"]),
    ],
)
def test_ipykernel_is_started_by_our_launcher(argv: list[str], wanted: list[str]) -> None:
    """The module is replaced by the launcher's path; Python's options stay before it, the kernel's behind it."""
    command = kernel_command(argv)
    assert command[0] == argv[0]
    assert command.count(str(LAUNCHER)) == 1
    assert [part for part in command[1:] if part != str(LAUNCHER)] == wanted


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["python"],
        ["python", "-m", "xpython_launcher", "-f", "x"],
        ["python", "-c", "-m", "ipykernel_launcher"],
        ["python", "script.py", "-m", "ipykernel_launcher"],
        ["docker", "run", "image", "python", "-m", "ipykernel_launcher"],
        ["/usr/local/bin/ark", "--connection_file", "x"],
    ],
)
def test_other_commands_stay_as_they_are(argv: list[str]) -> None:
    """Only a Python that runs ipykernel directly is known to see our file."""
    assert kernel_command(argv) == argv


@pytest.mark.slow
async def test_a_keeper_that_stands_still_costs_no_output(hosting: Hosting) -> None:
    """A kernel prints far more flushed lines than ZeroMQ's default limit while its keeper is stopped: all are kept."""
    await hosting.open()
    kernel = await hosting.start()
    code = f"for n in range({LINES}): print(n, 'x' * 1200, flush=True)"
    keeper = keeper_pid(kernel)
    os.kill(keeper, signal.SIGSTOP)
    try:
        request = await kernel.execute(Code(code=code))
        await until(lambda: request.state.reply_status is not None)
    finally:
        os.kill(keeper, signal.SIGCONT)
    assert await ended(request) == "ok"
    result = await hosting.host.result(kernel.id, request.id)
    assert [line.split()[0] for line in text_of(result).splitlines()] == [str(n) for n in range(LINES)]


@pytest.mark.slow
async def test_a_kernel_starts_without_a_word(hosting: Hosting) -> None:
    """Nothing is on its terminal, and code sees what it sees in any other kernel: its modules, path and arguments."""
    await hosting.open()
    kernel = await hosting.start(cwd=hosting.directory)
    code = "import json, queue, sys; print(json.dumps([queue.__file__, sys.path, sys.argv]))"
    seen = json.loads(text_of(await hosting.run(kernel, code)))
    assert kernel.process is not None
    assert kernel.process.log_excerpt() == ""
    assert not messages(await hosting.records(kernel.id), "stream", parent_id="")
    file, path, argv = seen
    # Not kernels/scheduler.py, which lies beside the launcher.
    assert Path(file).is_relative_to(sys.base_prefix)
    assert "" in path
    assert str(LAUNCHER.parent) not in path
    assert Path(argv[0]).name == "ipykernel_launcher.py"
