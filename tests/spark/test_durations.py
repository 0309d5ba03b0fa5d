"""``run_ms`` of ``executions``: the same rule as in REST and on the page."""

from __future__ import annotations

from pyspark.sql import SparkSession

from himalia.record import format_ts
from tests.jupyter.duration_cases import CASES, Case
from tests.spark.folding import fold, interpreted
from tests.spark.traffic import NOON_US, Row, Teller


def told(number: int, case: Case) -> list[Row]:
    """The records of a case: the kernel's own dates, stored at the times of the case."""

    def date(ms: float | None) -> str:
        return "nonsense" if ms is None else format_ts(NOON_US + round(ms * 1000))

    teller = Teller(f"k{number}")
    if case.queued is not None:
        teller.queued("r", at=case.queued / 1000)
    if case.busy_stored is not None:
        teller.busy("r", at=case.busy_stored / 1000, date=date(case.busy))
        teller.input("r")
        if case.idle is not None:
            teller.idle("r", at=case.closed / 1000, date=date(case.idle))
    if case.queued is not None:
        teller.closed("r", at=case.closed / 1000)
    return teller.rows


def test_run_ms_follows_the_rule_however_the_log_is_cut(spark: SparkSession) -> None:
    """Every case gives its duration, in one batch and with busy and idle in batches of their own."""
    # A request of another client closes with its idle, so there the idle's commit is the close.
    stories = [told(number, case) for number, case in enumerate(CASES)]
    with interpreted(spark):
        whole = fold(spark, [[row for rows in stories for row in rows]])
        parts = [[row for rows in stories for row in rows[at : at + 1]] for at in range(5)]
        cut = fold(spark, [batch for batch in parts if batch])
    for folded in (whole, cut):
        ran = {row["kernel_id"]: row["run_ms"] for row in folded.closed}
        assert ran == {f"k{number}": case.ran for number, case in enumerate(CASES)}
