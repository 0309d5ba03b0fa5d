"""The pipeline: locks the warehouse, starts Spark, and fills the tables from the log."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

from himalia.spark.delta.lock import warehouse_lock
from himalia.spark.pipeline.jobs import SparkJobs, start_spark
from himalia.spark.pipeline.loop import BatchLoop, PipelineOptions
from himalia.spark.pipeline.progress import Progress, ProgressReporter, Summary
from himalia.spark.pipeline.server_client import ServerClient
from himalia.spark.pipeline.stop_flag import StopFlag

__all__ = ["Pipeline", "PipelineOptions", "Progress", "Summary"]

STOP_GRACE_S = 5.0
"""How long a batch may take to end after ``stop`` before its jobs are cancelled."""


class Pipeline:
    """Fills the tables of one warehouse from one server's log::

        with Pipeline(None, None, Path("warehouse")) as pipeline:
            print(pipeline.run_once().rows)

    Entering the block locks the warehouse and starts Spark, or joins the Spark of this process; it returns the loop
    that runs batches. Without ``url`` and ``token`` the server is discovered as the client does it. ``on_progress`` is
    called in the thread that runs.

    Raises a ``HimaliaError`` whose message is a sentence for users. Another run may follow at once: committed work
    stays, and a batch that was interrupted is completed first.
    """

    def __init__(
        self,
        url: str | None,
        token: str | None,
        warehouse: Path,
        options: PipelineOptions | None = None,
        *,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> None:
        self._options = options or PipelineOptions()
        self._server = ServerClient(url, token)
        self._path = warehouse.absolute()
        self._reporter = ProgressReporter(on_progress)
        self._stop_flag = StopFlag()
        self._stack = ExitStack()

    def __enter__(self) -> BatchLoop:
        with ExitStack() as stack:
            # Before Spark, which takes seconds to start: these fail at once if the user made a mistake.
            stack.enter_context(warehouse_lock(self._path))
            stack.callback(self._server.close)
            self._server.topics()
            session, owns_spark = stack.enter_context(start_spark(self._options.master))
            jobs = SparkJobs(session, owns_spark=owns_spark)
            stack.enter_context(self._stop_flag.deadline(STOP_GRACE_S, jobs.cancel))
            stack.callback(jobs.close)
            from himalia.spark.pipeline.warehouse import Warehouse

            warehouse = Warehouse(jobs, self._path)
            loop = BatchLoop(self._server, warehouse, self._stop_flag, self._reporter, options=self._options)
            self._stack = stack.pop_all()
        return loop

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    def stop(self) -> None:
        """Stop a run: after its batch, or in the middle of it after ``STOP_GRACE_S``; the next run completes it.

        For any thread, and for signal handlers. A second call cancels the batch at once.
        """
        self._stop_flag.request()
