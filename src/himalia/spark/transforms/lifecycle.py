"""The course of a request: when it appeared, when and how it ended, and when it was forgotten.

Decided record by record, in the order of the topic, from *marks*: the few records that can decide something. The rules:

- A request **appears** with its ``request_queued``, its ``execute_request``, or, if another client made it, with the
  kernel's ``execute_input``. What the kernel said of it in the 60 s before counts too, but decides nothing.
- It **closes** with ``request_closed``, as that says. One that was not queued here closes when the kernel has said
  idle and, if its ``execute_request`` passed through here, has replied. One that is open when the kernel dies is
  ``died``; when it is stopped or restarted, ``aborted``; when the topic is deleted and created again, ``stale``.
- What comes later is **late**. While there are never more than 60 s between the records of a closed request it is
  remembered; a record after a longer pause finds it **forgotten**, as if it had never been: it may appear again, as
  another *life*. When the kernel has died or was stopped, all that was before is forgotten at once, and nothing that
  it said before belongs to a request that appears later.

All of this is a function of the records alone, so that where a batch was cut cannot matter. It is written as one
expression, a fold over the marks of a request, because Spark then keeps no state but ours.
"""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F

PATIENCE_US = 60_000_000
"""How long a message waits for its request, and how long a closed request is remembered, in its topic's time."""

QUEUED, SENT, INPUT = APPEARING = ("queued", "sent", "input")
CLOSED, IDLE, ERROR, REPLY = ("closed", "idle", "error", "reply")

STATUSES = ("ok", "error", "aborted", "died", "timeout", "cancelled", "stale")
DELETED = "the topic was deleted"
AT_THE_END = 2**63 - 1
"""After all records: the last life lasts until there, and a request whose topic was deleted closes there."""

ENDING = """struct<
    offset: bigint, us: bigint, status: string, reason: string, final_at: bigint, final_before: bigint
>"""
"""An event after which nothing that ran goes on, see ``clock``. ``final_at`` is the offset of the first that is final,
itself or a later one; ``final_before`` that of the last final one before it. Both of this batch, or null."""

CARRIED = """struct<
    is_queued: boolean, is_sent: boolean, is_idle: boolean, has_failed: boolean, reply: string,
    closed_us: bigint, heard_us: bigint
>"""
"""What the next batch has to know of a request that has appeared. ``closed_us`` is null while it is open, ``heard_us``
the time of its last record."""

_LIFE = {
    "start": "bigint",
    "until": "bigint",
    "appeared_at": "bigint",
    "appeared_us": "bigint",
    "barred_at": "bigint",
    "is_queued": "boolean",
    "is_sent": "boolean",
    "is_idle": "boolean",
    "has_failed": "boolean",
    "reply": "string",
    "ending": ENDING,
    "closed_at": "bigint",
    "closed_us": "bigint",
    "status": "string",
    "reason": "string",
    "heard_us": "bigint",
}
LIFE = f"struct<{', '.join(f'{name}: {kind}' for name, kind in _LIFE.items())}>"
"""One life of a request in a batch. ``*_at`` are offsets, ``*_us`` times. Records from ``start`` to before
``until`` are its own, but for those before ``barred_at``. ``ending`` is the first after it appeared. One that goes on
from the state appeared at -1, and one that was closed there closed at -1."""

FLAGS = {"is_queued": 1, "is_sent": 2, "is_idle": 4, "has_failed": 8}
"""The bits of what is yes or no, where a life goes with each of many records."""


def lives(marks: str, carried: str, ending: str, last_final: str, superseded_us: str) -> Column:
    """The lives of one request in a batch, in order: an array of ``LIFE``, never empty. The arguments name columns:

    ``marks`` in order, each a struct of ``offset``, ``us``, ``previous_us`` (of the record of this request before it,
    null for the first of a batch), ``kind`` (null if it only ends a pause), ``status``, ``reason`` and ``further`` (the
    first ending after it, if it is not before the topic's first); ``carried``, what the state has of it, or null;
    ``ending``, the first of the topic, and ``last_final``, the offset of its last final one; ``superseded_us``, when
    another epoch of the topic began.
    """
    known = ("is_queued", "is_sent", "is_idle", "has_failed", "reply", "closed_us", "heard_us")
    going_on = _life(
        "null",
        start="-1",
        until=str(AT_THE_END),
        appeared_at="-1",
        closed_at=f"if({carried}.closed_us is null, null, -1)",
        ending=ending,
        **{name: f"{carried}.{name}" for name in known},
    )
    superseded = _closed("life", str(AT_THE_END), superseded_us, "'stale'", f"'{DELETED}'")
    last = f"if({_is_open('life')} and {superseded_us} is not null, {superseded}, life)"
    parts = f"if({_IS_OVER}, array({_UNTIL_FINAL}, {_fresh(_AFTER_FINAL)}), array(life))"
    return F.expr(f"""
        aggregate(
            coalesce({marks}, array()),
            named_struct(
                'past', cast(array() as array<{LIFE}>),
                'now', if({carried} is null, {_fresh("-1")}, {going_on})
            ),
            (done, mark) -> {_step(ending, last_final)},
            done -> concat(
                done.past,
                {_let("life", _ended("done.now", str(AT_THE_END)), _let("life", last, parts))}
            )
        )
    """)


