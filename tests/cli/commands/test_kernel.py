from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import zlib
from base64 import b64encode
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from jupyter_client.manager import KernelManager

from himalia.client import SyncClient
from himalia.protocol.models import Kernel
from tests.cli.command import COMMAND, DEADLINE_S, RunningCommand, assert_sentence, himalia
from tests.cli.pty_command import TerminalCommand
from tests.servers import RunningServer
from tests.shared_kernel_server import kernel_server

pytestmark = pytest.mark.slow

Command = Callable[..., subprocess.CompletedProcess[str]]
STUBBORN = """
import time
print('on')
while True:
    try:
        time.sleep(30)
    except KeyboardInterrupt:
        print('no')
"""
WAIT = "\nimport os, time\nwhile not os.path.exists({path!r}): time.sleep(0.01)\n"


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with kernel_server(tmp_path_factory.mktemp("kernels")) as server:
        yield server


@pytest.fixture
def env(kernels: RunningServer) -> dict[str, str]:
    return {"HIMALIA_URL": kernels.url}


@pytest.fixture
def command(env: dict[str, str]) -> Command:
    return lambda *arguments, **options: himalia(*arguments, env=env, **options)


@pytest.fixture
def client(kernels: RunningServer) -> Iterator[SyncClient]:
    with SyncClient(kernels.url) as client:
        yield client


@pytest.fixture(scope="module")
def kernel(kernels: RunningServer) -> Kernel:
    """One that most tests run their code on."""
    with SyncClient(kernels.url) as client:
        return client.start_kernel()


@pytest.fixture
def on_kernel(command: Command, kernel: Kernel) -> Command:
    return lambda *arguments, **options: command("run", *arguments, "--kernel", kernel.id, **options)


def png(width: int, height: int) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    rows = zlib.compress(b"".join(b"\0" + b"\x80" * width for _ in range(height)))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


# run: code


def test_output_goes_where_the_code_sent_it(command: Command, client: SyncClient) -> None:
    """stdout is stdout, stderr is stderr, a result is its text; the kernel it started is gone afterwards."""
    before = {kernel.id for kernel in client.kernels()}
    done = command("run", "import sys; print('out'); print('err', file=sys.stderr); 6 * 7")
    assert (done.stdout, done.stderr, done.returncode) == ("out\n42\n", "err\n", 0)
    assert {kernel.id for kernel in client.kernels()} == before


def test_output_is_live(env: dict[str, str], kernel: Kernel, tmp_path: Path) -> None:
    """A line is on stdout while the code still runs."""
    go = tmp_path / "go"
    code = "print('ready')" + WAIT.format(path=str(go)) + "print('done')"
    with RunningCommand("run", code, "--kernel", kernel.id, env=env) as running:
        assert running.line() == "ready"
        go.touch()
        assert running.line() == "done"
        assert running.end() == 0


def test_code_that_fails(on_kernel: Command) -> None:
    """The traceback is on stderr, without escape sequences in a pipe; exit code 1."""
    done = on_kernel("print('before'); 1 / 0")
    assert (done.stdout, done.returncode) == ("before\n", 1)
    assert "ZeroDivisionError: division by zero" in done.stderr
    assert "\x1b" not in done.stderr


def test_a_timeout(on_kernel: Command) -> None:
    """Code that takes too long is interrupted, and that is said in a sentence; exit code 1."""
    assert_sentence(on_kernel("import time; time.sleep(30)", "--timeout", "0.5"), 1, "timeout", "0.5 s")


def test_a_kernel_that_dies(env: dict[str, str], tmp_path: Path) -> None:
    """What was printed before is there, and a sentence says that the kernel died; exit code 1."""
    go = tmp_path / "go"
    code = "print('last words')" + WAIT.format(path=str(go)) + "os.kill(os.getpid(), 9)"
    with RunningCommand("run", code, env=env) as running:
        assert running.line() == "last words"
        go.touch()
        assert running.error_line().startswith("error: the code ended with status died: the kernel died")
        assert running.end() == 1


