"""``himalia up``, as a process with processes of its own."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import time
from pathlib import Path

import httpx
import psutil
import pytest

from himalia.cli.process.supervisor import PIPELINE_ENDS_WITHIN_S
from tests.cli.command import COMMAND, DEADLINE_S, RunningCommand, assert_sentence, himalia
from tests.cli.pty_command import TerminalCommand
from tests.cli.up_process import UpProcess, assert_all_gone
from tests.server.raw_clients import until

pytestmark = pytest.mark.slow

KEY = "a-key-of-somebody-0123456789"
SPARK_WITHIN_S = 120.0
NO_JAVA = {"JAVA_HOME": "/no/such/java"}
PR_CAPBSET_DROP, CAP_DAC_OVERRIDE = 24, 1
"""Of Linux: linux/prctl.h, linux/capability.h."""


def test_it_says_where_it_is_and_what_to_try(tmp_path: Path) -> None:
    """The first line is the address with its token, which opens everything; commands to try follow."""
    with UpProcess(tmp_path, "--no-pipeline") as up:
        assert up.greeting.startswith("Himalia is ready at http://127.0.0.1:")
        assert up.line() == "Open that address, or try in another terminal:"
        assert "publish orders" in up.line()
        assert "run 'print(" in up.line()
        with up.http() as http:
            assert http.get("/topics").json() == {"topics": []}
        assert up.part("pipeline run") is None


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_no_process(tmp_path: Path, number: int) -> None:
    """The server and the kernels that somebody has started on it end, in order; the exit code is 0."""
    with UpProcess(tmp_path, "--no-pipeline", env={"HIMALIA_KERNELS_STAY": "true"}) as up:
        with up.http() as http:
            http.post("/api/kernels", json={}).raise_for_status()
        family = up.family()
        assert up.part("keeper/launcher.py") and up.part("himalia.cli serve")
        up.signal(number)
        assert up.end() == 0
        assert_all_gone(family)
        assert up.errors() == ""


def test_ctrl_c_at_the_terminal(tmp_path: Path) -> None:
    """The key goes to ``up`` alone, which ends the rest in order, and says nothing that looks like a failure."""
    flags = ("--no-pipeline", "--demo", "--port", "0", "--log", f"sqlite://{tmp_path}/log.db")
    with TerminalCommand("up", *flags) as terminal:
        terminal.until("run 'print(")
        family = psutil.Process(terminal.process.pid).children(recursive=True)
        terminal.type("\x03")
        assert terminal.end() == 0
        assert_all_gone(family)
        assert "Stopping, in order" in terminal.screen
        for word in ("Traceback", "error", "warning"):
            assert word not in terminal.screen


def test_killed_it_leaves_no_process_either(tmp_path: Path) -> None:
    """What it has started notices that it is gone, however it went, and ends in order."""
    with UpProcess(tmp_path, "--demo", env=NO_JAVA) as up:
        with up.http() as http:
            until(lambda: http.get("/api/kernels").json())
        family = up.family()
        assert up.part("keeper/launcher.py") and up.part("himalia.demo")
        up.process.kill()
        assert_all_gone(family, within_s=DEADLINE_S)


def test_ctrl_c_while_the_server_starts(tmp_path: Path) -> None:
    """Who changes their mind at once gets no traceback, and nothing is left."""
    with RunningCommand("up", "--port", "0", "--log", f"sqlite://{tmp_path}/log.db") as up:
        until(lambda: psutil.Process(up.process.pid).children())
        family = psutil.Process(up.process.pid).children(recursive=True)
        up.signal(signal.SIGINT)
        assert up.end() == 0
        assert_all_gone(family)
        assert up.process.stderr is not None
        assert up.process.stderr.read() == b""


def test_ctrl_c_while_spark_starts(tmp_path: Path) -> None:
    """There is no moment at which Ctrl-C leaves a Java behind."""
    with UpProcess(tmp_path, deadline_s=SPARK_WITHIN_S) as up:
        until(lambda: up.part("org.apache.spark") is not None)
        family = up.family()
        up.signal(signal.SIGINT)
        assert up.end() == 0
        assert_all_gone(family)
        assert up.errors() == ""


def test_a_second_ctrl_c_does_not_wait_for_the_pipeline(tmp_path: Path) -> None:
    """A pipeline that cannot end is waited for; who is in a hurry need not. The server ends in order all the same."""
    with UpProcess(tmp_path) as up:
        until(lambda: up.part("org.apache.spark") is not None)
        family = up.family()
        pipeline = up.part("pipeline run")
        assert pipeline is not None
        pipeline.suspend()
        began = time.monotonic()
        up.signal(signal.SIGINT)
        while not up.line().startswith("Stopping"):
            pass
        up.signal(signal.SIGINT)
        assert up.end() == 0
        assert time.monotonic() - began < PIPELINE_ENDS_WITHIN_S / 2
        assert_all_gone(family)


def test_a_second_one_says_where_the_first_is(tmp_path: Path) -> None:
    """One log has one server: the second gives the first one's address, with its token, and exits 1."""
    with UpProcess(tmp_path, "--no-pipeline") as up:
        second = himalia("up", "--port", "0", "--log", up.log)
        assert_sentence(second, 1, "runs on this log already", f"{up.url}/?token={up.token}")