def flags(life: str) -> str:
    """The flags of a life, as one number."""
    return " + ".join(f"if({life}.{name}, {bit}, 0)" for name, bit in FLAGS.items())


def _life(unchanged: str, **changed: str) -> str:
    """A life of which some fields are as given, and the others as in the life ``unchanged``, or null."""
    fields = []
    for name, kind in _LIFE.items():
        value = changed.get(name) or ("null" if unchanged == "null" else f"{unchanged}.{name}")
        fields.append(f"'{name}', cast({value} as {kind})" if unchanged == "null" else f"'{name}', {value}")
    return f"named_struct({', '.join(fields)})"


def _fresh(start: str) -> str:
    """The life of a request of which nothing is known."""
    flags = dict.fromkeys(("is_queued", "is_sent", "is_idle", "has_failed"), "false")
    return _life("null", start=start, until=str(AT_THE_END), **flags)


def _closed(life: str, at: str, us: str, status: str, reason: str) -> str:
    return _life(life, closed_at=at, closed_us=us, status=status, reason=reason)


def _is_open(life: str) -> str:
    return f"{life}.appeared_at is not null and {life}.closed_at is null"


def _ended(life: str, before: str) -> str:
    """A life after the ending that came before some record, if one did."""
    ending = f"{life}.ending"
    closed = _closed(life, f"{ending}.offset", f"{ending}.us", f"{ending}.status", f"{ending}.reason")
    return f"if({_is_open(life)} and {ending}.offset < {before}, {closed}, {life})"


def _let(name: str, value: str, body: str) -> str:
    """``body``, in which a name stands for a value that is worked out once."""
    return f"transform(array({value}), {name} -> {body})[0]"


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(f"'{name}'" for name in names)


_IS_FORGOTTEN = f"""
    life.closed_at is not null
    and mark.us - greatest(coalesce(mark.previous_us, life.heard_us), life.closed_us) > {PATIENCE_US}
"""


_IS_OVER = "life.closed_at is not null and life.ending.final_at is not null"
"""It closed, and since then the kernel died or was stopped, somewhere in the batch."""
_AFTER_FINAL = "life.ending.final_at + 1"
_UNTIL_FINAL = _life("life", until=_AFTER_FINAL)


def _noted(ending: str, last_final: str) -> str:
    """A life and what a mark says, once it has appeared."""
    following = f"if({ending}.offset > mark.offset, {ending}, mark.further)"
    is_reply, replied = f"mark.kind = '{REPLY}'", "if(mark.status in ('error', 'aborted'), mark.status, 'ok')"
    noted = _life(
        "life",
        appeared_at="coalesce(life.appeared_at, mark.offset)",
        appeared_us="if(life.appeared_at is null, mark.us, life.appeared_us)",
        # Where no ending follows, all of the topic's are before.
        barred_at=f"""case
            when life.appeared_at is not null then life.barred_at
            when following is null then {last_final}
            else following.final_before
        end""",
        ending="if(life.appeared_at is null, following, life.ending)",
        is_queued=f"life.is_queued or mark.kind = '{QUEUED}'",
        is_sent=f"life.is_sent or mark.kind = '{SENT}'",
        is_idle=f"life.is_idle or mark.kind = '{IDLE}'",
        has_failed=f"life.has_failed or mark.kind = '{ERROR}'",
        reply=f"if({is_reply}, {replied}, life.reply)",
    )
    return _let("following", following, noted)


_CLOSED_BY_IT = f"""
    case
        when mark.kind = '{CLOSED}' then {
    _closed(
        "life",
        "mark.offset",
        "mark.us",
        f"if(mark.status in ({_listed(STATUSES)}), mark.status, 'error')",
        "mark.reason",
    )
}
        when life.is_idle and not life.is_queued and (life.reply is not null or not life.is_sent) then {
    _closed(
        "life", "mark.offset", "mark.us", "coalesce(life.reply, if(life.has_failed, 'error', 'ok'))", "''"
    )
}
        else life
    end
"""


def _taken(ending: str, last_final: str) -> str:
    """A life after a mark of its own; before it appeared and after it closed, others change nothing."""
    return f"""
        case
            when life.closed_at is not null or mark.kind is null then life
            when life.appeared_at is null and mark.kind not in ({_listed(APPEARING)}) then life
            else {_let("life", _noted(ending, last_final), _CLOSED_BY_IT)}
        end
    """


def _step(ending: str, last_final: str) -> str:
    """All lives after one more mark."""

    def anew(life: str, start: str) -> str:
        return f"named_struct('past', array_append(done.past, {life}), 'now', {_fresh(start)})"

    begun = f"""case
        when {_IS_OVER} and life.ending.final_at < mark.offset then {anew(_UNTIL_FINAL, _AFTER_FINAL)}
        when {_IS_FORGOTTEN} then {anew(_life("life", until="mark.offset"), "mark.offset")}
        else named_struct('past', done.past, 'now', life)
    end"""
    taken = _let("life", "begun.now", _taken(ending, last_final))
    return _let(
        "life",
        _ended("done.now", "mark.offset"),
        _let("begun", begun, f"named_struct('past', begun.past, 'now', {taken})"),
    )
