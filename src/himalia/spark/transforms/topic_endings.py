"""Time and endings of topics: what the records of a batch mean for all requests of their topic.

Time is that of the records: a topic's time is the time of its newest record, and no rule reads a clock. An *ending* is
an event that ends all open requests: the kernel died, was stopped, or is restarted. The first two are *final*: no
message of the process follows, so nothing of it has to be remembered, whatever the topic's time. If a topic was deleted
and created again, the requests that were open in its old epoch stay unanswered.

All of this is small, one row per topic and few endings, so the driver fetches it first (one job that reads six
columns): the fold then joins it as a local table, which needs no further stages.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F

from himalia.spark.transforms.lifecycle import ENDING

_ENDING = """
    collect_list(named_struct(
        'offset', offset,
        'us', unix_micros(ts),
        'status', if(event = 'died', 'died', 'aborted'),
        'reason', concat_ws(
            ': ',
            case event
                when 'died' then 'the kernel died'
                when 'stopped' then 'the kernel was stopped'
                else 'the kernel was restarted'
            end,
            nullif(reason, '')
        ),
        'is_final', event in ('died', 'stopped')
    )) filter (where event in ('died', 'stopped', 'restarting'))
"""
_BLOCK_BITS = 8

_ENDING_TYPE = pa.struct(
    [
        ("offset", pa.int64()),
        ("us", pa.int64()),
        ("status", pa.string()),
        ("reason", pa.string()),
        ("final_at", pa.int64()),
        ("final_before", pa.int64()),
    ]
)
_TOPICS = pa.schema(
    [
        ("topic", pa.string()),
        ("epoch", pa.string()),
        ("topic_us", pa.int64()),
        ("superseded_us", pa.int64()),
        ("first_ending", _ENDING_TYPE),
        ("last_final", pa.int64()),
    ]
)
_FURTHER = pa.schema(
    [
        ("topic", pa.string()),
        ("epoch", pa.string()),
        ("block", pa.int64()),
        ("endings", pa.list_(_ENDING_TYPE)),
    ]
)


class TopicEndings:
    """The times and endings of a batch's topics.

    ``topics`` has a row for each topic and epoch of the batch or the state:

    - ``topic_us``: the topic's time at the end of the batch; null if the batch has no record of it
    - ``superseded_us``: when the next epoch of the topic began; null if there is none
    - ``first_ending`` in the batch; null if there is none
    - ``last_final``: the offset of the last final ending in the batch; null if there is none
    """

    def __init__(self, state: DataFrame, iopub: DataFrame) -> None:
        """Run a job that reads both."""
        summary = iopub.groupBy("topic", "epoch").agg(
            F.expr("unix_micros(min(ts))").alias("first_us"),
            F.expr("unix_micros(max(ts))").alias("last_us"),
            F.expr(f"sort_array({_ENDING})").alias("endings"),
        )
        known = state.select("topic", "epoch").distinct()
        rows = summary.join(known, ["topic", "epoch"], "full").collect()
        session = iopub.sparkSession
        self.topics = F.broadcast(session.createDataFrame(_table(_TOPICS, _topics(rows))))
        further = list(_further_endings(rows))
        self._further = F.broadcast(session.createDataFrame(_table(_FURTHER, further))) if further else None

    def with_next_ending(self, rows: DataFrame, condition: Column) -> DataFrame:
        """Add ``further``: where the condition holds, the first ending after the record, except the topic's first."""
        if self._further is None:
            return rows.withColumn("further", F.lit(None).cast(ENDING))
        next_of_block = F.expr("get(filter(endings, ending -> ending.offset > offset), 0)")
        return (
            rows.withColumn("block", F.shiftright("offset", _BLOCK_BITS))
            .join(self._further, ["topic", "epoch", "block"], "left")
            .withColumn("further", F.when(condition, next_of_block))
            .drop("block", "endings")
        )


def _topics(rows: Sequence[Row]) -> Iterator[tuple[Any, ...]]:
    by_topic: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        by_topic[row.topic].append(row)
    for epochs in by_topic.values():
        # An epoch that is only in the state is older than those in the batch.
        epochs.sort(key=lambda row: (row.first_us or 0, row.epoch))
        for row, newer in zip(epochs, [*epochs[1:], None], strict=True):
            superseded_us = newer.first_us if newer is not None else None
            endings = _endings(row)
            finals = [ending["offset"] for ending in endings if ending["is_final"]]
            yield (
                row.topic,
                row.epoch,
                row.last_us,
                superseded_us,
                endings[0] if endings else None,
                finals[-1] if finals else None,
            )


def _endings(row: Row) -> list[dict[str, Any]]:
    """Return the endings of a topic in order, each with the offsets of the final ones from it on and before it."""
    endings = [ending.asDict() for ending in row.endings or ()]
    before = None
    for ending in endings:
        ending["final_before"] = before
        before = ending["offset"] if ending["is_final"] else before
    after = None
    for ending in reversed(endings):
        ending["final_at"] = after = ending["offset"] if ending["is_final"] else after
    return endings


def _further_endings(rows: Sequence[Row]) -> Iterator[tuple[Any, ...]]:
    """Yield the endings of a topic after its first, by blocks of offsets: those that may follow a record of the block.

    In blocks, because a search of each request through a list of all endings would take quadratic time for a kernel
    that is restarted after every request.
    """
    for row in rows:
        blocks: dict[int, list[dict[str, Any]]] = defaultdict(list)
        for before, ending in pairwise(_endings(row)):
            for block in range(before["offset"] >> _BLOCK_BITS, (ending["offset"] >> _BLOCK_BITS) + 1):
                blocks[block].append(ending)
        for block, endings in blocks.items():
            yield row.topic, row.epoch, block, endings


def _table(schema: Any, rows: Iterator[tuple[Any, ...]] | list[tuple[Any, ...]]) -> Any:
    names = schema.names
    return pa.Table.from_pylist([dict(zip(names, row, strict=True)) for row in rows], schema=schema)
