"""A Spark session as Himalia needs it: started once, quiet, with what the connector and the tables rely on."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from himalia.errors import ConfigurationError
from himalia.spark.java import Java, find_java

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

LOGGING = Path(__file__).with_name("log4j2.properties")

REQUIRED = {
    # Timestamps are instants, and are the same wherever a job runs.
    "spark.sql.session.timeZone": "UTC",
    # The default, INT96, turns into nanoseconds which Spark refuses to read after a compaction.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # The connector offers filters only where this is set.
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
}
DEFAULTS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "2g",
    "spark.sql.shuffle.partitions": "4",
    "spark.log.level": "ERROR",
    # The line of Python behind every column and every step is noted otherwise, by several calls into the JVM each.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    # A batch of the pipeline compiles more than a hundred classes, the default: each would be compiled for every batch.
    "spark.sql.codegen.cache.maxEntries": "2000",
    "spark.driver.extraJavaOptions": " ".join(
        (
            f"-Dlog4j2.configurationFile={LOGGING}",
            "-XX:ReservedCodeCacheSize=512m",
            # A batch is all throughput: nobody waits for a pause, and the parallel collector takes less of few cores.
            "-XX:+UseParallelGC",
            # What plans a query runs often enough for the second compiler, which by default spends as long on it as
            # it saves; what is done for each row comes to twenty times as many calls within its first seconds.
            "-XX:Tier4InvocationThreshold=100000",
            "-XX:Tier4MinInvocationThreshold=20000",
            "-XX:Tier4CompileThreshold=200000",
        )
    ),
}

LOOKED_UP = (
    "PythonSQLUtils",
    "PythonUtils",
    "functions",
    "org.apache.spark.sql.classic.SparkSession",
    "org.apache.spark.sql.functions",
)
"""Classes in the JVM that PySpark asks for by name at every step, and that are looked for in all jars each time."""

# Not on a cluster, which may get this package from the driver with the first task: too late for a daemon.
ON_ONE_MACHINE = {"spark.python.daemon.module": "himalia.spark.worker_daemon"}


def start_session(
    master: str = "local[*]", *, app: str = "himalia", conf: Mapping[str, str] | None = None
) -> SparkSession:
    """Start Spark, or join the session that runs in this process. ``conf`` goes before our defaults.

    Raises ``ConfigurationError``, in one sentence, if pyspark or a Java is missing.
    """
    use_java()
    try:
        from pyspark import SparkConf, SparkContext
        from pyspark.sql import SparkSession
    except ImportError:
        raise ConfigurationError("the pipeline needs PySpark: pip install 'himalia[spark]'") from None
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if master.startswith("local"):
        # Otherwise Spark looks up the machine's name, which may not resolve.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.master(master).appName(app)
    settings = SparkConf().setMaster(master).setAppName(app)
    for name, value in {**_defaults(master), **(conf or {}), **REQUIRED}.items():
        builder = builder.config(name, value)
        settings.set(name, value)
    try:
        with signals_put_off():
            _remember_classes(SparkContext.getOrCreate(settings))
        return builder.getOrCreate()
    except Exception as error:
        raise ConfigurationError(f"Spark did not start on {master}: {_first_line(error)}") from error


def is_cluster(master: str) -> bool:
    """Whether executors are other processes than the driver, and so may be elsewhere."""
    return not (master == "local" or master.startswith("local["))


def _defaults(master: str) -> dict[str, str]:
    is_our_python = os.environ["PYSPARK_PYTHON"] == sys.executable
    return DEFAULTS if is_cluster(master) or not is_our_python else DEFAULTS | ON_ONE_MACHINE


def _remember_classes(context: SparkContext) -> None:
    """Look them up once: that was a sixth of what the JVM did for a small batch."""
    for name in LOOKED_UP:
        setattr(context._jvm, name, getattr(context._jvm, name))


def use_java() -> Java:
    """Have Spark use the Java that ``find_java`` finds; says which."""
    java = find_java()
    os.environ["JAVA_HOME"] = str(java.home)
    return java


@contextmanager
def signals_put_off() -> Iterator[None]:
    """Within this, Ctrl-C and SIGTERM wait for its end. A second Ctrl-C ends the process, which cleans up nothing.

    Spark that is left while it starts takes away the directory in which its Java is to say where it listens; that fails
    then, with a trace, and stays. Left later, or with its process, it ends by itself.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # signals are handled elsewhere
        return
    noted: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        noted.append(number)
        if number == signal.SIGINT:
            signal.signal(number, signal.SIG_DFL)

    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    chosen = {number: handler for number, handler in handlers.items() if callable(handler)}
    for number in chosen:
        signal.signal(number, note)
    try:
        yield
    finally:
        for number, handler in chosen.items():
            # Spark puts a handler of its own in, for Ctrl-C. It stays where there was but Python's.
            is_sparks = signal.getsignal(number) not in (note, signal.SIG_DFL)
            if not is_sparks or handler is not signal.default_int_handler:
                signal.signal(number, handler)
        if noted:
            signal.raise_signal(noted[0])


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
