"""What a user sees when something is wrong: a sentence, not the frames of a worker process."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from himalia.errors import DataLost, HimaliaError
from himalia.spark.connector.planning import lost

HIDE_TRACEBACK = "SPARK_HIDE_TRACEBACK"
LOSSES_TOLD_MAX = 5

logger = logging.getLogger("himalia.spark")


@contextmanager
def in_one_sentence() -> Iterator[None]:
    """Have our errors told without a traceback; those that nobody foresaw keep theirs.

    Spark formats an error in the worker process that it happened in, and then ends that process, so the variable
    in its environment is heard by nobody else.
    """
    try:
        yield
    except HimaliaError:
        if _is_worker():
            os.environ[HIDE_TRACEBACK] = "1"
        raise


def _is_worker() -> bool:
    """Whether Spark started this process: its main module is then one of Spark's own, or our daemon."""
    started = getattr(sys.modules.get("__main__"), "__spec__", None)
    return started is not None and started.name.startswith(("pyspark.", "himalia.spark.worker_daemon"))


def tell_losses(losses: Sequence[str], *, fails: bool) -> None:
    """Raise ``DataLost`` with what is gone or, where that is accepted, warn of it."""
    if not losses:
        return
    told = "; ".join(losses[:LOSSES_TOLD_MAX])
    if len(losses) > LOSSES_TOLD_MAX:
        told += f"; and {len(losses) - LOSSES_TOLD_MAX} more"
    if fails:
        raise DataLost(f"{told} (set failOnDataLoss to false to go on with what is there)")
    logger.warning("himalia: %s", told)


def tell_superseded(topic: str, producer: str) -> None:
    """Warn of rows that were not stored, because the topic holds something else under their number or a later one."""
    logger.warning(
        "himalia: topic %r holds other or later rows of producer %r, so these were taken for a repeat and not stored; "
        "if a checkpoint was deleted, name another producer",
        topic,
        producer,
    )


class LossRule:
    """What is done while reading when records are gone: ``rule(topic, start, stop)``."""

    def __init__(self, *, fails: bool) -> None:
        self._fails = fails

    def __call__(self, topic: str, start: int, stop: int) -> None:
        tell_losses([lost(topic, start, stop)], fails=self._fails)
