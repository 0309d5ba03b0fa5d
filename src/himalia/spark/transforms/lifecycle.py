"""The life of a request: when it appears, when and how it closes, and when it is forgotten.

Decided record by record, in the order of the topic, from *marks*: the few records that can change the state.

======== ================================================= ==========================================================
state    event                                             next state
======== ================================================= ==========================================================
unknown  ``queued``, ``sent``, ``input``                   open
unknown  any other mark                                    unknown
open     ``closed``                                        closed, with the status and reason that it has
open     ``idle``, or ``reply`` after it; not queued here, closed: the status of the reply, else ``error`` if one was
         and replied if it was sent here                   published, else ``ok``
open     the kernel died, was stopped, or is restarted     closed: ``died`` or ``aborted``
open     the topic was deleted and created again           closed: ``stale``
closed   a record more than 60 s after the last one        forgotten: another life begins with this record
closed   the kernel died or was stopped                    forgotten: another life begins after that
closed   any other mark                                    closed: what comes late changes nothing
======== ================================================= ==========================================================

A request appears with its ``request_queued``, its ``execute_request``, or, if a client other than Himalia sent it, with
the kernel's ``execute_input``. Messages of the 60 s before that count for it, but decide nothing; nothing counts from
before the kernel's last death or stop.

All of this is a function of the records alone, so it does not matter where the log was cut into batches. It is one
SQL expression, a fold over the marks of a request, so that Spark keeps no state but ours. The fragments below are
composed to ``LIVES``; ``life``, ``mark``, ``done``, ``begun`` and ``following`` are variables of lambdas in it.
"""

from __future__ import annotations

GRACE_US = 60_000_000
"""How long a message waits for its request, and how long a closed request is remembered, in its topic's time."""

QUEUED, SENT, INPUT = APPEARING = ("queued", "sent", "input")
CLOSED, IDLE, ERROR, REPLY = ("closed", "idle", "error", "reply")
"""The kinds of marks."""

STATUSES = ("ok", "error", "aborted", "died", "timeout", "cancelled", "stale")
TOPIC_DELETED = "the topic was deleted"
END_OF_TOPIC = 2**63 - 1
"""An offset behind all records: where the last life ends, and where a request closes whose topic was deleted."""

ENDING = """struct<
    offset: bigint, us: bigint, status: string, reason: string, final_at: bigint, final_before: bigint
>"""
"""An event that ends all open requests, see ``endings``. ``final_at`` is the offset of the first final one from it on,
``final_before`` that of the last final one before it; null if the batch has none."""

CARRIED = """struct<
    is_queued: boolean, is_sent: boolean, is_idle: boolean, has_failed: boolean, reply: string,
    closed_us: bigint, heard_us: bigint
>"""
"""What the state has of a request that has appeared. ``closed_us`` is null while it is open, ``heard_us`` the time of
its last record. Stored in ``state/requests``: fields cannot be added."""

