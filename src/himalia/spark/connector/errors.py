"""What a user of the data source sees when something fails: one sentence, or a warning in the log."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from himalia.errors import DataLost, HimaliaError
from himalia.spark.connector.offset_ranges import describe_loss

HIDE_TRACEBACK = "SPARK_HIDE_TRACEBACK"
LOSSES_REPORTED_MAX = 5

logger = logging.getLogger("himalia.spark")


@contextmanager
def hide_traceback() -> Iterator[None]:
    """Show Himalia's own errors without the traceback of the worker process; unexpected errors keep theirs.

    Spark formats an error in the worker process that raised it and then ends that process, so setting the variable in
    the process's environment affects no other error.
    """
    try:
        yield
    except HimaliaError:
        if _is_worker():
            os.environ[HIDE_TRACEBACK] = "1"
        raise


def _is_worker() -> bool:
    """Whether Spark started this process: its main module is one of Spark's, or our daemon."""
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return main is not None and main.name.startswith(
        ("pyspark.", "himalia.spark.worker_daemon", "himalia.spark.daemon")
    )


def report_losses(losses: Sequence[str], *, fails: bool) -> None:
    """Raise ``DataLost`` if there are losses, or log a warning where the options accept them."""
    if not losses:
        return
    sentence = "; ".join(losses[:LOSSES_REPORTED_MAX])
    if len(losses) > LOSSES_REPORTED_MAX:
        sentence += f"; and {len(losses) - LOSSES_REPORTED_MAX} more"
    if fails:
        raise DataLost(f"{sentence} (set failOnDataLoss to false to continue with the records that are left)")
    logger.warning("himalia: %s", sentence)


def warn_superseded(topic: str, producer: str) -> None:
    """Warn of rows that were not stored because the topic holds other rows under their sequence or a later one."""
    logger.warning(
        "himalia: topic %r holds other or later rows of producer %r, so these count as a repeat and were not stored; "
        "if a checkpoint was deleted, name another producer",
        topic,
        producer,
    )


class LossHandler:
    """Called with topic, start and stop when a reader finds that these records are gone."""

    def __init__(self, *, fails: bool) -> None:
        self._fails = fails

    def __call__(self, topic: str, start: int, stop: int) -> None:
        report_losses([describe_loss(topic, start, stop)], fails=self._fails)
