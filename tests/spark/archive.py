"""``python -m tests.spark.archive FILE``: the classes of Spark, read and checked once for all drivers that tests start.

A driver spends most of its first seconds on loading classes. Java can keep them in a file in the form in which it uses
them (class data sharing). ``make unit`` has it written once for each ``.venv``; where there is none, or it is another
Java's, tests only take longer.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark import SparkContext
from pyspark.sql import SparkSession

from himalia.spark.pipeline import executions
from himalia.spark.pipeline.iopub import iopub
from himalia.spark.pipeline.requests import carried, merged
from himalia.spark.session import start_session
from tests.spark.folding import empty_state
from tests.spark.traffic import Teller, stored


def write(archive: Path) -> None:
    part = archive.with_suffix(".part")
    options = f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xlog:disable -XX:ArchiveClassesAtExit={part}"
    session = start_session("local[2]", app="archive", conf={"spark.driver.extraJavaOptions": options})
    _use(session)
    session.stop()
    gateway = SparkContext._gateway
    assert gateway is not None
    # It ends when nobody speaks to it any more, and writes the file then.
    gateway.proc.stdin.close()
    gateway.proc.wait(timeout=120)
    part.rename(archive)


def _use(session: SparkSession) -> None:
    """What drivers do: plan, compile, run, write and read back."""
    teller = Teller()
    teller.queued("r")
    teller.stream("r", "hello\n")
    teller.closed("r")
    requests = merged(empty_state(session), iopub(stored(session, teller.rows))).persist()
    executions.executions(requests).toArrow()
    carried(requests).collect()
    session.range(10).selectExpr("id", "id % 2 as half").groupBy("half").count().collect()
    session.sparkContext.parallelize([1, 2], 2).map(str).collect()


if __name__ == "__main__":
    write(Path(sys.argv[1]).absolute())