def test_code_from_a_file_and_from_a_pipe(on_kernel: Command, tmp_path: Path) -> None:
    """A file of code is run as code; so is what comes through a pipe, which then cannot answer ``input()``."""
    script = tmp_path / "script.py"
    script.write_text("print('from a file')\n")
    assert on_kernel(str(script)).stdout == "from a file\n"
    assert on_kernel("-", stdin="print('from a pipe')\n").stdout == "from a pipe\n"
    refused = on_kernel("-", stdin="input('? ')\n")
    assert refused.returncode == 1
    assert "StdinNotImplementedError" in refused.stderr


def test_it_works_where_you_are(env: dict[str, str], tmp_path: Path) -> None:
    """A kernel of its own works in the current directory."""
    done = subprocess.run(
        [*COMMAND, "run", "import os; print(os.getcwd())"],
        cwd=tmp_path,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert done.stdout == f"{tmp_path}\n", done.stderr


def test_a_kernel_is_kept_and_used_again(command: Command, client: SyncClient) -> None:
    """--keep leaves the kernel and tells its id; --kernel takes it, by the beginning of its id, and leaves it too."""
    before = {kernel.id for kernel in client.kernels()}
    kept = command("run", "x = 41", "--keep")
    [id] = {kernel.id for kernel in client.kernels()} - before
    assert f"himalia kernel stop {id}" in kept.stderr
    assert command("run", "x + 1", "--kernel", id[:13]).stdout == "42\n"
    assert command("kernel", "stop", id[:13]).stdout == f"stopped {id}\n"
    assert {kernel.id for kernel in client.kernels()} == before


def test_images(on_kernel: Command, tmp_path: Path) -> None:
    """An image is told by its type and size, or saved with --images."""
    picture = png(30, 20)
    code = (
        "from IPython.display import display\n"
        f"display({{'image/png': {b64encode(picture).decode()!r}, 'text/plain': '<Figure>'}}, raw=True)"
    )
    told = on_kernel(code)
    assert told.stdout == f"[image/png 30x20, {len(picture)} B]\n"
    saved = on_kernel(code, "--images", str(tmp_path / "figures"))
    [path] = (tmp_path / "figures").iterdir()
    assert path.read_bytes() == picture
    assert saved.stdout == f"[image/png 30x20, {len(picture)} B, saved as {path}]\n"


def test_a_result_for_programs(on_kernel: Command) -> None:
    """--json prints the whole result and nothing else, whether the code failed or not."""
    done = on_kernel("print('x'); 1 / 0", "--json")
    result = json.loads(done.stdout)
    assert (done.returncode, done.stderr) == (1, "")
    assert (result["status"], result["error"]["ename"]) == ("error", "ZeroDivisionError")
    assert result["outputs"][0] == {"output_type": "stream", "name": "stdout", "text": "x\n"}


def test_ctrl_c_interrupts_the_code(env: dict[str, str], kernel: Kernel) -> None:
    """The first Ctrl-C is the code's KeyboardInterrupt; the command then ends with 130."""
    code = "import time\ntry:\n    print('on')\n    time.sleep(30)\nfinally:\n    print('cleaned up')"
    with RunningCommand("run", code, "--kernel", kernel.id, env=env) as running:
        assert running.line() == "on"
        running.signal(signal.SIGINT)
        assert running.line() == "cleaned up"
        assert running.end() == 130
        assert running.process.stderr is not None
        assert b"KeyboardInterrupt" in running.process.stderr.read()


def test_a_second_ctrl_c_leaves(env: dict[str, str], client: SyncClient) -> None:
    """Code that does not obey is left; a kernel that the command started ends with it."""
    before = {kernel.id for kernel in client.kernels()}
    with RunningCommand("run", STUBBORN, env=env) as running:
        assert running.line() == "on"
        running.signal(signal.SIGINT)
        assert running.line() == "no"
        running.signal(signal.SIGINT)
        assert running.end() == 130
    assert {kernel.id for kernel in client.kernels()} == before


def test_a_reader_that_leaves_ends_it(env: dict[str, str], client: SyncClient) -> None:
    """``himalia run ... | head -1`` ends, and so does the kernel."""
    before = {kernel.id for kernel in client.kernels()}
    with RunningCommand("run", "import time\nwhile True: print('y'); time.sleep(0.01)", env=env) as running:
        assert running.line() == "y"
        assert running.process.stdout is not None
        running.process.stdout.close()
        assert running.end() == 1
    assert {kernel.id for kernel in client.kernels()} == before


# run: on a terminal


def test_input_is_answered_at_the_terminal(env: dict[str, str], kernel: Kernel) -> None:
    """``input()`` asks whoever sits there; a password is not echoed."""
    code = "from getpass import getpass\nprint(input('who? ')[::-1])\nprint(len(getpass('secret? ')))"
    with TerminalCommand("run", code, "--kernel", kernel.id, env=env) as terminal:
        terminal.until("who? ")
        terminal.type("abc\n")
        terminal.until("cba")
        terminal.until("secret? ")
        terminal.type("hidden\n")
        assert terminal.end() == 0
        assert "6" in terminal.screen
        assert "hidden" not in terminal.screen


def test_ctrl_c_while_it_asks(env: dict[str, str], kernel: Kernel) -> None:
    """Ctrl-C at the prompt interrupts the code that asks."""
    with TerminalCommand("run", "input('who? ')", "--kernel", kernel.id, env=env) as terminal:
        terminal.until("who? ")
        terminal.type("\x03")
        assert terminal.end() == 130
        assert "KeyboardInterrupt" in terminal.screen or "Interrupted by user" in terminal.screen


def test_colours_are_for_terminals_only(env: dict[str, str], on_kernel: Command, kernel: Kernel) -> None:
    """Colours stay on a terminal and are taken out in a pipe; what steers a terminal is never passed on."""
    code = r"print('\x1b[31mred\x1b[0m \x1b]0;title\x07end')"
    assert on_kernel(code).stdout == "red end\n"
    with TerminalCommand("run", code, "--kernel", kernel.id, env=env) as terminal:
        assert terminal.end() == 0
        assert "\x1b[31mred\x1b[0m end" in terminal.screen
        assert "title" not in terminal.screen


def test_the_bar_over_the_cells(env: dict[str, str], kernel: Kernel, tmp_path: Path) -> None:
    """A notebook on a terminal has a bar that counts its cells, and leaves nothing of it behind."""
    path = write_notebook(tmp_path / "n.ipynb", "1", "2", "3")
    with TerminalCommand("run", str(path), "--kernel", kernel.id, env=env) as terminal:
        assert terminal.end() == 0
        assert "3/3 cells" in terminal.screen
        last = terminal.screen.rsplit("3/3 cells", 1)[1]
        assert "\x1b[K" in last


# run: notebooks


def write_notebook(path: Path, *sources: str, tags: dict[int, list[str]] | None = None) -> Path:
    book = nbformat.v4.new_notebook(metadata={"kernelspec": {"name": "python3", "display_name": "Python"}})
    book.cells.append(nbformat.v4.new_markdown_cell("# A notebook"))
    for number, source in enumerate(sources):
        cell = nbformat.v4.new_code_cell(source, execution_count=99)
        cell.outputs = [nbformat.v4.new_output("stream", text="of yesterday\n")]
        cell.metadata["tags"] = (tags or {}).get(number, [])
        book.cells.append(cell)
    nbformat.write(book, path)
    return path


def texts(path: Path) -> list[Any]:
    """What each code cell shows, in short."""
    book = nbformat.read(path, as_version=4)
    nbformat.validate(book)
    return [
        [output.get("text") or output.get("ename") or output["data"]["text/plain"] for output in cell.outputs]
        for cell in book.cells
        if cell.cell_type == "code"
    ]


def test_a_notebook(command: Command, tmp_path: Path) -> None:
    """Its cells run in order on one kernel, in the notebook's directory; the result is beside the original."""
    path = write_notebook(tmp_path / "report.ipynb", "import os\nx = 41", "", "print(os.getcwd())", "x + 1")
    original = path.read_bytes()
    done = command("run", str(path))
    assert (done.stdout, done.returncode) == (f"{tmp_path}\n42\n", 0)
    written = tmp_path / "report.executed.ipynb"
    assert done.stderr == f"wrote {written}\n"
    assert texts(written) == [[], [], [f"{tmp_path}\n"], ["42"]]
    assert path.read_bytes() == original
    assert sorted(file.name for file in tmp_path.glob("*.ipynb")) == ["report.executed.ipynb", "report.ipynb"]
    counts = [cell.execution_count for cell in nbformat.read(written, 4).cells if cell.cell_type == "code"]
    assert counts == [1, None, 2, 3]


def test_a_notebook_stops_at_the_cell_that_fails(on_kernel: Command, tmp_path: Path) -> None:
    """What came before is written, with the error, and nothing of what was there from earlier runs; exit code 1."""
    path = write_notebook(tmp_path / "n.ipynb", "print('a')", "print('b'); 1 / 0", "print('c')")
    done = on_kernel(str(path), "--output", str(tmp_path / "out.ipynb"))
    assert (done.stdout, done.returncode) == ("a\nb\n", 1)
    assert "ZeroDivisionError" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("error: cell 3 of ")
    assert texts(tmp_path / "out.ipynb") == [["a\n"], ["b\n", "ZeroDivisionError"], []]


def test_errors_may_be_allowed(on_kernel: Command, tmp_path: Path) -> None:
    """--allow-errors goes on after each; the tags raises-exception and skip-execution hold for one cell."""
    sources, shown = ("1 / 0", "print('c')", "print('d')"), [["ZeroDivisionError"], ["c\n"], ["d\n"]]
    path = write_notebook(tmp_path / "n.ipynb", *sources)
    assert on_kernel(str(path), "--allow-errors").returncode == 0
    assert texts(tmp_path / "n.executed.ipynb") == shown
    path = write_notebook(
        tmp_path / "n.ipynb", *sources, tags={0: ["raises-exception"], 2: ["skip-execution"]}
    )
    assert on_kernel(str(path)).returncode == 0
    assert texts(tmp_path / "n.executed.ipynb") == [*shown[:2], []]


def test_a_notebook_is_written_when_one_leaves(env: dict[str, str], tmp_path: Path) -> None:
    """Also after Ctrl-C twice the notebook has what its cells said until then."""
    path = write_notebook(tmp_path / "n.ipynb", "print('a')", STUBBORN)
    with RunningCommand("run", str(path), env=env) as running:
        assert [running.line(), running.line()] == ["a", "on"]
        running.signal(signal.SIGINT)
        assert running.line() == "no"
        running.signal(signal.SIGINT)
        assert running.end() == 130
    assert texts(tmp_path / "n.executed.ipynb") == [["a\n"], ["on\nno\n"]]


def test_a_notebook_for_programs(on_kernel: Command, tmp_path: Path) -> None:
    """--json prints a result for each cell, and then what became of the whole."""
    path = write_notebook(tmp_path / "n.ipynb", "print('a')", "1 / 0")
    done = on_kernel(str(path), "--json")
    first, second, whole = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(line["cell"], line["status"]) for line in (first, second)] == [(2, "ok"), (3, "error")]
    assert whole == {
        "notebook": str(tmp_path / "n.executed.ipynb"),
        "cells": 2,
        "executed": 1,
        "failed": True,
    }
    assert (done.stderr, done.returncode) == ("", 1)


