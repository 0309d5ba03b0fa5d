"""What ``make`` says where it cannot bring what is needed."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.page.browser import chromium_path

ROOT = Path(__file__).parents[2]
NOWHERE = {"PIP_INDEX_URL": "http://127.0.0.1:9/", "PIP_RETRIES": "0", "PIP_NO_CACHE_DIR": "1"}


def make(target: str, directory: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a target of a copy of the Makefile, in an empty directory."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, directory)
    program = shutil.which("make")
    assert program is not None
    return subprocess.run(
        [program, target],
        cwd=directory,
        # Not as a part of the make that runs the tests, which would have it say where it works.
        env={**{name: value for name, value in os.environ.items() if "MAKE" not in name}, **environment},
        capture_output=True,
        text=True,
        timeout=110,
    )


@pytest.mark.slow
def test_without_a_network(tmp_path: Path) -> None:
    """The packages cannot be had: the last words of make's own are what to do. Nothing passes for installed."""
    done = make("setup", tmp_path, **NOWHERE)
    assert done.returncode != 0
    assert "connect to a network" in done.stdout.splitlines()[-1], done.stdout
    assert not (tmp_path / ".venv" / ".installed").exists()


def test_without_a_browser_and_without_the_right_to_install_one(tmp_path: Path) -> None:
    """Then it says what is left out, and what to install."""
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "id").write_text("#!/bin/sh\necho 1000\n")
    (tools / "id").chmod(0o755)
    done = make("browser", tmp_path, PATH=str(tools))
    assert done.returncode == 0, done.stderr
    assert "tests of the page are skipped" in done.stdout and "apt-get install chromium" in done.stdout


@pytest.mark.parametrize(("ci", "outcome"), [("", pytest.skip.Exception), ("true", pytest.fail.Exception)])
def test_a_missing_browser_is_skipped_by_people_and_fails_in_ci(
    ci: str, outcome: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("CI", ci)
    with pytest.raises(outcome, match="apt-get install chromium"):
        chromium_path()
