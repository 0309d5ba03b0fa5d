"""The fold: ``iopub`` and the state of the batch before, to one row per request, and the state for the next batch.

``merged`` has the rows of both, decided (``course``) and summed. Its ``verdict`` says what each is:

========== ===============================================================================================
closed     a request that ended in this batch: a row of ``executions``, written once
running    a request that is open: a row of ``executions`` until the next batch
lingering  a request that ended before, remembered so that what comes late is known as late
orphan     a message of IOPub whose request did not appear within 60 s: a row of ``orphans``
waiting    a message of IOPub whose request may still appear
========== ===============================================================================================

``carried`` is what the next batch needs of it: open requests with their sums so far, closed ones for as long as they
are remembered, waiting messages for 60 s of their topic's time, and nothing of a kernel that is gone. However long a
cell prints, its row stays small.

Folding is associative: any way of cutting the log into batches gives the same rows. It reads ``iopub`` several times,
so that is best read back from where it was written.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from himalia.spark.transforms import bounded_text, lifecycle
from himalia.spark.transforms.endings import Clock
from himalia.spark.transforms.iopub import IOPUB_CHANNELS
from himalia.spark.transforms.lifecycle import PATIENCE_US

EVENT_USERNAME = "himalia"
"""What events of the server carry where no caller caused them, and all events of earlier versions."""
FOREIGN = "foreign:"
"""Qualifies a name that only the kernel says: code in it can give that of any caller."""
KEY = ("request_id", "topic", "epoch")
"""The request's id first: rows are sorted by it, and topics all begin alike."""
CLOSED, RUNNING, LINGERING, ORPHAN, WAITING = "closed", "running", "lingering", "orphan", "waiting"

STREAMS = ("stdout", "stderr")
ASKED = ("code", "asker", "session")
"""What those records say that a request may appear with."""

_MESSAGE = {
    "offset": "bigint",
    "us": "bigint",
    "id": "string",
    "channel": "string",
    "msg_type": "string",
    "is_busy": "boolean",
    "execution_count": "bigint",
    "stream": "string",
    "head": "binary",
    "tail": "binary",
    "bytes": "bigint",
    "ename": "string",
    "evalue": "string",
    "mime_types": "array<string>",
}
_SUMS = {
    "first_offset": "bigint",
    "last_offset": "bigint",
    "first_us": "bigint",
    "queued_us": "bigint",
    "sent_us": "bigint",
    "started_us": "bigint",
    "code": "string",
    "username": "string",
    "session": "string",
    "execution_count": "bigint",
    "error": "struct<is_message: boolean, ename: string, evalue: string>",
    **{f"{channel}_messages": "bigint" for channel in IOPUB_CHANNELS},
    "mime_types": "array<string>",
    **dict.fromkeys(STREAMS, bounded_text.PIECE),
}


def _struct(fields: dict[str, str]) -> str:
    return f"struct<{', '.join(f'{name}: {kind}' for name, kind in fields.items())}>"


STATE_SCHEMA = f"""
    topic string, epoch string, request_id string,
    life {lifecycle.CARRIED}, sums {_struct(_SUMS)}, message {_struct(_MESSAGE)},
    busy_header_us bigint, idle_header_us bigint
"""
"""The state. A request has ``life`` and, while it is open, ``sums``: what it amounts to so far. A waiting message has
``message``: who it is, and what it will add to the sums of its request. ``busy_header_us`` and ``idle_header_us`` are
the kernel's own dates of the first busy and the first idle; not within the structs, because a warehouse of an earlier
version can be given columns, but not fields."""

HEADER_DATES = ("busy_header_us", "idle_header_us")


def merged(state: DataFrame, iopub: DataFrame) -> DataFrame:
    """The state and a batch of ``iopub`` together: the columns of the state, some of the life, and ``verdict``."""
    clock = Clock(state, iopub)
    fresh = _fresh(iopub)
    placed = _placed(state, fresh, _courses(state, fresh, clock))
    return _judged(_summed(placed), state, clock)


def carried(merged: DataFrame) -> DataFrame:
    """The state for the next batch, as ``STATE_SCHEMA`` has it."""
    return merged.where("is_carried").selectExpr(
        "topic",
        "epoch",
        "request_id",
        "life",
        "if(life.closed_us is null, sums, null) as sums",
        "message",
        *(f"if(life.closed_us is null, {name}, null) as {name}" for name in HEADER_DATES),
    )


