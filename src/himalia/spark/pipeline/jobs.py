"""The Spark session of a pipeline, and the threads that run its jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, ParamSpec, TypeVar
from uuid import uuid4

from himalia.spark.package import add_package
from himalia.spark.session import REQUIRED, is_cluster, start_session
from himalia.spark.tuning import pipeline_conf

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

THREADS = 4

P = ParamSpec("P")
T = TypeVar("T")


class SparkJobs:
    """Runs jobs of one pipeline: in the thread that created this object, and in a pool of threads.

    All of them are in one job group of Spark, so that they can be cancelled without other jobs of the process.
    """

    def __init__(self, session: SparkSession, *, owns_spark: bool) -> None:
        self.session = session
        self._owns_spark = owns_spark
        self._group = f"himalia-pipeline-{uuid4()}"
        self._pool = ThreadPoolExecutor(THREADS, initializer=self._join_group)
        self._join_group()

    @property
    def cores(self) -> int:
        return self.session.sparkContext.defaultParallelism

    def submit(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run ``work`` in a thread of the pool."""
        return self._pool.submit(work, *args, **kwargs)

    def cancel(self) -> None:
        """Cancel the jobs that run, and those that would still start. For any thread."""
        context = self.session.sparkContext
        context._jsc.sc().cancelJobGroupAndFutureJobs(self._group)
        if self._owns_spark:
            # Spark does not put the jobs that fill its cache into the group.
            context.cancelAllJobs()

    def close(self) -> None:
        """Wait for the threads. To be called by the thread that created this object."""
        self._pool.shutdown()
        self.session.sparkContext.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]

    def _join_group(self) -> None:
        self.session.sparkContext.setJobGroup(self._group, "himalia pipeline")


@contextmanager
def start_spark(master: str) -> Iterator[tuple[SparkSession, bool]]:
    """Start Spark, or join the Spark of this process. Yields a new session, and whether Spark was started here.

    Spark that was started here is stopped at the end of the block.
    """
    owns_spark = not _is_spark_running()
    shared = start_session(master, app="himalia pipeline", conf=pipeline_conf())
    try:
        own = shared.newSession()
        for name, value in (pipeline_conf() | REQUIRED).items():
            own.conf.set(name, value)
        if is_cluster(own.sparkContext.master or master):
            add_package(own.sparkContext)
        yield own, owns_spark
    finally:
        if owns_spark:
            shared.stop()


def _is_spark_running() -> bool:
    """Whether this process has a Spark already, which the pipeline then does not stop."""
    try:
        from pyspark import SparkContext
    except ImportError:
        return False
    return SparkContext._active_spark_context is not None
