"""The fold: the new rows of ``iopub`` and the state of the batch before, to one row per request and the next state.

``fold_requests`` combines both, decides the life of each request (``lifecycle``) and sums its records. The column
``outcome`` of a row is

=============== =========================================================================================
closed          a request that closed in this batch: a row of ``executions``, written once
running         an open request: a row of ``executions`` until the next batch
recently_closed a request that closed before, kept in the state so that late messages are recognised
orphan          an IOPub message whose request did not appear within 60 s: a row of ``orphans``
waiting         an IOPub message whose request may still appear
=============== =========================================================================================

``next_state`` selects what the next batch needs: open requests with their sums so far, closed ones as long as they are
remembered, waiting messages for 60 s of their topic's time, and nothing of a kernel that ended. However much a cell
prints, its row stays small.

The fold is associative: the rows do not depend on where the log was cut into batches. It reads ``iopub`` several times,
so that should be read back from where it was written.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from himalia.spark.transforms import bounded_text, lifecycle
from himalia.spark.transforms.iopub import IOPUB_CHANNELS
from himalia.spark.transforms.lifecycle import GRACE_US
from himalia.spark.transforms.topic_endings import TopicEndings

EVENT_USERNAME = "himalia"
"""The user in server events without a caller, and in all events of earlier versions."""
FOREIGN = "foreign:"
"""Prefix of a user name that only the kernel reports: code in the kernel can forge it."""
KEY = ("request_id", "topic", "epoch")
"""The request's id comes first: rows are sorted by the key, and topics share a long prefix."""
CLOSED, RUNNING, RECENTLY_CLOSED = "closed", "running", "recently_closed"
ORPHAN, WAITING = "orphan", "waiting"

STREAMS = ("stdout", "stderr")
REQUEST_FIELDS = ("code", "asker", "session")
"""Columns of the records that a request may appear with."""

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
"""The state. A row of a request has ``life`` and, while it is open, ``sums`` of its records so far. A row of a waiting
message has ``message``, with what it adds to the sums of its request. ``busy_header_us`` and ``idle_header_us`` are the
kernel's own dates of the first busy and the first idle; they are not fields of the structs, because columns can be
added to the table of an earlier version, but fields of structs cannot."""

HEADER_DATES = ("busy_header_us", "idle_header_us")


def fold_requests(state: DataFrame, iopub: DataFrame) -> DataFrame:
    """Combine the state and a batch of ``iopub``: the columns of the state, some of the life, and ``outcome``."""
    endings = TopicEndings(state, iopub)
    records = _request_records(iopub)
    assigned = _assign_records(state, records, _decide_lives(state, records, endings))
    return _classify(_aggregate(assigned), state, endings)


def next_state(folded: DataFrame) -> DataFrame:
    """Select the state for the next batch, as ``STATE_SCHEMA`` has it."""
    return folded.where("is_carried").selectExpr(
        "topic",
        "epoch",
        "request_id",
        "life",
        "if(life.closed_us is null, sums, null) as sums",
        "message",
        *(f"if(life.closed_us is null, {name}, null) as {name}" for name in HEADER_DATES),
    )


# 1. The records of requests

_ON_IOPUB = f"channel in ({lifecycle.sql_list(IOPUB_CHANNELS)})"
_REQUEST_ID = "if(msg_type = 'execute_request', id, parent_id)"
_KIND = f"""case
    when event = 'request_queued' then '{lifecycle.QUEUED}'
    when event = 'request_closed' then '{lifecycle.CLOSED}'
    when msg_type = 'execute_request' then '{lifecycle.SENT}'
    when msg_type = 'execute_reply' then '{lifecycle.REPLY}'
    when msg_type = 'execute_input' and {_ON_IOPUB} then '{lifecycle.INPUT}'
    when msg_type = 'error' and {_ON_IOPUB} then '{lifecycle.ERROR}'
    when execution_state = 'idle' and msg_type = 'status' and {_ON_IOPUB} then '{lifecycle.IDLE}'
end"""
_ASKER = f"""case kind
    when '{lifecycle.QUEUED}' then nullif(username, '{EVENT_USERNAME}')
    when '{lifecycle.SENT}' then username
    when '{lifecycle.INPUT}' then '{FOREIGN}' || nullif(parent_username, '')
end"""
_SESSION = f"case kind when '{lifecycle.SENT}' then session when '{lifecycle.INPUT}' then parent_session end"
_STREAM = f"if(stream_name in ({lifecycle.sql_list(STREAMS)}), stream_name, null)"
_STREAM_TEXT = "if(stream is null, null, text)"