def test_a_notebook_in_an_unknown_language(command: Command, tmp_path: Path) -> None:
    """A kernel that the server does not have is told, with those that it has."""
    path = write_notebook(tmp_path / "n.ipynb", "1")
    book = nbformat.read(path, 4)
    book.metadata.kernelspec = {"name": "klingon", "display_name": "Klingon", "language": "klingon"}
    nbformat.write(book, path)
    assert_sentence(command("run", str(path)), 1, "klingon", "python3", "--name")


def test_without_nbformat(tmp_path: Path) -> None:
    """Where nbformat is missing, a sentence says how to install it."""
    path = write_notebook(tmp_path / "n.ipynb", "1")
    (tmp_path / "nbformat.py").write_text("raise ImportError")
    done = himalia("run", str(path), env={"PYTHONPATH": str(tmp_path)})
    assert_sentence(done, 1, "pip install 'himalia[notebooks]'")


@pytest.mark.parametrize(
    ("arguments", "code", "part"),
    [
        (["nowhere.py"], 1, "nowhere.py cannot be read"),
        (["nowhere.ipynb"], 1, "there is no notebook 'nowhere.ipynb'"),
        (["1", "--kernel", "a", "--name", "b"], 2, "--kernel or --name"),
        (["1", "--output", "x.ipynb"], 2, "for notebooks"),
        (["1", "--kernel", "nobody"], 1, "no kernel runs whose id is or begins with 'nobody'"),
        (["1", "--name", "klingon"], 1, "klingon"),
        (["1", "--timeout", "0"], 2, "--timeout"),
    ],
)
def test_what_cannot_be_run(command: Command, arguments: list[str], code: int, part: str) -> None:
    """What cannot be meant is wrong usage, what is not there an error; each in a sentence."""
    assert_sentence(command("run", *arguments), code, part)


