"""One Spark for all tests of a run, on two cores and without a user interface."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from himalia.spark.session import start_session
from tests.servers import RunningServer, start_server

QUICK = {
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}

TIMEOUT_S = 400


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Jobs of Spark that take seconds take minutes on a busy machine."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    scratch = tmp_path_factory.mktemp("spark")
    conf = QUICK | {
        "spark.local.dir": str(scratch),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
    }
    session = start_session("local[2]", app="tests", conf=conf)
    yield session
    session.stop()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """One server for the tests of a file, on its own durable log, with a token."""
    directory = tmp_path_factory.mktemp("server")
    os.environ["HIMALIA_RUNTIME_DIR"] = str(directory / "runtime")
    running = start_server(log=f"sqlite://{directory}/log.db", kernels=False)
    yield running
    running.stop()


@pytest.fixture
def publish(server: RunningServer) -> Callable[..., None]:
    """Publish payloads to a topic of the server, which is made if it is not there."""

    def all_of(topic: str, *payloads: Any, headers: dict[str, str] | None = None) -> None:
        with server.http(headers=server.headers) as http:
            http.post("/topics", json={"name": topic})
            body = [{"payload": payload, "headers": headers or {}} for payload in payloads]
            http.post(f"/topics/{topic}/messages", json=body).raise_for_status()

    return all_of


@pytest.fixture
def warehouse(tmp_path: Path) -> Path:
    return tmp_path / "warehouse"
