"""Start the Spark session that the connector and the pipeline need."""

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
from himalia.spark import tuning
from himalia.spark.java import Java, find_java

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

LOGGING = Path(__file__).with_name("log4j2.properties")

REQUIRED = {
    # Timestamps are instants, and the same wherever a job runs.
    "spark.sql.session.timeZone": "UTC",
    # The default, INT96, becomes nanoseconds after a compaction, which Spark refuses to read.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # Without it Spark rejects readers that take filters.
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
}
DEFAULTS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "2g",
    "spark.sql.shuffle.partitions": "4",
    "spark.log.level": "ERROR",
}
"""What a caller may override. ``himalia.spark.tuning`` adds the settings that are there for speed."""


def start_session(
    master: str = "local[*]", *, app: str = "himalia", conf: Mapping[str, str] | None = None
) -> SparkSession:
    """Start Spark, or return the session that runs in this process. ``conf`` takes precedence over our defaults.

    Raises ``ConfigurationError`` if pyspark or a Java is missing.
    """
    use_java()
    try:
        from pyspark import SparkConf, SparkContext
        from pyspark.sql import SparkSession
    except ImportError:
        raise ConfigurationError("the pipeline needs PySpark: pip install 'himalia[spark]'") from None
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if master.startswith("local"):
        # Otherwise Spark resolves the machine's host name, which may fail.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.master(master).appName(app)
    settings = SparkConf().setMaster(master).setAppName(app)
    for name, value in {**_defaults(master), **(conf or {}), **REQUIRED}.items():
        builder = builder.config(name, value)
        settings.set(name, value)
    try:
        with defer_signals():
            _cache_jvm_classes(SparkContext.getOrCreate(settings))
        return builder.getOrCreate()
    except Exception as error:
        raise ConfigurationError(f"Spark did not start on {master}: {_first_line(error)}") from error


def is_cluster(master: str) -> bool:
    """Whether executors are separate processes, which may run on other machines."""
    return not (master == "local" or master.startswith("local["))


def _defaults(master: str) -> dict[str, str]:
    # Not on a cluster: its executors may get this package with the first task, which is too late for a daemon.
    is_our_python = os.environ["PYSPARK_PYTHON"] == sys.executable
    tuned = tuning.session_conf(has_worker_daemon=is_our_python and not is_cluster(master))
    options = f"-Dlog4j2.configurationFile={LOGGING} {tuned.pop(tuning.JAVA_OPTIONS, '')}"
    return {**DEFAULTS, **tuned, tuning.JAVA_OPTIONS: options.strip()}


def _cache_jvm_classes(context: SparkContext) -> None:
    """Keep the classes that PySpark looks up at every step: py4j returns an attribute that is set without a call."""
    if tuning.is_on("class-cache"):
        for name in tuning.CACHED_JVM_CLASSES:
            setattr(context._jvm, name, getattr(context._jvm, name))


def use_java() -> Java:
    """Set ``JAVA_HOME`` for Spark to the Java that ``find_java`` finds, and return it."""
    java = find_java()
    os.environ["JAVA_HOME"] = str(java.home)
    return java


@contextmanager
def defer_signals() -> Iterator[None]:
    """Defer Ctrl-C and SIGTERM to the end of the block. A second Ctrl-C ends the process without cleaning up.

    PySpark that is interrupted while it starts removes the directory in which its JVM is about to write its port; the
    JVM then fails with a stack trace, and does not exit. Interrupted later, it exits by itself.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread handles signals
        return
    pending: list[int] = []

    def defer(number: int, frame: FrameType | None) -> None:
        pending.append(number)
        if number == signal.SIGINT:
            signal.signal(number, signal.SIG_DFL)

    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    replaced = {number: handler for number, handler in handlers.items() if callable(handler)}
    for number in replaced:
        signal.signal(number, defer)
    try:
        yield
    finally:
        for number, handler in replaced.items():
            # Spark installs a handler for Ctrl-C. It stays if only Python's default handler was there before.
            is_sparks = signal.getsignal(number) not in (defer, signal.SIG_DFL)
            if not is_sparks or handler is not signal.default_int_handler:
                signal.signal(number, handler)
        if pending:
            signal.raise_signal(pending[0])


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
