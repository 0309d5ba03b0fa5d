"""Which URLs name a log."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from himalia.errors import ConfigurationError
from himalia.log import open_log, sqlite_path
from himalia.log.memory import MemoryLog

from .backends import log_options


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("sqlite:///tmp/x.db", "/tmp/x.db"),
        ("sqlite:////tmp/x.db", "/tmp/x.db"),
        ("SQLite:///tmp/with space/%41?.db", "/tmp/with space/%41?.db"),
        ("sqlite:///~/x.db", "~/x.db"),
        ("sqlite:~/x.db", "~/x.db"),
        ("sqlite:x.db", "x.db"),
        ("sqlite:./a/x.db", "a/x.db"),
        ("sqlite:/tmp/x.db", "/tmp/x.db"),
    ],
)
def test_paths(url: str, path: str) -> None:
    """Three slashes are an absolute path, ``~`` is the home directory, none is the current one."""
    expected = Path(path).expanduser().absolute()
    assert sqlite_path(url) == expected
    log = open_log(url)
    assert log.url == f"sqlite://{expected}"
    assert sqlite_path(log.url) == expected


@pytest.mark.parametrize("url", ["memory://", "memory:", "MEMORY://"])
def test_memory(url: str) -> None:
    """``memory://`` is a log in memory."""
    log = open_log(url, log_options(dedup_window_s=1.0))
    assert isinstance(log, MemoryLog)
    assert log.url == "memory://"


@pytest.mark.parametrize(
    "url",
    [
        "",
        "log.db",
        "/tmp/log.db",
        "postgres://x/y",
        "nats://host",
        "memory://x",
        "sqlite:",
        "sqlite:///",
        "sqlite://h/x",
    ],
)
def test_anything_else_is_refused(url: str) -> None:
    """Any other URL is a wrong setting, and the message says what a right one looks like."""
    with pytest.raises(ConfigurationError, match="sqlite:///"):
        open_log(url)


def test_only_what_is_asked_for_is_imported() -> None:
    """A log in memory does not load the SQLite one."""
    program = (
        "import sys; from himalia.log import open_log; open_log('memory://'); print('sqlite3' in sys.modules)"
    )
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert output.stdout.strip() == "False"
