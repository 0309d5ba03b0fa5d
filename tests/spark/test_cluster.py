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
from dataclasses import dataclass
from pathlib import Path

import pyspark
import pytest
from deltalake import DeltaTable

from himalia.spark.package import write_package
from himalia.spark.pipeline.batch import SMALL_RECORDS
from himalia.spark.session import use_java
from tests.servers import RunningServer
from tests.spark.pipeline_runs import busy_kernel, contents, feed, offsets_of

START_MAX_S = 120.0
RUN_MAX_S = 240
FAR = "kernels.far"
MANY = SMALL_RECORDS + 1
"""So many that a batch is shared out."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(500)]

# What executors are given besides the standard library. Not us, and nothing that we need elsewhere.
BARE = ("pyspark", "py4j", "pyarrow", "numpy", "numpy.libs", "pandas", "dateutil", "pytz", "tzdata", "six.py")

# With ``--py-files`` the read comes first, for which that has to do. Else the pipeline does, which sends the package to
# executors that have nothing.
PROGRAM = """
import json, sys
from pathlib import Path
from himalia.spark.connector.source import HimaliaDataSource
from himalia.spark.pipeline.runner import Pipeline, PipelineOptions
from himalia.spark.session import start_session
from himalia.spark.package import ship

master, url, token, warehouse, conf, *topics = sys.argv[1:]
spark = start_session(master, conf=json.loads(conf))

def read():
    options = {"url": url, "token": token, "subscribe": "many", "minPartitions": "4"}
    records = spark.read.format("himalia").options(**options).load()
    return records.selectExpr("count(*) AS rows", "sum(offset) AS offsets", "sum(int(value)) AS numbers").first()

def run():
    options = PipelineOptions(master=master, topics=topics, feedback=False)
    with Pipeline(url, token, Path(warehouse), options) as pipeline:
        return pipeline.run_once().batches

if "spark.submit.pyFiles" in json.loads(conf):
    spark.dataSource.register(HimaliaDataSource)
    found, batches = read(), run()
else:
    batches = run()
    ship(spark)
    found = read()
executors = spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1
print(json.dumps({**found.asDict(), "executors": executors, "batches": batches}))
spark.stop()
"""


@dataclass(frozen=True)
class Ran:
    """What the program said, and the tables that it made."""

    said: dict[str, int]
    warehouse: Path


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
def log(server: RunningServer) -> RunningServer:
    """A server with something to read."""
    server.create("many")
    with server.http(headers=server.headers) as http:
        body = [{"payload": number} for number in range(MANY)]
        http.post("/topics/many/messages", json=body).raise_for_status()
    feed(server, busy_kernel("far", 3))
    return server


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of Spark's processes. The executors' Python does not have this package."""
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
        "SPARK_DAEMON_JAVA_OPTS": quick_java(),
        "SPARK_DAEMON_MEMORY": "256m",
    }


SMALL = {
    "spark.executor.memory": "512m",
    "spark.driver.memory": "512m",
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC",
    "spark.sql.shuffle.partitions": "1",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": f"{START_MAX_S:.0f}s",
}


def quick_java() -> str:
    """What makes drivers start quickly in tests does so for all of Spark's processes."""
    return f"-XX:+UseSerialGC {os.environ['SPARK_SUBMIT_OPTS']}"


def run_on(
    master: str,
    topics: list[str],
    server: RunningServer,
    environment: dict[str, str],
    directory: Path,
    **conf: str,
) -> Ran:
    """Run the program on a cluster; of these topics it makes tables."""
    given = SMALL | {"spark.executor.extraJavaOptions": quick_java()}
    given |= {name.replace("_", "."): value for name, value in conf.items()}
    warehouse = directory / "warehouse"
    arguments = (master, server.url, server.token or "", str(warehouse), json.dumps(given), *topics)
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=RUN_MAX_S,
    )
    assert ran.returncode == 0, [line for line in ran.stderr.splitlines() if "rror" in line]
    return Ran(json.loads(ran.stdout.splitlines()[-1]), warehouse)


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


@pytest.fixture(scope="module")
def on_standalone(
    cluster: str, log: RunningServer, environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Ran:
    """There the package is named to Spark, as ``--py-files`` would."""
    directory = tmp_path_factory.mktemp("standalone")
    package = write_package(directory / "himalia.zip")
    return run_on(cluster, ["many", FAR], log, environment, directory, spark_submit_pyFiles=str(package))


@pytest.fixture(scope="module")
def on_local_cluster(
    log: RunningServer, environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Ran:
    """Only the driver sends the package."""
    return run_on("local-cluster[2,1,512]", [FAR], log, environment, tmp_path_factory.mktemp("local"))


@pytest.fixture(params=["on_standalone", "on_local_cluster"])
def ran(request: pytest.FixtureRequest) -> Ran:
    found: Ran = request.getfixturevalue(request.param)
    return found


def test_a_topic_is_read_by_two_executors(ran: Ran) -> None:
    """Which know nothing of us but what the driver sends."""
    total = MANY * (MANY - 1) // 2
    assert ran.said == {"rows": MANY, "offsets": total, "numbers": total, "executors": 2, "batches": 1}


def test_the_pipeline_on_a_cluster(ran: Ran) -> None:
    """Executors to which the pipeline sends its package fill the tables."""
    assert len(contents(ran.warehouse, "executions")) == 5


def test_executors_share_a_large_batch(on_standalone: Ran) -> None:
    """Each writes a file; every record is in the tables, once."""
    assert len(DeltaTable(on_standalone.warehouse / "messages").file_uris()) == 2
    assert offsets_of(on_standalone.warehouse, "many") == list(range(MANY))