def test_another_log_is_another_server(tmp_path: Path) -> None:
    """Each log has its own server and its own tables, which are beside it."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    with (
        UpProcess(tmp_path / "one", "--no-pipeline") as one,
        UpProcess(tmp_path / "two", "--no-pipeline") as two,
    ):
        assert one.url != two.url


def test_the_tables_are_beside_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Server and pipeline are told the same place, and so is the reader."""
    monkeypatch.delenv("HIMALIA_WAREHOUSE")
    with UpProcess(tmp_path, env=NO_JAVA) as up:
        said = [up.line() for _ in range(5)]
        assert said[-1].endswith(f"--warehouse {tmp_path}/warehouse")
        for words in ("himalia.cli serve", "himalia.cli pipeline run"):
            part = up.part(words)
            assert part is None or f"--warehouse={tmp_path}/warehouse" in part.cmdline()


def test_without_a_java_the_page_is_there(tmp_path: Path) -> None:
    """That the pipeline does not run is one sentence, with what to do; all the rest works."""
    with UpProcess(tmp_path, env=NO_JAVA) as up:
        told = up.error_line()
        assert told.startswith(
            "warning: the pipeline has stopped: JAVA_HOME is /no/such/java, but there is no"
        )
        assert "correct it or unset it" in told
        assert "pipeline run --every 5s" in told and "starts the pipeline again" in told
        with up.http() as http:
            assert http.get("/").status_code == 200
        up.signal(signal.SIGTERM)
        assert up.end() == 0
        assert up.errors() == ""


def test_a_pipeline_that_dies_is_told(tmp_path: Path) -> None:
    """Whatever ends it: that is said, and the server goes on."""
    with UpProcess(tmp_path) as up:
        until(lambda: up.part("pipeline run") is not None)
        pipeline = up.part("pipeline run")
        assert pipeline is not None
        pipeline.kill()
        assert "the pipeline has stopped: no reason given (exit code -9)" in up.error_line()
        with up.http() as http:
            assert http.get("/health").json()["status"] == "ok"


def test_a_server_that_dies_ends_it(tmp_path: Path) -> None:
    """Without its server nothing goes on; that is said, and the exit code is not 0."""
    with UpProcess(tmp_path, "--no-pipeline") as up:
        server = up.part("himalia.cli serve")
        assert server is not None
        family = up.family()
        server.kill()
        assert up.end() == 1
        assert "the server ended unexpectedly" in up.errors()
        assert_all_gone(family)