def _request_records(iopub: DataFrame) -> DataFrame:
    """Return the records that belong to a request: to which, their kind of mark, and what they add to its sums."""
    return iopub.where(f"{_REQUEST_ID} != ''").selectExpr(
        "topic",
        "epoch",
        f"{_REQUEST_ID} as request_id",
        "offset",
        "unix_micros(ts) as us",
        f"{_KIND} as kind",
        "id",
        "channel",
        "msg_type",
        "execution_state = 'busy' as is_busy",
        f"if(execution_state = 'busy' and {_ON_IOPUB}, unix_micros(header_ts), null) as busy_header_us",
        f"if(kind = '{lifecycle.IDLE}', unix_micros(header_ts), null) as idle_header_us",
        "execution_count",
        f"{_STREAM} as stream",
        f"{bounded_text.head(_STREAM_TEXT)} as head",
        f"{bounded_text.tail(_STREAM_TEXT)} as tail",
        f"cast(octet_length({_STREAM_TEXT}) as bigint) as bytes",
        f"if(kind in ('{lifecycle.ERROR}', '{lifecycle.REPLY}'), ename, null) as ename",
        "evalue",
        "mime_types",
        f"if(kind in ({lifecycle.sql_list(lifecycle.APPEARING)}), code, null) as code",
        f"{_ASKER} as asker",
        f"{_SESSION} as session",
        "status",
        "reason",
    )


# 2. The lives of each request

_DECIDED = ("until", "appeared_at", "closed_at", "closed_us", "status", "reason", "reply")
"""The columns that are the same for all rows of a life, besides its flags."""
_MARK = "struct(offset, us, previous_us, kind, status, reason, further)"
_IS_MARK = f"us is not null and (kind is not null or previous_us is null or us - previous_us > {GRACE_US})"


def _decide_lives(state: DataFrame, records: DataFrame, endings: TopicEndings) -> DataFrame:
    """Return one row per life of each request in the batch or the state."""
    in_order = Window.partitionBy(*KEY).orderBy("offset")
    carried = state.selectExpr(*KEY, "-1 as offset", "life as carried")
    marks = records.select(*KEY, "offset", "us", "kind", "status", "reason")
    rows = endings.with_next_ending(
        marks.unionByName(carried, allowMissingColumns=True), F.col("kind").isin(*lifecycle.APPEARING)
    ).withColumn("previous_us", F.lag("us").over(in_order))
    return (
        rows.groupBy(*KEY)
        .agg(
            F.expr(f"sort_array(collect_list({_MARK}) filter (where {_IS_MARK}))").alias("marks"),
            F.expr("get(collect_list(carried), 0)").alias("carried"),
        )
        .join(endings.topics, ["topic", "epoch"])
        .select(*KEY, F.explode(F.expr(lifecycle.LIVES)).alias("life"))
        .selectExpr(
            *KEY,
            *(f"life.{name}" for name in ("start", "appeared_us", "not_before_offset", *_DECIDED)),
            f"{lifecycle.flags('life')} as flags",
        )
    )


# 3. Which records count for which life