# What goes in


def _fresh(iopub: DataFrame) -> DataFrame:
    """The records of requests: whose they are, what they decide, what they add."""
    on_iopub = f"channel in ({_quoted(IOPUB_CHANNELS)})"
    kind = f"""case
        when event = 'request_queued' then '{lifecycle.QUEUED}'
        when event = 'request_closed' then '{lifecycle.CLOSED}'
        when msg_type = 'execute_request' then '{lifecycle.SENT}'
        when msg_type = 'execute_reply' then '{lifecycle.REPLY}'
        when msg_type = 'execute_input' and {on_iopub} then '{lifecycle.INPUT}'
        when msg_type = 'error' and {on_iopub} then '{lifecycle.ERROR}'
        when execution_state = 'idle' and msg_type = 'status' and {on_iopub} then '{lifecycle.IDLE}'
    end"""
    stream = f"if(stream_name in ({_quoted(STREAMS)}), stream_name, null)"
    text = "if(stream is null, null, text)"
    request_id = "if(msg_type = 'execute_request', id, parent_id)"
    return iopub.where(f"{request_id} != ''").selectExpr(
        "topic",
        "epoch",
        f"{request_id} as request_id",
        "offset",
        "unix_micros(ts) as us",
        f"{kind} as kind",
        "id",
        "channel",
        "msg_type",
        "execution_state = 'busy' as is_busy",
        f"if(execution_state = 'busy' and {on_iopub}, unix_micros(header_ts), null) as busy_header_us",
        f"if(kind = '{lifecycle.IDLE}', unix_micros(header_ts), null) as idle_header_us",
        "execution_count",
        f"{stream} as stream",
        f"{bounded_text.head(text)} as head",
        f"{bounded_text.tail(text)} as tail",
        f"cast(octet_length({text}) as bigint) as bytes",
        f"if(kind in ('{lifecycle.ERROR}', '{lifecycle.REPLY}'), ename, null) as ename",
        "evalue",
        "mime_types",
        f"if(kind in ({_quoted(lifecycle.APPEARING)}), code, null) as code",
        f"""case kind
            when '{lifecycle.QUEUED}' then nullif(username, '{EVENT_USERNAME}')
            when '{lifecycle.SENT}' then username
            when '{lifecycle.INPUT}' then '{FOREIGN}' || nullif(parent_username, '')
        end as asker""",
        f"case kind when '{lifecycle.SENT}' then session when '{lifecycle.INPUT}' then parent_session end as session",
        "status",
        "reason",
    )


# Deciding


def _courses(state: DataFrame, fresh: DataFrame, clock: Clock) -> DataFrame:
    """One row per life of each request in the batch or the state."""
    in_order = Window.partitionBy(*KEY).orderBy("offset")
    known = state.selectExpr(*KEY, "-1 as offset", "life as carried")
    told = fresh.select(*KEY, "offset", "us", "kind", "status", "reason")
    rows = clock.with_further_ending(
        told.unionByName(known, allowMissingColumns=True), F.col("kind").isin(*lifecycle.APPEARING)
    ).withColumn("previous_us", F.lag("us").over(in_order))
    mark = "struct(offset, us, previous_us, kind, status, reason, further)"
    is_mark = (
        f"us is not null and (kind is not null or previous_us is null or us - previous_us > {PATIENCE_US})"
    )
    lives = lifecycle.lives("marks", "carried", "first_ending", "last_final", "superseded_us")
    return (
        rows.groupBy(*KEY)
        .agg(
            F.expr(f"sort_array(collect_list({mark}) filter (where {is_mark}))").alias("marks"),
            F.expr("get(collect_list(carried), 0)").alias("carried"),
        )
        .join(clock.topics, ["topic", "epoch"])
        .select(*KEY, F.explode(lives).alias("life"))
        .selectExpr(
            *KEY,
            *(f"life.{name}" for name in ("start", "appeared_us", "barred_at", *_DECIDED)),
            f"{lifecycle.flags('life')} as flags",
        )
    )


