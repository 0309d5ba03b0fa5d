"""Every setting of Spark that is there for speed, with its measured gain and a switch.

Figures are from docs/benchmarks.md, or from the commit that is named, measured on two cores. The environment variable
``HIMALIA_SPARK_UNTUNED`` lists settings to leave out, by name and separated by commas; ``all`` leaves out every one:
``HIMALIA_SPARK_UNTUNED=worker-daemon,jit``. The rows of the tables do not depend on any of them.

Tests have one more: an archive of the JVM's classes (``tests/spark/class_archive.py``), with which a driver starts in
half the time (a2755cf). Without the file ``.venv/spark.jsa`` Java does without.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple

from himalia.errors import ConfigurationError

VARIABLE = "HIMALIA_SPARK_UNTUNED"
EVERYTHING = "all"

SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"
SHUFFLE_BYTES = 64 * 1024 * 1024
"""How much a task of the fold should have to sort, so that it sorts in memory."""
TASKS_PER_CORE = 2
"""More than one, so that no core idles for long while another runs the last task."""
JAVA_OPTIONS = "spark.driver.extraJavaOptions"

CACHED_JVM_CLASSES = (
    "PythonSQLUtils",
    "PythonUtils",
    "functions",
    "org.apache.spark.sql.classic.SparkSession",
    "org.apache.spark.sql.functions",
)
"""Classes that PySpark looks up by name at every step, each time in the indexes of all jars."""


class Knob(NamedTuple):
    """One setting, or a few that belong together."""

    name: str
    gain: str
    conf: Mapping[str, str] = {}
    """For a session; a knob without it is applied where ``is_on`` is called with its name."""
    is_for_pipeline: bool = False
    """Whether only the pipeline's own session gets it."""


KNOBS = (
    Knob(
        "worker-daemon",
        "Forty tasks of 500 records take 0.5 s instead of 1.6 s: a Python worker waits no more for delayed ACKs (40 "
        "ms, twice per task), collects no garbage among its modules after each task (25 ms), and keeps freed memory "
        "(a third of its CPU while it fetches).",
        {"spark.python.daemon.module": "himalia.spark.worker_daemon"},
    ),
    Knob(
        "jit",
        "2.7 s of CPU for 1,000,000 records: the second compiler compiles only what is called for every row, and not "
        "Catalyst's own code, which costs it as much as it saves.",
        {
            JAVA_OPTIONS: "-XX:Tier4InvocationThreshold=100000 -XX:Tier4MinInvocationThreshold=20000 "
            "-XX:Tier4CompileThreshold=200000"
        },
    ),
    Knob(
        "code-cache",
        "Not measured by itself: room for the compiled code of all the classes that Spark generates.",
        {JAVA_OPTIONS: "-XX:ReservedCodeCacheSize=512m"},
    ),
    Knob(
        "parallel-gc",
        "Not measured by itself (75c440a): batches need throughput, and no client waits for a pause.",
        {JAVA_OPTIONS: "-XX:+UseParallelGC"},
    ),
    Knob(
        "codegen-cache",
        "Not measured by itself: a batch generates more classes than the default of 100 keeps, and would compile them "
        "again each time.",
        {"spark.sql.codegen.cache.maxEntries": "2000"},
    ),
    Knob(
        "call-sites",
        "A small batch takes 2.7 s instead of 3.5 s, together with class-cache and plan-strings: PySpark records no "
        "line of Python for each column, which takes several calls into the JVM.",
        {"spark.python.sql.dataFrameDebugging.enabled": "false"},
    ),
    Knob(
        "class-cache",
        "A sixth of the JVM's time in a small batch: classes that PySpark looks up at every step are kept.",
    ),
    Knob(
        "plan-strings",
        "Part of call-sites: Spark renders no plans for its UI, which is off.",
        {"spark.sql.ui.explainMode": "simple", "spark.sql.debug.maxToStringFields": "0"},
        is_for_pipeline=True,
    ),
    Knob(
        "file-listing",
        "Not measured by itself: the driver lists a table's files, which it knows by name, without starting a job.",
        {"spark.sql.sources.parallelPartitionDiscovery.threshold": "1000000"},
        is_for_pipeline=True,
    ),
    Knob(
        "unsorted-writes",
        "Not measured by itself: rows of a few partitions are written as they come, without sorting them first.",
        {"spark.sql.maxConcurrentOutputFileWriters": "8"},
        is_for_pipeline=True,
    ),
    Knob(
        "fixed-plans",
        "About 3% of a large batch: plans are not optimized again while they run, for which all cores would wait at "
        "every shuffle.",
    ),
    Knob(
        "small-batches",
        "Not measured by itself: a few thousand rows are processed by interpreted expressions sooner than compiled "
        "ones would be ready.",
    ),
    Knob(
        "huge-methods",
        "A fifth of the fold's time: the JVM never compiles a generated method above 8,000 bytes of code, so Spark "
        "generates smaller ones.",
    ),
    Knob(
        "task-sizes",
        "1 s of a pass over 1,000,000 records: tasks for each core where rows are few, and more where the fold sorts.",
    ),
)


