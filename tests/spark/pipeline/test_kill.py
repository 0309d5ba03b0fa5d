"""A driver that is really killed, with kill -9, again and again."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.servers import RunningServer
from tests.spark.conftest import QUICK
from tests.spark.pipeline_runs import all_contents, dead_kernel, feed, run_once

BATCH_RECORDS = 20
PROGRAM = f"""
import sys
from pathlib import Path
from himalia.spark.pipeline.runner import Pipeline, PipelineOptions, Progress

def tell(progress: Progress) -> None:
    print(progress.batch, progress.stage, flush=True)

url, token, warehouse, topic = sys.argv[1:]
options = PipelineOptions(master="local[2]", topics=[topic], batch_records={BATCH_RECORDS})
with Pipeline(url, token, Path(warehouse), options, on_progress=tell) as pipeline:
    pipeline.run(0.1)
"""


@contextmanager
def driver(server: RunningServer, warehouse: Path, topic: str) -> Iterator[subprocess.Popen[str]]:
    """The pipeline in a separate process, which prints each stage of each batch."""
    options = " ".join(f'--conf "{name}={value}"' for name, value in QUICK.items())
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, server.url, server.token or "", str(warehouse), topic],
        env={**os.environ, "PYSPARK_SUBMIT_ARGS": f"{options} pyspark-shell"},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def wait_for(process: subprocess.Popen[str], batch: int, stage: str) -> None:
    """Wait until the process reaches a stage of a batch."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.split() == [str(batch), stage]:
            return
    raise AssertionError(f"it ended with {process.wait()} before it came to {stage!r} of batch {batch}")


# Batches after the first continue from a state; the last one has orphans.
IN_EVERY_STAGE = (
    (1, "messages", 0.0),
    (1, "tables", 0.3),
    (2, "tables", 0.0),
    (2, "state", 0.0),
    (3, "positions", 0.0),
)
TWICE = ((1, "tables", 0.3), (2, "state", 0.0))


def count_published(server: RunningServer) -> dict[str, int]:
    """The number of published rows, by table."""
    with server.http(headers=server.headers) as http:
        topics = {topic["name"]: topic["end"] for topic in http.get("/topics").json()["topics"]}
    return {table: topics.get(f"pipeline.{table}", 0) for table in ("topic_activity", "errors")}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "kills",
    [
        pytest.param(TWICE, id="twice"),
        pytest.param(IN_EVERY_STAGE, id="in every stage", marks=pytest.mark.soak),
    ],
)
def test_killed(
    spark: SparkSession,
    server: RunningServer,
    tmp_path: Path,
    kills: tuple[tuple[int, str, float], ...],
) -> None:
    """No row is lost, none is there twice, and each result was published once.

    There is no checkpoint to lose. Everything that is not in a commit (staged files, Spark's scratch, the lock) is
    deleted once in between. In the end a run reads the rest.
    """
    name = f"kill{len(kills)}"
    before = count_published(server)
    feed(server, dead_kernel(name, 5))
    expected, warehouse = tmp_path / "expected", tmp_path / "warehouse"
    options: dict[str, Any] = {"topics": [f"kernels.{name}"], "batch_records": BATCH_RECORDS}
    run_once(server, expected, **options)
    once = count_published(server)

    for batch, stage, delay_s in kills:
        with driver(server, warehouse, f"kernels.{name}") as process:
            wait_for(process, batch, stage)
            time.sleep(delay_s)
            process.send_signal(signal.SIGKILL)
        if stage == "state":
            for left in warehouse.rglob("_staging"):
                shutil.rmtree(left)
            (warehouse / "lock").unlink()

    run_once(server, warehouse, **options)
    assert all_contents(warehouse) == all_contents(expected)
    assert count_published(server) == {table: 2 * once[table] - before[table] for table in once}
    assert all(once[table] > before[table] for table in once)