_IS_IOPUB = f"coalesce({_ON_IOPUB}, false)"
_IS_EARLY = "offset < appeared_at"
_IS_TOO_EARLY = (
    f"{_IS_EARLY} and (appeared_us - us > {GRACE_US} or coalesce(offset < not_before_offset, false))"
)
_IS_UNCLAIMED = f"{_IS_IOPUB} and (appeared_at is null or ({_IS_TOO_EARLY}))"
_IS_COUNTED = f"""
    us is not null and appeared_at is not null and not ({_IS_UNCLAIMED})
    and ({_IS_IOPUB} or not {_IS_EARLY}) and (closed_at is null or offset <= closed_at)
"""


def _assign_records(state: DataFrame, records: DataFrame, lives: DataFrame) -> DataFrame:
    """Join records and waiting messages with the life that they belong to; lives without records stay.

    ``counted_at`` is the offset of a record that counts for its life, ``unclaimed_at`` that of a message whose request
    has not appeared.
    """
    waiting = state.where("message is not null").select(*KEY, "message.*", *HEADER_DATES)
    rows = records.drop("status", "reason").unionByName(waiting, allowMissingColumns=True).alias("row")
    same = " and ".join(f"row.{name} = life.{name}" for name in KEY)
    joined = rows.join(
        lives.alias("life").hint("shuffle_hash"),
        F.expr(f"{same} and offset >= start and offset < until"),
        "right",
    )
    return joined.drop(*(F.col(f"row.{name}") for name in KEY)).selectExpr(
        "*",
        f"if({_IS_UNCLAIMED}, offset, null) as unclaimed_at",
        f"if({_IS_COUNTED}, offset, null) as counted_at",
    )


# 4. The sums of each life


def _aggregate(assigned: DataFrame) -> DataFrame:
    """Return one row per life, with its sums in this batch, and one per unclaimed message."""
    group = (*KEY, "start", "unclaimed_at")
    of_stream = Window.partitionBy(*group, "stream").orderBy("offset")
    so_far = of_stream.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    whole = of_stream.rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)
    counted_bytes = F.expr("if(counted_at is null, 0, bytes)")
    sized = assigned.select(
        "*",
        F.sum(counted_bytes).over(so_far).alias("upto"),
        F.sum(counted_bytes).over(whole).alias("whole"),
        F.row_number().over(of_stream).alias("number"),
        *(
            F.count(F.expr(_null_unless_counted(name))).over(so_far).alias(f"{name}s")
            for name in REQUEST_FIELDS
        ),
    )
    message = ", ".join(f"'{name}', {name}" for name in _MESSAGE)
    # Lists of few elements instead of ``first`` or ``min_by``: an aggregate that holds a string copies it for every
    # row.
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
            *(F.expr(expression).alias(name) for name, expression in _batch_sums().items()),
            F.expr(
                f"get(collect_list(named_struct({message})) filter (where unclaimed_at is not null), 0)"
            ).alias("message"),
        )
        .withColumn("decided", F.col("decided")[0])
        .select("*", "decided.*")
        .drop("decided")
    )


def _batch_sums() -> dict[str, str]:
    """Return the expressions of ``_SUMS`` over a group of records."""
    counted = "counted_at is not null"
    error = "struct(msg_type = 'error' as is_message, counted_at, ename, evalue)"
    return {
        "first_offset": "min(counted_at)",
        "last_offset": "max(counted_at)",
        "first_us": f"min(us) filter (where {counted})",
        "queued_us": f"min(us) filter (where {counted} and kind = '{lifecycle.QUEUED}')",
        "sent_us": f"min(us) filter (where {counted} and kind = '{lifecycle.SENT}')",
        "started_us": f"min(us) filter (where {counted} and is_busy)",
        "code": _first_of("code"),
        "username": _first_of("asker"),
        "session": _first_of("session"),
        # The last that is not null.
        "execution_count": "max_by(execution_count, if(execution_count is null, null, counted_at))",
        # A published error takes precedence over that of the reply, whichever came first.
        "error": f"max(if(ename is null or counted_at is null, null, {error}))",
        **{
            f"{channel}_messages": f"count_if({counted} and channel = '{channel}')"
            for channel in IOPUB_CHANNELS
        },
        "mime_types": f"collect_set(mime_types) filter (where {counted})",
        **{name: _stream_piece(name) for name in STREAMS},
    }


