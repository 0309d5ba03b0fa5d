"""Children that end with their parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from himalia.child_process import lifeline_command
from tests.cli.command import DEADLINE_S

PARENT_OF_SLEEPER = """
import subprocess, sys
from himalia.child_process import kill_with_parent
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], preexec_fn=kill_with_parent())
print(child.pid, flush=True)
child.wait()
"""


def test_the_lifeline(tmp_path: Path) -> None:
    """A module that is run by it gets its own arguments, and SIGTERM when its parent has ended."""
    (tmp_path / "sleeper.py").write_text("import sys, time\nprint(sys.argv[1], flush=True)\ntime.sleep(60)\n")
    with subprocess.Popen(
        lifeline_command("sleeper", "hello"),
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None and process.stdin is not None
        assert process.stdout.readline() == "hello\n"
        process.stdin.close()
        assert process.wait(DEADLINE_S) == -signal.SIGTERM


def test_the_module_cannot_read_its_lifeline(tmp_path: Path) -> None:
    """The module's stdin is empty: what it read would be missing from the lifeline."""
    (tmp_path / "reader.py").write_text("import sys\nprint(repr(sys.stdin.read()), flush=True)\n")
    with subprocess.Popen(
        lifeline_command("reader"), cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write("words")
        process.stdin.flush()
        assert process.stdout.readline() == "''\n"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has PR_SET_PDEATHSIG")
def test_a_child_is_killed_with_its_parent() -> None:
    """However the parent ends, the child does not outlive it."""
    with subprocess.Popen(
        [sys.executable, "-c", PARENT_OF_SLEEPER], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        os.kill(parent.pid, signal.SIGKILL)
    gone, _ = psutil.wait_procs([child], timeout=DEADLINE_S)
    assert gone == [child]
