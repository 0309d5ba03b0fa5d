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
from deltalake import DeltaTable

from himalia.spark.session import use_java
from himalia.spark.shipping import write_package
from himalia.spark.warehouse.batch import SMALL_RECORDS
from tests.serving import RunningServer
from tests.spark.pipelines import busy_kernel, contents, feed, offsets_of

START_MAX_S = 120.0
RUN_MAX_S = 240
ROWS = 500
MANY = SMALL_RECORDS + 1
"""So many that a batch is shared out."""
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


PIPELINE = """
import sys
from pathlib import Path
from himalia.spark.run import Pipeline

master, url, token, warehouse, *topics = sys.argv[1:]
with Pipeline(url, token, Path(warehouse), master=master, topics=topics, feedback=False) as pipeline:
    print(pipeline.run_once().batches)
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


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What Spark's processes are told. Executors have a Python that knows nothing of us."""
    directory = tmp_path_factory.mktemp("spark")
    python = bare_python(directory)
    tried = subprocess.run([python, "-c", "import pyarrow, pyspark, himalia"], capture_output=True, text=True)
    assert "No module named 'himalia'" in tried.stderr
    use_java()
    return {
        **os.environ,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": str(python),
        "SPARK_WORKER_DIR": str(directory / "work"),
        "SPARK_DAEMON_JAVA_OPTS": QUICK_JAVA,
        "SPARK_DAEMON_MEMORY": "256m",
    }


SMALL = {
    "spark.executor.memory": "512m",
    "spark.driver.memory": "512m",
    "spark.driver.extraJavaOptions": QUICK_JAVA,
    "spark.executor.extraJavaOptions": QUICK_JAVA,
    "spark.sql.shuffle.partitions": "1",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": f"{START_MAX_S:.0f}s",
}


def run_on(master: str, server: RunningServer, environment: dict[str, str], **conf: str) -> dict[str, int]:
    """What a program prints that reads the topic on a cluster."""
    given = SMALL | {name.replace("_", "."): value for name, value in conf.items()}
    lines = printed(PROGRAM, master, server.url, server.token or "", json.dumps(given), env=environment)
    result: dict[str, int] = json.loads(lines[-1])
    return result


def printed(program: str, *arguments: str, env: dict[str, str]) -> list[str]:
    """The lines that a program prints."""
    ran = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env=env,
        capture_output=True,
        text=True,
        timeout=RUN_MAX_S,
    )
    assert ran.returncode == 0, [line for line in ran.stderr.splitlines() if "rror" in line]
    return ran.stdout.splitlines()


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


@pytest.fixture(scope="module")
def cluster(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a master, which has two workers."""
    logs = tmp_path_factory.mktemp("logs")
    deploy, anywhere = "org.apache.spark.deploy", ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
    with started(
        environment,
        logs / "master.log",
        r"Starting Spark master at (spark://\S+)",
        f"{deploy}.master.Master",
        *anywhere,
    ) as told:
        master = told[1]
        worker = (f"{deploy}.worker.Worker", *anywhere, "--cores", "1", "--memory", "1g", master)
        ready = "Successfully registered with master"
        with (
            started(environment, logs / "worker-1.log", ready, *worker),
            started(environment, logs / "worker-2.log", ready, *worker),
        ):
            yield master


def test_a_standalone_cluster(
    cluster: str, topic: RunningServer, environment: dict[str, str], tmp_path: Path
) -> None:
    """Two executors; the package is named to Spark as ``--py-files`` would."""
    package = write_package(tmp_path / "himalia.zip")
    assert_all_was_read(run_on(cluster, topic, environment, spark_submit_pyFiles=str(package)))


def test_the_pipeline_on_a_cluster(
    cluster: str, server: RunningServer, environment: dict[str, str], warehouse: Path
) -> None:
    """Two executors that know nothing of us share a batch; every record is in the tables, once."""
    server.create("many")
    with server.http(headers=server.headers) as http:
        body = [{"payload": number} for number in range(MANY)]
        http.post("/topics/many/messages", json=body).raise_for_status()
    feed(server, busy_kernel("far", 3))
    options = " ".join(f'--conf "{name}={value}"' for name, value in SMALL.items())
    env = environment | {"PYSPARK_SUBMIT_ARGS": f"{options} pyspark-shell"}
    where = (cluster, server.url, server.token or "", str(warehouse))
    assert printed(PIPELINE, *where, "many", "kernels.far", env=env)[-1] == "1"
    assert len(DeltaTable(warehouse / "messages").file_uris()) == 2
    assert offsets_of(warehouse, "many") == list(range(MANY))
    assert len(contents(warehouse, "executions")) == 5