def _null_unless_counted(name: str) -> str:
    """A column, or null if the record does not count."""
    return f"if(counted_at is null, null, {name})"


def _first_of(name: str) -> str:
    """The first value that is not null."""
    return f"get(collect_list({_null_unless_counted(name)}) filter (where {name}s = 1), 0)"


def _stream_piece(name: str) -> str:
    """The output of a stream, from only those texts that its head and tail need, so that they fit into memory."""
    own, half = f"counted_at is not null and stream = '{name}'", bounded_text.HALF_BYTES
    in_order = "within group (order by offset)"
    heads = f"listagg(head) {in_order} filter (where {own} and upto - bytes < {half})"
    is_near_the_end = f"whole > {half} and whole - upto < {half}"
    tails = f"listagg(coalesce(tail, head)) {in_order} filter (where {own} and {is_near_the_end})"
    return bounded_text.concat_all(heads, tails, f"coalesce(max(whole) filter (where {own}), 0)")


# 5. The outcome of each row

_OUTCOME = f"""case
    when message is not null then if(
        superseded_us is not null or appeared_at is not null or topic_us - message.us > {GRACE_US}
            or last_final > message.offset,
        '{ORPHAN}', '{WAITING}'
    )
    when appeared_at is null then null
    when closed_at is null then '{RUNNING}'
    when closed_at < 0 then '{RECENTLY_CLOSED}'
    else '{CLOSED}'
end"""
_LAST_US = "greatest(last_us, heard_us, closed_us)"
# A deleted topic's request closes with its last record: the clock may have been set back before the new epoch began.
_CLOSED_US = f"if(closed_at = {lifecycle.END_OF_TOPIC}, {_LAST_US}, closed_us)"
_FLAGS = ", ".join(f"'{name}', flags & {bit} > 0" for name, bit in lifecycle.FLAGS.items())
_LIFE = f"""if(message is null, named_struct(
    {_FLAGS}, 'reply', reply, 'closed_us', closed_us, 'heard_us', last_us
), null)"""
_IS_REMEMBERED = f"""
    until = {lifecycle.END_OF_TOPIC} and superseded_us is null
    and coalesce(topic_us - last_us <= {GRACE_US}, true)
"""
_IS_CARRIED = f"outcome in ('{RUNNING}', '{WAITING}') or (message is null and {_IS_REMEMBERED})"


def _classify(aggregated: DataFrame, state: DataFrame, endings: TopicEndings) -> DataFrame:
    """Add the sums of the state to each row, and its outcome."""
    before = state.where("life is not null").selectExpr(
        *KEY, "life.heard_us", "sums as before", *(f"{name} as {name}_before" for name in HEADER_DATES)
    )
    sums = ", ".join(f"'{name}', {expression}" for name, expression in _all_sums().items())
    return (
        aggregated.join(before.withColumn("start", F.lit(-1)), [*KEY, "start"], "left")
        .join(endings.topics, ["topic", "epoch"])
        .withColumns(
            {"outcome": F.expr(_OUTCOME), "last_us": F.expr(_LAST_US), "closed_us": F.expr(_CLOSED_US)}
        )
        .where("outcome is not null")
        .selectExpr(
            *KEY,
            f"{_LIFE} as life",
            f"if(message is null, named_struct({sums}), null) as sums",
            "message",
            *(f"least({name}_before, {name}) as {name}" for name in HEADER_DATES),
            "status",
            "reason",
            "outcome",
            f"{_IS_CARRIED} as is_carried",
        )
    )


def _all_sums() -> dict[str, str]:
    """Return the expressions of ``_SUMS`` that combine the sums of the state (``before``) with those of the batch."""
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
        **{name: bounded_text.concat(f"before.{name}", name) for name in STREAMS},
    }
    return {name: sums[name] for name in _SUMS}
