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
from tests.spark.pipeline_runs import all_contents, dead_kernel, feed, run_once, stored

BATCH_RECORDS = 20
PROGRAM = f"""
import sys
from pathlib import Path
from himalia.spark.pipeline.runner import Pipeline, PipelineOptions, Progress

def tell(progress: Progress) -> None:
    print(progress.batch, progress.stage, flush=True)

url, token, warehouse = sys.argv[1:]
options = PipelineOptions(master="local[2]", topics=["kernels.kill9"], batch_records={BATCH_RECORDS})
with Pipeline(url, token, Path(warehouse), options, on_progress=tell) as pipeline:
    pipeline.run(0.1)
"""


@contextmanager
def driver(server: RunningServer, warehouse: Path) -> Iterator[subprocess.Popen[str]]:
    """The pipeline in a process of its own, which tells each stage of each batch."""
    options = " ".join(f'--conf "{name}={value}"' for name, value in QUICK.items())
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, server.url, server.token or "", str(warehouse)],
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
    """Until the process tells that it comes to a stage of a batch."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.split() == [str(batch), stage]:
            return
    raise AssertionError(f"it ended with {process.wait()} before it came to {stage!r} of batch {batch}")


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_killed_five_times(spark: SparkSession, server: RunningServer, tmp_path: Path) -> None:
    """No row is lost, none is there twice, and each result was published once.

    There is no checkpoint to lose. All that is not in a commit (staged files, Spark's scratch, the lock) is deleted
    once in between. In the end a run takes up the rest.
    """
    feed(server, dead_kernel("kill9", 5))
    expected, warehouse = tmp_path / "expected", tmp_path / "warehouse"
    options: dict[str, Any] = {"topics": ["kernels.kill9"], "batch_records": BATCH_RECORDS}
    run_once(server, expected, **options)
    told = {name: len(stored(server, f"pipeline.{name}")) for name in ("topic_activity", "errors")}

    # Batches after the first go on from a state; the last one has orphans.
    for batch, stage, delay_s in (
        (1, "messages", 0.0),
        (1, "tables", 0.3),
        (2, "tables", 0.0),
        (2, "state", 0.0),
        (3, "positions", 0.0),
    ):
        with driver(server, warehouse) as process:
            wait_for(process, batch, stage)
            time.sleep(delay_s)
            process.send_signal(signal.SIGKILL)
        if stage == "state":
            for left in warehouse.rglob("_staging"):
                shutil.rmtree(left)
            (warehouse / "lock").unlink()

    run_once(server, warehouse, **options)
    assert all_contents(warehouse) == all_contents(expected)
    assert {name: len(stored(server, f"pipeline.{name}")) for name in told} == {
        name: 2 * count for name, count in told.items()
    }
