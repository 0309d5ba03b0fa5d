"""``himalia pipeline run`` that is asked to stop while it works."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import psutil
import pytest
from pyspark.sql import SparkSession

from tests.cli.command import RunningCommand
from tests.cli.up_process import assert_all_gone
from tests.servers import DEADLINE_S, RunningServer
from tests.spark.conftest import QUICK
from tests.spark.pipeline_runs import all_contents, busy_kernel, feed, run_once

BATCH_RECORDS = 20
SPARK_WITHIN_S = 250.0
TOPIC = "kernels.sigterm"


def start_run(server: RunningServer, warehouse: Path) -> RunningCommand:
    """One that stays, and cuts what is there into many batches."""
    options = " ".join(f'--conf "{name}={value}"' for name, value in QUICK.items())
    env = {"HIMALIA_TOKEN": server.token or "", "PYSPARK_SUBMIT_ARGS": f"{options} pyspark-shell"}
    flags = {
        "--every": "1s",
        "--batch-records": str(BATCH_RECORDS),
        "--topics": TOPIC,
        "--master": "local[2]",
        "--warehouse": str(warehouse),
        "--url": server.url,
    }
    given = [word for flag in flags.items() for word in flag]
    return RunningCommand("pipeline", "run", "--no-feedback", *given, env=env, deadline_s=SPARK_WITHIN_S)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_sigterm_in_mid_batch(spark: SparkSession, server: RunningServer, tmp_path: Path) -> None:
    """It is no failure and leaves no process; in the next run no row is lost and none is there twice."""
    feed(server, busy_kernel("sigterm", 30))
    with start_run(server, tmp_path / "stopped") as run:
        while not (line := run.error_line()).startswith("batch 1:"):
            assert run.process.poll() is None, line
        # There is more, so the next batch has begun.
        family = psutil.Process(run.process.pid).children(recursive=True)
        assert "java" in {process.name() for process in family}
        run.signal(signal.SIGTERM)
        assert run.process.wait(SPARK_WITHIN_S) == 0
        assert_all_gone(family, within_s=DEADLINE_S)
        out, told = run.process.communicate()
        assert b"stopping; a second signal stops at once" in told
        assert b"Traceback" not in told
    assert re.match(rb"read \d+ records in \d+ batch", out), out
    assert run_once(server, tmp_path / "stopped", topics=[TOPIC], feedback=False).rows > BATCH_RECORDS
    run_once(server, tmp_path / "whole", topics=[TOPIC], feedback=False)
    assert all_contents(tmp_path / "stopped") == all_contents(tmp_path / "whole")
