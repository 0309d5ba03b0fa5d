"""Real clusters from the pip package on loopback: executors are other processes, and need not have us installed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark
import pytest

from himalia.spark.session import use_java
from himalia.spark.shipping import write_package
from tests.serving import RunningServer

START_MAX_S = 120.0
RUN_MAX_S = 240
ROWS = 500
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For a Java that does little before it ends."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(500)]

# What executors are given besides the standard library. Not us, and nothing that we need elsewhere.
BARE = ("pyspark", "py4j", "pyarrow", "numpy", "numpy.libs", "pandas", "dateutil", "pytz", "tzdata", "six.py")

PROGRAM = """
import json, sys
from himalia.spark.session import start_session

master, url, token, conf = sys.argv[1], sys.argv[2], sys.argv[3], json.loads(sys.argv[4])
spark = start_session(master, conf=conf)
if "spark.submit.pyFiles" in conf:
    from himalia.spark.connector.source import HimaliaDataSource
    spark.dataSource.register(HimaliaDataSource)
else:
    from himalia.spark.shipping import ship
    ship(spark)
records = spark.read.format("himalia").options(
    url=url, token=token, subscribe="clustered", minPartitions="4"
).load()
found = records.selectExpr("count(*) AS rows", "sum(offset) AS offsets", "sum(int(value)) AS numbers").first()
executors = spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1
print(json.dumps({**found.asDict(), "executors": executors}))
spark.stop()
"""


def bare_python(directory: Path) -> Path:
    """A Python that has what Spark needs, and nothing of ours."""
    packages = directory / "packages"
    packages.mkdir()
    installed = Path(pyspark.__file__).parents[1]
    for name in BARE:
        if (installed / name).exists():
            (packages / name).symlink_to(installed / name)
    python = directory / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{packages}" exec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    return python


@pytest.fixture(scope="module")
def topic(server: RunningServer) -> RunningServer:
    """A server with something to read."""
    server.create("clustered")
    with server.http(headers=server.headers) as http:
        body = [{"payload": number} for number in range(ROWS)]
        http.post("/topics/clustered/messages", json=body).raise_for_status()
    return server


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """What Spark's processes are told. Executors have a Python that knows nothing of us."""
    python = bare_python(tmp_path)
    tried = subprocess.run([python, "-c", "import pyarrow, pyspark, himalia"], capture_output=True, text=True)
    assert "No module named 'himalia'" in tried.stderr
    use_java()
    return {
        **os.environ,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": str(python),
        "SPARK_WORKER_DIR": str(tmp_path / "work"),
        "SPARK_DAEMON_JAVA_OPTS": QUICK_JAVA,
        "SPARK_DAEMON_MEMORY": "256m",
    }


def run_on(master: str, server: RunningServer, environment: dict[str, str], **conf: str) -> dict[str, int]:
    """What a program prints that reads the topic on a cluster."""
    given = {
        "spark.executor.memory": "512m",
        "spark.driver.memory": "512m",
        "spark.driver.extraJavaOptions": QUICK_JAVA,
        "spark.executor.extraJavaOptions": QUICK_JAVA,
        "spark.sql.shuffle.partitions": "1",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": f"{START_MAX_S:.0f}s",
        **{name.replace("_", "."): value for name, value in conf.items()},
    }
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, master, server.url, server.token or "", json.dumps(given)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=RUN_MAX_S,
    )
    assert ran.returncode == 0, [line for line in ran.stderr.splitlines() if "rror" in line]
    result: dict[str, int] = json.loads(ran.stdout.splitlines()[-1])
    return result


def assert_all_was_read(found: dict[str, int]) -> None:
    total = ROWS * (ROWS - 1) // 2
    assert found == {"rows": ROWS, "offsets": total, "numbers": total, "executors": 2}


def test_local_cluster(topic: RunningServer, environment: dict[str, str]) -> None:
    """Two executor processes, to which the driver sends the package by itself."""
    assert_all_was_read(run_on("local-cluster[2,1,512]", topic, environment))


@contextmanager
def started(environment: dict[str, str], log: Path, ready: str, *words: str) -> Iterator[re.Match[str]]:
    """One of Spark's own daemons, from when it says that it is ready to the end of the block."""
    spark_class = Path(pyspark.__file__).parent / "bin" / "spark-class"
    with log.open("wb") as output:
        process = subprocess.Popen(
            ["bash", str(spark_class), *words], env=environment, stdout=output, stderr=output
        )
    try:
        deadline = time.monotonic() + START_MAX_S
        while (found := re.search(ready, log.read_text())) is None:
            assert process.poll() is None, log.read_text()[-2000:]
            assert time.monotonic() < deadline, log.read_text()[-2000:]
            time.sleep(0.1)
        yield found
    finally:
        process.terminate()
        process.wait(30)


def test_a_standalone_cluster(topic: RunningServer, environment: dict[str, str], tmp_path: Path) -> None:
    """A master and two workers; the package is named to Spark as ``--py-files`` would."""
    deploy, anywhere = "org.apache.spark.deploy", ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
    with started(
        environment,
        tmp_path / "master.log",
        r"Starting Spark master at (spark://\S+)",
        f"{deploy}.master.Master",
        *anywhere,
    ) as told:
        master = told[1]
        worker = (f"{deploy}.worker.Worker", *anywhere, "--cores", "1", "--memory", "1g", master)
        ready = "Successfully registered with master"
        with (
            started(environment, tmp_path / "worker-1.log", ready, *worker),
            started(environment, tmp_path / "worker-2.log", ready, *worker),
        ):
            package = write_package(tmp_path / "himalia.zip")
            assert_all_was_read(run_on(master, topic, environment, spark_submit_pyFiles=str(package)))
