"""The correlation of the pipeline, written with Spark's own tool for it: ``transformWithStateInPandas``.

One state per request, a few fields of it, and a row when it closes: what one would write first. It knows less than the
fold (no late messages, no orphans, no endings, no forgetting), and so does less work.
"""

from collections.abc import Iterator
from typing import Any

import pandas as pd  # type: ignore[import-untyped]
from pyspark.sql import DataFrame
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from himalia.spark.pipeline import output
from himalia.spark.pipeline.iopub import IOPUB_CHANNELS

KEEP = output.HALF_BYTES
STATE = "status string, started_us bigint, stdout string, messages bigint"
ROW = "topic string, request_id string, status string, run_ms double, stdout string, messages bigint"


def executions(iopub: DataFrame) -> DataFrame:
    """A row for each request that closed, of a stream of ``iopub``."""
    rows = iopub.selectExpr(
        "topic",
        "if(msg_type = 'execute_request', id, parent_id) as request_id",
        "offset",
        "unix_micros(ts) as us",
        "channel",
        "event",
        "status",
        "execution_state",
        "if(stream_name = 'stdout', text, null) as text",
    ).where("request_id != ''")
    return rows.groupBy("topic", "request_id").transformWithStateInPandas(
        Correlation(), outputStructType=ROW, outputMode="Append", timeMode="None"
    )


class Correlation(StatefulProcessor):
    """The state of one request, and its row when it closes."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._state = handle.getValueState("request", STATE)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        status, started_us, stdout, messages = self._state.get() or ("running", None, "", 0)
        closed_us = None
        for frame in rows:
            for row in frame.sort_values("offset").itertuples():
                if row.channel in IOPUB_CHANNELS:
                    messages += 1
                if row.text:
                    stdout = _bounded(stdout + row.text)
                if row.execution_state == "busy" and started_us is None:
                    started_us = row.us
                if row.event == "request_closed":
                    status, closed_us = row.status, row.us
        if closed_us is None:
            self._state.update((status, started_us, stdout, messages))
            return
        self._state.clear()
        run_ms = None if started_us is None else (closed_us - started_us) / 1000
        yield pd.DataFrame(
            [[*key, status, run_ms, stdout, messages]],
            columns=["topic", "request_id", "status", "run_ms", "stdout", "messages"],
        )

    def close(self) -> None:
        pass


def _bounded(text: str) -> str:
    return text if len(text) <= 2 * KEEP else text[:KEEP] + text[-KEEP:]