def test_the_demo_works_and_stops(tmp_path: Path) -> None:
    """Orders come in and go on coming, a kernel works; with Ctrl-C its topic ends with the kernel's stop."""
    with UpProcess(tmp_path, "--no-pipeline", "--demo") as up, up.http() as http:
        until(lambda: http.get("/topics").json()["topics"] and http.get("/api/kernels").json())
        kernel = http.get("/api/kernels").json()[0]["id"]
        until(lambda: http.get("/stats").json()["topics"]["demo.orders"]["messages"] > 42)
        until(lambda: http.get("/stats").json()["topics"][f"kernels.{kernel}"]["messages"] > 10)
        up.signal(signal.SIGINT)
        assert up.end() == 0
        assert up.errors() == ""
        log = up.log
    with UpProcess(tmp_path, "--no-pipeline") as again, again.http() as http:
        assert again.log == log
        last = http.get(f"/topics/kernels.{kernel}/messages?last=1").json()["messages"][0]
        assert last["message"]["payload"]["content"]["event"] == "stopped"
        assert last["message"]["payload"]["content"]["reason"] == "asked to"


@pytest.mark.parametrize(
    ("flags", "part"), [(["--port", "70000"], "65535"), (["--every", "soon"], "'soon' is not a duration")]
)
def test_wrong_usage(flags: list[str], part: str) -> None:
    """A value that cannot be is told before anything is started."""
    assert_sentence(himalia("up", *flags), 2, part, "himalia up --help")


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    """It says which port, and how to choose another."""
    with UpProcess(tmp_path, "--no-pipeline") as up:
        other = himalia("up", "--port", up.port, "--log", f"sqlite://{tmp_path}/other.db")
        assert_sentence(other, 1, f"127.0.0.1:{up.port}", "--port", "HIMALIA_PORT")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home directory in which nobody can write."""
    home = tmp_path / "home"
    home.mkdir(mode=0o555)
    return home


def obey_permissions() -> None:
    """Have root, for whom nothing is read-only, respect permissions as everybody does, from the next exec on."""
    if os.geteuid() == 0 and ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, CAP_DAC_OVERRIDE) != 0:
        raise OSError("root cannot give up this capability here")


def up_in(home: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    """Run it with this home."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HIMALIA_", "XDG_"))}
    return subprocess.run(
        [*COMMAND, "up", "--port", "0", *flags],
        env={**kept, "HOME": str(home)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        preexec_fn=obey_permissions,
    )


def test_a_home_that_cannot_be_written(home: Path) -> None:
    """The log would be there: it says what to make writable, or to name another."""
    assert_sentence(up_in(home), 1, "the log cannot be written", str(home), "--log")


def test_a_home_that_cannot_be_written_and_a_log_elsewhere(home: Path) -> None:
    """Other programs would not find the server: it says what to set."""
    log = f"sqlite://{home.parent}/log.db"
    assert_sentence(up_in(home, "--log", log), 1, str(home), "HIMALIA_RUNTIME_DIR")


def test_a_server_with_keys_needs_one_for_the_others(tmp_path: Path) -> None:
    """Where keys are configured no token is made, so those beside the server have to be given one."""
    keys = tmp_path / "keys.toml"
    rights = "\n".join(f'{right} = [">"]' for right in ("subscribe", "publish", "manage", "execute"))
    keys.write_text(f'[keys.admin]\nkey = "{KEY}"\n{rights}\n')
    keys.chmod(0o600)
    env = {"HIMALIA_KEYS_FILE": str(keys)}
    log = f"sqlite://{tmp_path}/log.db"
    assert_sentence(himalia("up", "--log", log, env=env), 1, "put a key into HIMALIA_TOKEN")
    with (
        UpProcess(tmp_path, "--no-pipeline", "--demo", env={**env, "HIMALIA_TOKEN": KEY}) as up,
        httpx.Client(base_url=up.url, headers={"X-API-Key": KEY}) as http,
    ):
        until(lambda: "demo.orders" in {topic["name"] for topic in http.get("/topics").json()["topics"]})