def test_a_file_that_is_no_notebook(command: Command, tmp_path: Path) -> None:
    """A file that only has the name of a notebook is told so."""
    path = tmp_path / "n.ipynb"
    path.write_text("{}")
    assert_sentence(command("run", str(path)), 1, "is not a notebook")


# kernel


def test_the_life_of_a_kernel(command: Command, client: SyncClient) -> None:
    """start prints an id that the others take; list has a row for it; stop ends it."""
    id = command("kernel", "start", "python3").stdout.strip()
    listed = command("kernel", "list")
    assert f"{id}   python3" in listed.stdout
    [model] = [one for one in json.loads(command("kernel", "list", "--json").stdout) if one["id"] == id]
    assert (model["execution_state"], model["topic"]) == ("idle", f"kernels.{id}")
    assert command("kernel", "restart", id).stdout == f"restarted {id}\n"
    assert client.kernel(id).pid != model["pid"]
    assert command("kernel", "interrupt", id[:18]).stdout == f"interrupted {id}\n"
    done = command("kernel", "stop", id, "--json")
    assert json.loads(done.stdout) == {"status": "stopped", "id": id}
    assert_sentence(command("kernel", "stop", id), 1, "no kernel runs", "himalia kernel list")


def test_an_id_that_is_not_unique(command: Command, kernel: Kernel) -> None:
    """A beginning that no kernel has, or the empty one, names nobody."""
    assert_sentence(command("kernel", "interrupt", ""), 1, "no kernel runs")
    assert_sentence(command("kernel", "interrupt", "zzz"), 1, "begins with 'zzz'")