def _placed(state: DataFrame, fresh: DataFrame, courses: DataFrame) -> DataFrame:
    """Records and waiting messages, each with its life and what it is to it; and lives that have none.

    A record that counts has its offset as ``counted_at``; a message that no request claims, as ``unclaimed_at``.
    """
    waiting = state.where("message is not null").select(*KEY, "message.*", *HEADER_DATES)
    rows = fresh.drop("status", "reason").unionByName(waiting, allowMissingColumns=True).alias("row")
    same = " and ".join(f"row.{name} = life.{name}" for name in KEY)
    is_iopub = f"coalesce(channel in ({_quoted(IOPUB_CHANNELS)}), false)"
    is_early = "offset < appeared_at"
    is_too_early = f"{is_early} and (appeared_us - us > {PATIENCE_US} or coalesce(offset < barred_at, false))"
    is_unclaimed = f"{is_iopub} and (appeared_at is null or ({is_too_early}))"
    is_counted = f"""
        us is not null and appeared_at is not null and not ({is_unclaimed})
        and ({is_iopub} or not {is_early}) and (closed_at is null or offset <= closed_at)
    """
    joined = rows.join(
        courses.alias("life").hint("shuffle_hash"),
        F.expr(f"{same} and offset >= start and offset < until"),
        "right",
    )
    return joined.drop(*(F.col(f"row.{name}") for name in KEY)).selectExpr(
        "*",
        f"if({is_unclaimed}, offset, null) as unclaimed_at",
        f"if({is_counted}, offset, null) as counted_at",
    )


# Summing


def _summed(placed: DataFrame) -> DataFrame:
    """One row per life of a request, with its sums in this batch, and one per unclaimed message."""
    group = (*KEY, "start", "unclaimed_at")
    of_stream = Window.partitionBy(*group, "stream").orderBy("offset")
    so_far = of_stream.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    whole = of_stream.rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)
    counted_bytes = F.expr("if(counted_at is null, 0, bytes)")
    sized = placed.select(
        "*",
        F.sum(counted_bytes).over(so_far).alias("upto"),
        F.sum(counted_bytes).over(whole).alias("whole"),
        F.row_number().over(of_stream).alias("number"),
        *(F.count(F.expr(_counted(name))).over(so_far).alias(f"{name}s") for name in ASKED),
    )
    message = ", ".join(f"'{name}', {name}" for name in _MESSAGE)
    # What all rows have alike is listed from the first of each stream, and what is said once or twice from the first
    # that has it: an aggregate that holds a string copies it for every row.
    return (
        sized.groupBy(*group)
        .agg(
            F.expr(
                f"collect_list(struct({', '.join((*_DECIDED, 'flags'))})) filter (where number = 1)"
            ).alias("decided"),
            F.max("us").alias("last_us"),
            *(
                F.expr(
                    f"min({name}) filter (where counted_at is not null or unclaimed_at is not null)"
                ).alias(name)
                for name in HEADER_DATES
            ),
            *(F.expr(expression).alias(name) for name, expression in _fresh_sums().items()),
            F.expr(
                f"get(collect_list(named_struct({message})) filter (where unclaimed_at is not null), 0)"
            ).alias("message"),
        )
        .withColumn("decided", F.col("decided")[0])
        .select("*", "decided.*")
        .drop("decided")
    )


_DECIDED = ("until", "appeared_at", "closed_at", "closed_us", "status", "reason", "reply")
"""What is the same for all rows of a life, beside its flags."""


def _fresh_sums() -> dict[str, str]:
    """The sums of a group of records."""
    counted = "counted_at is not null"
    error = "struct(msg_type = 'error' as is_message, counted_at, ename, evalue)"
    return {
        "first_offset": "min(counted_at)",
        "last_offset": "max(counted_at)",
        "first_us": f"min(us) filter (where {counted})",
        "queued_us": f"min(us) filter (where {counted} and kind = '{lifecycle.QUEUED}')",
        "sent_us": f"min(us) filter (where {counted} and kind = '{lifecycle.SENT}')",
        "started_us": f"min(us) filter (where {counted} and is_busy)",
        "code": _first_said("code"),
        "username": _first_said("asker"),
        "session": _first_said("session"),
        # The last of those that are there.
        "execution_count": "max_by(execution_count, if(execution_count is null, null, counted_at))",
        # What the kernel published goes before what it replied, whichever came first.
        "error": f"max(if(ename is null or counted_at is null, null, {error}))",
        **{
            f"{channel}_messages": f"count_if({counted} and channel = '{channel}')"
            for channel in IOPUB_CHANNELS
        },
        "mime_types": f"collect_set(mime_types) filter (where {counted})",
        **{name: _fresh_stream(name) for name in STREAMS},
    }


