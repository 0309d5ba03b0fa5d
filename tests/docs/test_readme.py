"""The README's first screen shows what really happens."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from himalia.settings import Settings
from tests.cli.up_process import UpProcess
from tests.servers import RunningServer

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
END = "-- end of command --"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def steps(block: str) -> list[tuple[str, str]]:
    """Each command of a console block with the output shown below it."""
    parts = re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]
    return [(command, output) for command, _, output in (part.partition("\n") for part in parts)]


def without_times(text: str) -> str:
    return re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}", "TIME", text)


def without_ids(text: str) -> str:
    return re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "ID", text)


def assert_first_commands_pass(up: UpProcess) -> None:
    """Beside a server and its pipeline they print what the README shows, and the pipeline is asked for its tables."""
    environment = {**os.environ, **up.env, "NO_COLOR": "1"}
    environment["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    for command, output in [*steps(blocks("console")[0]), ("himalia pipeline run --once", None)]:
        done = subprocess.run(
            command, shell=True, env=environment, capture_output=True, text=True, timeout=up.deadline_s
        )
        assert done.returncode == 0, done.stderr
        if output is None:
            assert "a pipeline runs already and has read" in done.stdout
        else:
            assert without_times(done.stdout) == without_times(output)


def test_the_first_screen_names_the_limits() -> None:
    """Whoever reads no further knows that records are deleted by default, when, and that there is one node."""
    first_screen = " ".join(README.split("```")[0].split())
    days = Settings().retention_age_s / 86_400
    assert f"records are deleted after {days:g} days" in first_screen
    assert "one node" in first_screen


@pytest.fixture
def environment() -> dict[str, str]:
    return {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "NO_COLOR": "1"}


@pytest.mark.slow
def test_the_commands_print_what_the_readme_shows(server: RunningServer, environment: dict[str, str]) -> None:
    """Four commands, their real output."""
    shown = steps(blocks("console")[0])
    assert len(shown) == 4
    for command, output in shown:
        done = subprocess.run(
            command, shell=True, env=environment, capture_output=True, text=True, timeout=60
        )
        assert (without_times(done.stdout), done.returncode) == (without_times(output), 0), done.stderr


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_the_first_commands_pass_beside_make_run(tmp_path: Path) -> None:
    """Beside ``himalia up``, as beside the demo (``tests/page/test_up_demo.py``)."""
    env = {
        "HIMALIA_RUNTIME_DIR": str(tmp_path / "runtime"),
        "HIMALIA_WAREHOUSE": str(tmp_path / "warehouse"),
    }
    with UpProcess(tmp_path, env=env, deadline_s=200.0) as up:
        assert_first_commands_pass(up)


@pytest.mark.slow
def test_running_code_prints_what_the_readme_shows(
    server: RunningServer, environment: dict[str, str]
) -> None:
    """The commands of "Run code", one after the other in one shell, on a real kernel."""
    shown = steps(blocks("console")[1])
    assert len(shown) == 5
    script = "set -e\n" + "".join(f"{command}\necho {END}\n" for command, _ in shown)
    done = subprocess.run(["sh", "-c", script], env=environment, capture_output=True, text=True, timeout=100)
    printed = without_ids(done.stdout).split(f"{END}\n")
    assert (printed, done.returncode) == ([*(without_ids(output) for _, output in shown), ""], 0), done.stderr


@pytest.mark.slow
def test_the_python_example_runs(server: RunningServer, environment: dict[str, str]) -> None:
    """The program in the README works as it stands."""
    [program] = blocks("python")
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "stored at offset 0\norders 0 {'sku': 'A-17', 'quantity': 2}\n", done.stderr


def test_the_make_targets_exist() -> None:
    """What the README tells to type is in the Makefile."""
    makefile = (ROOT / "Makefile").read_text()
    for target in set(re.findall(r"make ([a-z]+)", README)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