def test_a_directory_that_is_not_there(command: Command) -> None:
    """A directory that was asked for has to exist."""
    assert_sentence(command("kernel", "start", "--cwd", "/no/where"), 1, "/no/where")


# watch


def test_late_joiners_see_everything(command: Command, client: SyncClient, env: dict[str, str]) -> None:
    """From the kernel's start: code, output, results, errors and events; then live, until the kernel is stopped."""
    id = client.start_kernel().id
    client.execute(id, "import sys\nprint('early', file=sys.stderr)")
    client.execute(id, "6 * 7")
    client.execute(id, "1 / 0")
    with RunningCommand("watch", id[:13], env=env) as running:
        seen = [running.line()]
        while seen[-1] != "ZeroDivisionError: division by zero":
            seen.append(running.line())
        client.execute(id, "print('live')")
        assert [running.line(), running.line()] == ["In [4]: print('live')", "live"]
        client.stop_kernel(id)
        assert running.line() == "-- the kernel was stopped: asked to"
        assert running.end() == 0
    assert seen[0].startswith("-- python3 started (process ")
    for part in (
        ["In [1]: import sys", "   ...: print('early', file=sys.stderr)", "early"],
        ["In [2]: 6 * 7", "Out[2]: 42"],
    ):
        at = seen.index(part[0])
        assert seen[at : at + len(part)] == part
    again = command("watch", id)
    assert again.returncode == 0
    assert "Out[2]: 42\n" in again.stdout
    assert again.stdout.endswith("live\n-- the kernel was stopped: asked to\n")
    assert command("watch", id, "--last", "0").stdout == ""