def _counted(name: str) -> str:
    """A value, if its record counts."""
    return f"if(counted_at is null, null, {name})"


def _first_said(name: str) -> str:
    """Of the values that are there, the first."""
    return f"get(collect_list({_counted(name)}) filter (where {name}s = 1), 0)"


def _fresh_stream(name: str) -> str:
    """What was printed; only of pieces that the head or the tail needs, so that all of them fit into memory."""
    own, half = f"counted_at is not null and stream = '{name}'", bounded_text.HALF_BYTES
    in_order = "within group (order by offset)"
    heads = f"listagg(head) {in_order} filter (where {own} and upto - bytes < {half})"
    is_near_the_end = f"whole > {half} and whole - upto < {half}"
    tails = f"listagg(coalesce(tail, head)) {in_order} filter (where {own} and {is_near_the_end})"
    return bounded_text.joined(heads, tails, f"coalesce(max(whole) filter (where {own}), 0)")


# Judging


def _judged(summed: DataFrame, state: DataFrame, clock: Clock) -> DataFrame:
    """The rows with the sums of the state, and a verdict."""
    before = state.where("life is not null").selectExpr(
        *KEY, "life.heard_us", "sums as before", *(f"{name} as {name}_before" for name in HEADER_DATES)
    )
    verdict = f"""case
        when message is not null then if(
            superseded_us is not null or appeared_at is not null or topic_us - message.us > {PATIENCE_US}
                or last_final > message.offset,
            '{ORPHAN}', '{WAITING}'
        )
        when appeared_at is null then null
        when closed_at is null then '{RUNNING}'
        when closed_at < 0 then '{LINGERING}'
        else '{CLOSED}'
    end"""
    flags = ", ".join(f"'{name}', flags & {bit} > 0" for name, bit in lifecycle.FLAGS.items())
    is_remembered = f"""
        until = {lifecycle.AT_THE_END} and superseded_us is null
        and coalesce(topic_us - last_us <= {PATIENCE_US}, true)
    """
    sums = ", ".join(f"'{name}', {expression}" for name, expression in _all_sums().items())
    return (
        summed.join(before.withColumn("start", F.lit(-1)), [*KEY, "start"], "left")
        .join(clock.topics, ["topic", "epoch"])
        .withColumns(
            {
                "verdict": F.expr(verdict),
                "last_us": F.expr("greatest(last_us, heard_us, closed_us)"),
                # The clock may have been set back before the topic was created again.
                "closed_us": F.expr(
                    f"if(closed_at = {lifecycle.AT_THE_END}, greatest(last_us, heard_us, closed_us), closed_us)"
                ),
            }
        )
        .where("verdict is not null")
        .selectExpr(
            *KEY,
            f"""if(message is null, named_struct(
                {flags}, 'reply', reply, 'closed_us', closed_us, 'heard_us', last_us
            ), null) as life""",
            f"if(message is null, named_struct({sums}), null) as sums",
            "message",
            *(f"least({name}_before, {name}) as {name}" for name in HEADER_DATES),
            "status",
            "reason",
            "verdict",
            f"verdict in ('{RUNNING}', '{WAITING}') or (message is null and {is_remembered}) as is_carried",
        )
    )


def _all_sums() -> dict[str, str]:
    """The sums of the state and of the batch; what the state has is older."""
    first = ("first_offset", "first_us", "queued_us", "sent_us", "started_us", "code", "username", "session")
    last = ("last_offset", "execution_count")
    added = tuple(f"{channel}_messages" for channel in IOPUB_CHANNELS)
    error = "named_struct('is_message', error.is_message, 'ename', error.ename, 'evalue', error.evalue)"
    is_newer = "error is not null and (error.is_message or not coalesce(before.error.is_message, false))"
    sums = {
        **{name: f"coalesce(before.{name}, {name})" for name in first},
        **{name: f"coalesce({name}, before.{name})" for name in last},
        **{name: f"coalesce(before.{name}, 0) + {name}" for name in added},
        "error": f"if({is_newer}, {error}, before.error)",
        "mime_types": "sort_array(array_union(coalesce(before.mime_types, array()), flatten(mime_types)))",
        **{name: bounded_text.put_together(f"before.{name}", name) for name in STREAMS},
    }
    return {name: sums[name] for name in _SUMS}


def _quoted(names: tuple[str, ...]) -> str:
    return ", ".join(f"'{name}'" for name in names)
