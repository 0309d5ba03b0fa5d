"""``python -m tests.spark.class_archive FILE``: write a class data sharing archive of the classes that Spark loads.

A driver spends most of its first seconds loading and verifying classes; with the archive it maps them from one file.
``make unit`` writes it once for each ``.venv``. Without it, or with that of another Java, the tests only take longer.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from pyspark import SparkContext

from himalia.spark.session import start_session
from tests.servers import start_server
from tests.spark.pipeline_runs import busy_kernel, feed, run_once


def write(archive: Path) -> None:
    part = archive.with_suffix(".part")
    options = f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xlog:disable -XX:ArchiveClassesAtExit={part}"
    session = start_session("local[2]", app="archive", conf={"spark.driver.extraJavaOptions": options})
    with TemporaryDirectory() as directory:
        _run_pipeline(Path(directory))
    session.stop()
    gateway = SparkContext._gateway
    assert gateway is not None
    # It exits when its input ends, and writes the file then.
    gateway.proc.stdin.close()
    gateway.proc.wait(timeout=120)
    part.rename(archive)


def _run_pipeline(directory: Path) -> None:
    """Run two batches, as drivers do: the second one continues from the first."""
    os.environ["HIMALIA_RUNTIME_DIR"] = str(directory)
    server = start_server(log=f"sqlite://{directory}/log.db", kernels=False)
    try:
        feed(server, busy_kernel("archive"))
        run_once(server, directory / "warehouse", batch_records=30)
    finally:
        server.stop()


if __name__ == "__main__":
    write(Path(sys.argv[1]).absolute())