_LIFE_FIELDS = {
    "start": "bigint",
    "until": "bigint",
    "appeared_at": "bigint",
    "appeared_us": "bigint",
    "not_before_offset": "bigint",
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
LIFE = f"struct<{', '.join(f'{name}: {kind}' for name, kind in _LIFE_FIELDS.items())}>"
"""One life of a request in a batch. ``*_at`` are offsets, ``*_us`` times. The life has the records from ``start`` to
before ``until``, without those before ``not_before_offset``. ``ending`` is the first one after it appeared. A life that
continues from the state appeared at -1; if it was closed there, it closed at -1."""

FLAGS = {"is_queued": 1, "is_sent": 2, "is_idle": 4, "has_failed": 8}
"""The bits of the boolean fields, for a life that is joined to many records."""


def flags(life: str) -> str:
    """Return the boolean fields of a life as one number."""
    return " + ".join(f"if({life}.{name}, {bit}, 0)" for name, bit in FLAGS.items())


# Building blocks


def _bind(name: str, value: str, body: str) -> str:
    """Evaluate ``value`` once, and ``body`` with a variable of that name."""
    return f"transform(array({value}), {name} -> {body})[0]"


def sql_list(names: tuple[str, ...]) -> str:
    return ", ".join(f"'{name}'" for name in names)


def _make_life(**fields: str) -> str:
    """A life with these fields; the others are null."""
    values = (f"'{name}', cast({fields.get(name, 'null')} as {kind})" for name, kind in _LIFE_FIELDS.items())
    return f"named_struct({', '.join(values)})"


def _change(life: str, **fields: str) -> str:
    """A life with these fields changed."""
    values = (f"'{name}', {fields.get(name, f'{life}.{name}')}" for name in _LIFE_FIELDS)
    return f"named_struct({', '.join(values)})"


def _new_life(start: str) -> str:
    """The life of a request that has not appeared."""
    unset = dict.fromkeys(("is_queued", "is_sent", "is_idle", "has_failed"), "false")
    return _make_life(start=start, until=str(END_OF_TOPIC), **unset)


def _close(life: str, at: str, us: str, status: str, reason: str) -> str:
    return _change(life, closed_at=at, closed_us=us, status=status, reason=reason)


def _is_open(life: str) -> str:
    return f"{life}.appeared_at is not null and {life}.closed_at is null"


def _close_by_ending(life: str, before: str) -> str:
    """A life, closed by its ending if that comes before an offset."""
    ending = f"{life}.ending"
    closed = _close(life, f"{ending}.offset", f"{ending}.us", f"{ending}.status", f"{ending}.reason")
    return f"if({_is_open(life)} and {ending}.offset < {before}, {closed}, {life})"


# Forgetting

_IS_FORGOTTEN_BY_TIME = f"""
    life.closed_at is not null
    and mark.us - greatest(coalesce(mark.previous_us, life.heard_us), life.closed_us) > {GRACE_US}
"""
_IS_FORGOTTEN_BY_END = "life.closed_at is not null and life.ending.final_at is not null"
"""It closed, and at that or later the kernel died or was stopped, somewhere in the batch."""
_AFTER_FINAL = "life.ending.final_at + 1"
_UNTIL_FINAL = _change("life", until=_AFTER_FINAL)


def _begin_again(finished: str, start: str) -> str:
    return f"named_struct('past', array_append(done.past, {finished}), 'now', {_new_life(start)})"


_FORGET = f"""case
    when {_IS_FORGOTTEN_BY_END} and life.ending.final_at < mark.offset
        then {_begin_again(_UNTIL_FINAL, _AFTER_FINAL)}
    when {_IS_FORGOTTEN_BY_TIME} then {_begin_again(_change("life", until="mark.offset"), "mark.offset")}
    else named_struct('past', done.past, 'now', life)
end"""
"""The lives before ``mark``: the current one, or another in its place if that is forgotten."""

# One mark

_FIRST_ENDING_AFTER_MARK = "if(first_ending.offset > mark.offset, first_ending, mark.further)"
_REPLY_STATUS = "if(mark.status in ('error', 'aborted'), mark.status, 'ok')"
_APPLY_MARK = _change(
    "life",
    appeared_at="coalesce(life.appeared_at, mark.offset)",
    appeared_us="if(life.appeared_at is null, mark.us, life.appeared_us)",
    # If no ending follows, all endings of the topic come before.
    not_before_offset="""case
        when life.appeared_at is not null then life.not_before_offset
        when following is null then last_final
        else following.final_before
    end""",
    ending="if(life.appeared_at is null, following, life.ending)",
    is_queued=f"life.is_queued or mark.kind = '{QUEUED}'",
    is_sent=f"life.is_sent or mark.kind = '{SENT}'",
    is_idle=f"life.is_idle or mark.kind = '{IDLE}'",
    has_failed=f"life.has_failed or mark.kind = '{ERROR}'",
    reply=f"if(mark.kind = '{REPLY}', {_REPLY_STATUS}, life.reply)",
)

_CLOSE_AS_MARKED = _close(
    "life",
    "mark.offset",
    "mark.us",
    f"if(mark.status in ({sql_list(STATUSES)}), mark.status, 'error')",
    "mark.reason",
)
_CLOSE_AS_REPLIED = _close(
    "life", "mark.offset", "mark.us", "coalesce(life.reply, if(life.has_failed, 'error', 'ok'))", "''"
)
_CLOSE_IF_COMPLETE = f"""case
    when mark.kind = '{CLOSED}' then {_CLOSE_AS_MARKED}
    when life.is_idle and not life.is_queued and (life.reply is not null or not life.is_sent)
        then {_CLOSE_AS_REPLIED}
    else life
end"""

_ADVANCE = f"""case
    when life.closed_at is not null or mark.kind is null then life
    when life.appeared_at is null and mark.kind not in ({sql_list(APPEARING)}) then life
    else {_bind("life", _bind("following", _FIRST_ENDING_AFTER_MARK, _APPLY_MARK), _CLOSE_IF_COMPLETE)}
end"""
"""The variable ``life`` after ``mark``."""

# The fold


def _step() -> str:
    """The lives after one more mark: close by an ending before it, forget, advance."""
    advanced = f"named_struct('past', begun.past, 'now', {_bind('life', 'begun.now', _ADVANCE)})"
    return _bind("life", _close_by_ending("done.now", "mark.offset"), _bind("begun", _FORGET, advanced))


def _finish() -> str:
    """The lives after the last mark: close by a later ending or by a newer epoch of the topic, split if forgotten."""
    stale = _close("life", str(END_OF_TOPIC), "superseded_us", "'stale'", f"'{TOPIC_DELETED}'")
    last = f"if({_is_open('life')} and superseded_us is not null, {stale}, life)"
    parts = f"if({_IS_FORGOTTEN_BY_END}, array({_UNTIL_FINAL}, {_new_life(_AFTER_FINAL)}), array(life))"
    ended = _close_by_ending("done.now", str(END_OF_TOPIC))
    return f"concat(done.past, {_bind('life', ended, _bind('life', last, parts))})"


def _life_in_state() -> str:
    """The life that the state has of a request."""
    fields = ("is_queued", "is_sent", "is_idle", "has_failed", "reply", "closed_us", "heard_us")
    return _make_life(
        start="-1",
        until=str(END_OF_TOPIC),
        appeared_at="-1",
        closed_at="if(carried.closed_us is null, null, -1)",
        ending="first_ending",
        **{name: f"carried.{name}" for name in fields},
    )


LIVES = f"""
    aggregate(
        coalesce(marks, array()),
        named_struct(
            'past', cast(array() as array<{LIFE}>),
            'now', if(carried is null, {_new_life("-1")}, {_life_in_state()})
        ),
        (done, mark) -> {_step()},
        done -> {_finish()}
    )
"""
"""The lives of one request in a batch, in order: an array of ``LIFE``, never empty. It reads the columns

- ``marks``, in order: structs of ``offset``, ``us``, ``previous_us`` (of the request's record before; null for the
  first of a batch), ``kind`` (null if it only ends a pause), ``status``, ``reason`` and ``further`` (the first ending
  after it, unless that is the topic's first);
- ``carried``: what the state has of the request, or null;
- ``first_ending`` of the topic in the batch, and ``last_final``, the offset of its last final one;
- ``superseded_us``: when a newer epoch of the topic began.
"""
