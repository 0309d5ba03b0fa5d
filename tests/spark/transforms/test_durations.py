"""``run_ms`` of ``executions``: the same rule as in REST and on the page."""

from __future__ import annotations

from pyspark.sql import SparkSession

from himalia.record import format_ts
from tests.jupyter.duration_cases import CASES, Case
from tests.spark.traffic import NOON_US, Row, TopicBuilder
from tests.spark.transforms.fold_checks import fold, interpreted


def records_of(number: int, case: Case) -> list[Row]:
    """The records of a case: the kernel's own dates, stored at the times of the case."""

    def date(ms: float | None) -> str:
        return "nonsense" if ms is None else format_ts(NOON_US + round(ms * 1000))

    builder = TopicBuilder(f"k{number}")
    if case.queued is not None:
        builder.queued("r", at=case.queued / 1000)
    if case.busy_stored is not None:
        builder.busy("r", at=case.busy_stored / 1000, date=date(case.busy))
        builder.input("r")
        if case.idle is not None:
            builder.idle("r", at=case.closed / 1000, date=date(case.idle))
    if case.queued is not None:
        builder.closed("r", at=case.closed / 1000)
    return builder.rows


def test_run_ms_follows_the_rule_however_the_log_is_cut(spark: SparkSession) -> None:
    """Every case gives its duration, in one batch and with busy and idle in batches of their own."""
    # A request of another client closes with its idle, so there the idle's commit is the close.
    topics = [records_of(number, case) for number, case in enumerate(CASES)]
    with interpreted(spark):
        whole = fold(spark, [[row for rows in topics for row in rows]])
        parts = [[row for rows in topics for row in rows[at : at + 1]] for at in range(5)]
        cut = fold(spark, [batch for batch in parts if batch])
    for folded in (whole, cut):
        ran = {row["kernel_id"]: row["run_ms"] for row in folded.closed}
        assert ran == {f"k{number}": case.ran for number, case in enumerate(CASES)}
