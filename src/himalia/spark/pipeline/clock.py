"""Time and endings, per topic: what the records of a batch say to all requests of their topic.

Time is the records' own: a topic's time is that of its newest record, and a rule that waits for it to pass never looks
at a clock on a wall. An *ending* is an event after which nothing that ran goes on: the kernel died, was stopped, or is
restarted. And where a topic was deleted and created again, what the old one had open stays unanswered.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

_IS_ENDING = "event in ('died', 'stopped', 'restarting')"
_ENDING = f"""if(
    {_IS_ENDING},
    named_struct(
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
        )
    ),
    null
)"""
_BLOCK_BITS = 8


def topics(state: DataFrame, iopub: DataFrame) -> DataFrame:
    """One row for each topic and epoch of the batch or the state: small, to be joined with everything.

    - ``topic_us``: the topic's time at the end of the batch; null if the batch has nothing of it
    - ``first_ending`` of it in the batch; null if there is none
    - ``superseded_us``: when the next epoch of the topic began; null if none did
    """
    said = iopub.selectExpr("topic", "epoch", "unix_micros(ts) as us", f"{_ENDING} as ending")
    known = state.select("topic", "epoch").distinct()
    # An epoch of which only the state knows is older than all in the batch.
    by_age = Window.partitionBy("topic").orderBy(F.col("first_us").asc_nulls_first(), "epoch")
    return (
        said.unionByName(known, allowMissingColumns=True)
        .groupBy("topic", "epoch")
        .agg(
            F.min("us").alias("first_us"),
            F.max("us").alias("topic_us"),
            F.min("ending").alias("first_ending"),
        )
        .select(
            "topic",
            "epoch",
            "topic_us",
            "first_ending",
            F.lead("first_us").over(by_age).alias("superseded_us"),
        )
    )


def further_endings(iopub: DataFrame) -> DataFrame:
    """Endings of a topic after its first, by ``topic``, ``epoch`` and ``block`` of offsets: all that may be the next
    one of a record of that block, in order.

    By blocks, because a list of all endings, looked through by each request, would make a kernel that is restarted
    after every request quadratic.
    """
    in_order = Window.partitionBy("topic", "epoch").orderBy("offset")
    endings = iopub.where(_IS_ENDING).select(
        "topic",
        "epoch",
        "offset",
        F.expr(_ENDING).alias("ending"),
        F.lag("offset").over(in_order).alias("before"),
    )
    blocks = F.explode(F.sequence(block_of(F.col("before")), block_of(F.col("offset"))))
    return (
        endings.where("before is not null")
        .select("topic", "epoch", "ending", blocks.alias("block"))
        .groupBy("topic", "epoch", "block")
        .agg(F.sort_array(F.collect_list("ending")).alias("endings"))
    )


def block_of(offset: Column) -> Column:
    return F.shiftright(offset, _BLOCK_BITS)


def ending_after(offset: str) -> Column:
    """The first ending after a record, in a row that was joined with its topic and the further endings of its block."""
    return F.expr(f"""
        if(first_ending.offset > {offset}, first_ending, get(filter(endings, one -> one.offset > {offset}), 0))
    """)