def is_on(name: str) -> bool:
    """Whether a knob is on. Raises ``ConfigurationError`` if the environment lists one that does not exist."""
    off = {part.strip() for part in os.environ.get(VARIABLE, "").split(",")} - {""}
    known = {knob.name for knob in KNOBS}
    assert name in known, name
    if unknown := off - known - {EVERYTHING}:
        raise ConfigurationError(
            f"{VARIABLE} names {', '.join(sorted(unknown))}; there are {', '.join(sorted(known))}, and {EVERYTHING}"
        )
    return name not in off and EVERYTHING not in off


def session_conf(*, has_worker_daemon: bool) -> dict[str, str]:
    """Return the settings of any session. ``has_worker_daemon``: whether the workers' Python can import our daemon."""
    conf: dict[str, str] = {}
    for knob in KNOBS:
        is_possible = has_worker_daemon or knob.name != "worker-daemon"
        if is_possible and not knob.is_for_pipeline and is_on(knob.name):
            for name, value in knob.conf.items():
                conf[name] = f"{conf[name]} {value}" if name in conf else value
    return conf


def pipeline_conf() -> dict[str, str]:
    """Return the settings of the pipeline's own session, besides those of any session."""
    knobs = [knob for knob in KNOBS if knob.is_for_pipeline and is_on(knob.name)]
    return {name: value for knob in knobs for name, value in knob.conf.items()}


def small_batch_conf() -> dict[str, str]:
    """Return the settings for a batch of few records."""
    return _select_enabled(
        {
            "fixed-plans": {"spark.sql.adaptive.enabled": "false"},
            "task-sizes": {SHUFFLE_PARTITIONS: "1"},
            "small-batches": {
                "spark.sql.codegen.wholeStage": "false",
                "spark.sql.codegen.factoryMode": "NO_CODEGEN",
            },
        }
    )


def large_batch_conf(cores: int) -> dict[str, str]:
    """Return the settings for a batch of many records."""
    return _select_enabled(
        {
            "fixed-plans": {"spark.sql.adaptive.enabled": "false"},
            "small-batches": {
                "spark.sql.codegen.wholeStage": "true",
                "spark.sql.codegen.factoryMode": "FALLBACK",
            },
            "huge-methods": {"spark.sql.codegen.hugeMethodLimit": "8000"},
            "task-sizes": {
                "spark.sql.files.minPartitionNum": str(TASKS_PER_CORE * cores),
                # Shuffles beside the fold have few rows, which are summed already.
                SHUFFLE_PARTITIONS: str(cores),
            },
        }
    )


def fold_tasks(cores: int, size_bytes: int) -> int:
    """Return into how many tasks the fold of a large batch should be shuffled."""
    return max(TASKS_PER_CORE * cores, -(-size_bytes // SHUFFLE_BYTES))


def _select_enabled(confs: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    return {name: value for knob, conf in confs.items() if is_on(knob) for name, value in conf.items()}
