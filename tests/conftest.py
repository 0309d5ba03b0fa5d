"""Real servers on free ports, for every test that talks to one."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tests.servers import RunningServer, start_server

ARCHIVE = Path(__file__).parents[1] / ".venv" / "spark.jsa"
"""What ``tests.spark.class_archive`` writes."""

# The time of one example says nothing on a busy machine: tests have deadlines of their own.
settings.register_profile("himalia", deadline=None)
settings.load_profile("himalia")


@pytest.fixture(autouse=True, scope="session")
def _quick_java() -> Iterator[None]:
    """Drivers of Spark that tests start live for seconds: to have their code compiled twice takes longer than that."""
    options = "-XX:TieredStopAtLevel=1"
    if ARCHIVE.exists() and " " not in str(ARCHIVE):
        # Not a word if it is another Java's: it is not used then.
        options += f" -Xlog:disable -XX:SharedArchiveFile={ARCHIVE}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_SUBMIT_OPTS", options)
        yield


def pytest_configure() -> None:
    """Give child processes default signals, also under ``nohup`` and in a shell's background.

    There SIGHUP or SIGINT is ignored, and a child inherits that: it could not be ended as a user ends it. A handler is
    not inherited, so one that does nothing keeps the signal from this process only.
    """
    for number in (signal.SIGHUP, signal.SIGINT):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Quick tests first: a mistake shows in seconds."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is not None)


@pytest.fixture(autouse=True)
def _own_runtime_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test sees the developer's own server or tables, and none leaves a trace of its own."""
    monkeypatch.setenv("HIMALIA_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setenv("HIMALIA_WAREHOUSE", str(tmp_path / "warehouse"))
    for name in ("HIMALIA_URL", "HIMALIA_TOKEN"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., RunningServer]]:
    """Start servers with the settings given; they end with the test."""
    servers: list[RunningServer] = []

    def start(**settings: Any) -> RunningServer:
        settings.setdefault("log", f"sqlite://{tmp_path}/log.db")
        servers.append(start_server(**settings))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


@pytest.fixture
def server(serve: Callable[..., RunningServer]) -> RunningServer:
    """A server without authentication on a durable log of its own."""
    return serve(auth=False)
