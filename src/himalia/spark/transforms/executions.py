"""The table ``executions``: one row per request to execute code.

A row is written when its request closes, and never changes. The rows of open requests are replaced with each batch.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from himalia.spark.transforms import bounded_text, requests
from himalia.spark.transforms.iopub import IOPUB_CHANNELS, kernel_of

TOLERANCE_US = 1_000_000
"""As in ``himalia.jupyter.duration``, which this package may not import."""


def executions(folded: DataFrame) -> DataFrame:
    """Return the requests that closed in this batch, and all that are open after it, from ``fold_requests``."""
    queued, started, finished = "coalesce(sums.queued_us, sums.sent_us)", "sums.started_us", "life.closed_us"
    counts = [f"sums.{channel}_messages" for channel in IOPUB_CHANNELS]
    decided = folded.where(F.col("outcome").isin(requests.CLOSED, requests.RUNNING))
    return decided.selectExpr(
        f"{kernel_of('topic')} as kernel_id",
        "topic",
        "epoch",
        "request_id",
        "coalesce(sums.code, '') as code",
        "coalesce(status, 'running') as status",
        "coalesce(reason, '') as reason",
        "sums.execution_count",
        f"timestamp_micros({queued}) as queued",
        f"timestamp_micros({started}) as started",
        f"timestamp_micros({finished}) as finished",
        f"{_ms(queued, started)} as queue_ms",
        f"{_run_ms(queued, started, finished)} as run_ms",
        f"{' + '.join(counts)} as messages",
        *counts,
        *(f"{bounded_text.render(f'sums.{name}')} as {name}" for name in requests.STREAMS),
        *(f"sums.{name}.bytes as {name}_bytes" for name in requests.STREAMS),
        "sums.first_offset",
        "sums.last_offset",
        "sums.mime_types as result_types",
        "sums.error.ename",
        "sums.error.evalue",
        "sums.username",
        "sums.session",
        "not (life.is_queued or life.is_sent) as is_foreign",
        "life.closed_us is null as is_running",
        "to_date(timestamp_micros(sums.first_us)) as date",
    )


def _run_ms(asked_us: str, started_us: str, closed_us: str) -> str:
    """Return how long a request ran, by the rule of ``himalia.jupyter.duration``."""
    is_plausible = f"""
        busy_header_us <= idle_header_us
        and busy_header_us >= coalesce({asked_us}, {started_us}) - {TOLERANCE_US}
        and idle_header_us <= {closed_us} + {TOLERANCE_US}
    """
    ran = f"if({is_plausible}, (idle_header_us - busy_header_us) / 1000, {_ms(started_us, closed_us)})"
    return f"if({started_us} is null or {closed_us} is null, null, {ran})"


def _ms(start_us: str, end_us: str) -> str:
    """Return a span in milliseconds; 0 if it ends first: messages may precede the record that queued their request."""
    return f"if({start_us} is null or {end_us} is null, null, greatest({end_us} - {start_us}, 0) / 1000)"