def test_watching_for_programs(command: Command, client: SyncClient) -> None:
    """--json prints each record of the topic as tail does."""
    id = client.start_kernel().id
    client.execute(id, "1")
    client.stop_kernel(id)
    lines = [json.loads(line) for line in command("watch", id, "--json").stdout.splitlines()]
    assert [line["offset"] for line in lines] == list(range(len(lines)))
    assert {"execute_request", "execute_result", "kernel_event"} <= {
        line["headers"]["msg_type"] for line in lines
    }
    assert lines[-1]["payload"]["content"]["event"] == "stopped"


def test_watching_nobody(command: Command) -> None:
    """A kernel of which nothing is known is told so."""
    assert_sentence(command("watch", "nobody"), 1, "no kernel is known", "'nobody'")


# attach


@pytest.fixture
def foreign(kernels: RunningServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KernelManager]:
    """A kernel that Jupyter started, and that answers."""
    directory = Path(kernels.settings.log.removeprefix("sqlite://")).parent / "jupyter"
    manager = KernelManager(
        connection_file=str(directory / f"kernel-{tmp_path_factory.mktemp('f').name}.json")
    )
    manager.start_kernel()
    try:
        client = manager.blocking_client()
        client.start_channels()
        client.wait_for_ready(timeout=60)
        client.stop_channels()
        yield manager
    finally:
        manager.shutdown_kernel(now=True)


def test_attaching(command: Command, client: SyncClient, foreign: KernelManager) -> None:
    """A kernel that something else started is kept from now on; stopping it only lets it go."""
    [id] = command("attach", foreign.connection_file).stdout.splitlines()
    assert client.kernel(id).foreign
    assert command("run", "print('heard')", "--kernel", id).stdout == "heard\n"
    assert "attached" in command("kernel", "list").stdout
    assert_sentence(command("kernel", "restart", id), 1, "not managed by Himalia")
    assert command("kernel", "stop", id).returncode == 0
    assert foreign.is_alive()


def test_attaching_to_all(command: Command, foreign: KernelManager) -> None:
    """--all takes every kernel of Jupyter's runtime directory that answers, and says why it passes over others."""
    path = Path(foreign.connection_file)
    broken = path.with_name("kernel-broken.json")
    broken.write_text("{}")
    done = command("attach", "--all")
    assert done.returncode == 0
    assert path.stem.removeprefix("kernel-") in done.stdout.splitlines()
    assert "kernel-broken.json is skipped" in done.stderr
    broken.unlink()
    assert command("kernel", "stop", path.stem.removeprefix("kernel-")).returncode == 0


def test_attaching_to_what_is_not_there(command: Command) -> None:
    """A file or --all is needed, and the file has to exist."""
    assert_sentence(command("attach"), 2, "--all")
    assert_sentence(command("attach", "kernel-nowhere.json"), 1, "kernel-nowhere.json")
