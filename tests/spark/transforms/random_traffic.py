"""Random traffic of a kernel's topic: records that a kernel may send, and some that none should, in any order."""

from __future__ import annotations

from random import Random

from himalia.record import format_ts
from tests.spark.traffic import NOON_US, Row, TopicBuilder

PAUSES_S = (0.0, 0.0, 0.0, 0.001, 1.0, 20.0, 59.9, 60.0, 60.1, 61.0, 200.0)
TEXTS = ("x", "hällo\n", "", "€" * 400, "0123456789" * 2000, "ab😀c" * 9000)
STATUSES = ("ok", "ok", "error", "aborted", "died", "timeout", "cancelled", "stale", "nonsense")


def random_records(random: Random, kernel_id: str, *, length: int = 40) -> list[Row]:
    """Up to ``length`` records of a few requests, in one epoch or two."""
    rows: list[Row] = []
    at = 0.0
    for epoch in ("e1", "e2")[: random.choice((1, 1, 1, 2))]:
        # The name says nothing of the age.
        builder = TopicBuilder(kernel_id, epoch=random.choice("abc") + epoch, at=at + 1)
        at = _append_records(random, builder, at + 1, random.randint(1, length))
        rows += builder.rows
    return rows


def _append_records(random: Random, builder: TopicBuilder, at: float, length: int) -> float:
    scripts = [_script(random, f"r{number}") for number in range(random.randint(1, 4))]
    while len(builder.rows) < length and any(scripts):
        script = random.choice([script for script in scripts if script])
        at += random.choice(PAUSES_S) if random.random() < 0.4 else 0.0
        _append(random, builder, *script.pop(0), at)
    return at


def _script(random: Random, request_id: str) -> list[tuple[str, str]]:
    """What is said of one request: in order as it should be, as another client does, or shuffled."""
    output = [
        random.choice(("stream", "stream", "result", "display", "comm", "error", "too_large", "odd"))
        for _ in range(random.randint(0, 6))
    ]
    late = [
        random.choice(("stream", "idle", "error", "reply", "input"))
        for _ in range(random.choice((0, 0, 1, 3)))
    ]
    own = ["queued", "sent", "busy", "input", *output, *random.sample(["reply", "idle"], 2), "closed", *late]
    foreign = ["busy", "input", *output, "idle", *late]
    unqueued = ["sent", "busy", "input", *output, *random.sample(["reply", "idle"], 2), *late]
    never = ["busy", *output, "idle"]
    script = list(random.choice((own, own, foreign, unqueued, never)))
    for _ in range(random.choice((0, 0, 1, 2))):
        script.insert(random.randrange(len(script) + 1), random.choice(("ending", "quiet", "broken", "bare")))
    if random.random() < 0.25:
        random.shuffle(script)
    if random.random() < 0.2:
        del script[: random.randint(0, 3)]
    if random.random() < 0.2:
        script += random.choice((own, foreign))
    return [(step, request_id) for step in script]


def _append(random: Random, builder: TopicBuilder, step: str, request_id: str, at: float) -> None:
    match step:
        case "queued" | "sent":
            getattr(builder, step)(request_id, f"code {random.randint(1, 3)}", at=at)
        case "busy" | "idle":
            getattr(builder, step)(request_id, at=at, date=_date(random, at))
        case "comm":
            builder.comm(request_id, at=at)
        case "input":
            builder.input(request_id, "typed", random.randint(1, 9), at=at)
        case "stream":
            builder.stream(
                request_id, random.choice(TEXTS), random.choice(("stdout", "stdout", "stderr", "log")), at=at
            )
        case "error":
            builder.error(
                request_id, random.choice(("ValueError", "KeyError")), f"no {len(builder.rows)}", at=at
            )
        case "result":
            builder.result(request_id, random.choice((None, {"image/png": "x", "text/plain": "y"})), at=at)
        case "display":
            builder.display(request_id, {"text/html": "<b>"}, at=at)
        case "reply":
            status = random.choice(("ok", "error", "aborted", "abort"))
            builder.reply(
                request_id,
                status,
                at=at,
                **({"ename": "Replied", "evalue": "r"} if status == "error" else {}),
            )
        case "closed":
            builder.closed(request_id, random.choice(STATUSES), random.choice(("", "why")), at=at)
        case "too_large":
            builder.event("message_too_large", request_id, at=at, size_bytes=5)
        case "odd":
            builder.message("debug_event", request_id, {"execution_state": "odd"}, at=at)
        case "ending":
            builder.event(
                random.choice(("died", "stopped", "restarting")), at=at, reason=random.choice(("", "so"))
            )
        case "quiet":
            builder.message("status", "", {"execution_state": "starting"}, at=at)
        case "broken":
            headers = builder.stream(request_id, "lost", at=at).headers
            builder.rows.pop()
            builder.record(
                f"broken-{len(builder.rows)}",
                headers,
                random.choice(('{"header": {', "[]", '{"content": 5}')),
                at,
            )
        case "bare":
            row = builder.stream(request_id, "bare", at=at)
            builder.rows.pop()
            builder.record(row.id, {}, row.value, at)


def _date(random: Random, at: float) -> str:
    """What the kernel's header says: mostly about when it is stored, else an hour off, or no date."""
    off_s = random.choice((-0.5, -0.02, -0.001, 0.0, 0.9, 1.1, -1.1, 3600.0, -3600.0, None))
    return "nonsense" if off_s is None else format_ts(NOON_US + round((at + off_s) * 1e6))
