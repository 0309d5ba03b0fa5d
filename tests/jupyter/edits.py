"""Traces that are made of recorded ones: the same records in orders in which no server or kernel writes them.

For each origin of a request and each of its stages, every event comes once as the last of its request, and once with
the ordinary rest after it. So every transition of the state machine is in some trace.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from himalia.jupyter.request_events import EventKind
from himalia.record import format_ts, parse_ts
from tests.jupyter.corpus import About, Trace

FAMILY = "edited"
STEP_US = 1000
ORDINARY = "ok-one-by-one-expression-python3"
FAILED = "error-fails-zero-python3"
ENDS = {
    "died": "death-killed-while-idle-python3",
    "stopped": "stop-stopped-while-idle-python3",
    "restarting": "restart-restarted-while-idle-python3",
}
PREFIXES = {
    "queued": {
        "unknown": "",
        "early": "busy result",
        "queued": "queued",
        "sent": "queued sent",
        "busy": "queued sent busy",
        "running": "queued sent busy input",
        "idle": "queued sent busy input idle",
        "replied": "queued sent busy input reply",
        "done": "queued sent busy input reply idle",
        "failed": "queued sent busy input error idle",
        "closed": "queued sent busy input reply idle closed",
    },
    "sent": {
        "sent": "sent",
        "busy": "sent busy",
        "running": "sent busy input",
        "idle": "sent busy input idle",
        "replied": "sent busy input reply",
        "closed": "sent busy input reply idle",
    },
    "foreign": {
        "early": "busy idle error",
        "running": "busy input",
        "failed": "busy input error",
        "closed": "busy input idle",
    },
}
"""The events that bring a request into a stage, by origin and stage."""
PROBES: dict[str, dict[str, Any]] = {
    "queued": {"caller": "key:probe", "priority": 7},
    "sent": {"silent": True},
    "input": {"execution_count": 1001},
    "result": {"execution_count": 1002},
    "reply": {"execution_count": 1003, "status": "error"},
    "closed": {"execution_count": 1004},
}
"""What the event under test says, so that it is seen whether it was taken."""
PROBE_US = 500_000
"""How much earlier its date is."""
REST = {
    "queued": "queued sent busy input result idle reply closed",
    "sent": "sent busy input result reply idle",
    "foreign": "busy input result idle",
}


def edited(recorded: Sequence[Trace]) -> list[Trace]:
    """All of them; always the same for the same traces."""
    by_name = {trace.name: trace for trace in recorded}
    pieces = _pieces(by_name)
    made = []
    for origin, prefixes in PREFIXES.items():
        for stage, prefix in prefixes.items():
            story = _Story(
                pieces, f"{FAMILY}-{origin}-{stage}", "every event comes to a request in one stage"
            )
            for number, kind in enumerate(kind for kind in EventKind if kind is not EventKind.ENDED):
                for tail in ("", REST[origin]):
                    request_id = f"{kind}-{number}-{'whole' if tail else 'cut'}"
                    for event in prefix.split():
                        story.tell(event, request_id)
                    story.tell(kind, request_id, is_probe=True)
                    for event in tail.split():
                        story.tell(event, request_id)
            made.append(story.trace)
        for event, source in ENDS.items():
            story = _Story(
                pieces, f"{FAMILY}-{origin}-{event}", "the kernel ends with requests in every stage"
            )
            for stage, prefix in prefixes.items():
                for one in prefix.split():
                    story.tell(one, stage)
            story.tell_line(_event_line(by_name[source], event))
            for stage in prefixes:
                for one in ("idle", "closed"):
                    story.tell(one, stage)
            made.append(story.trace)
    return made


class _Story:
    """Writes one trace, record by record."""

    def __init__(self, pieces: dict[str, dict[str, Any]], name: str, about: str) -> None:
        self._pieces = pieces
        self._us = parse_ts(pieces["queued"]["ts"])
        self.trace = Trace(About(trace=name, family=FAMILY, kernel="python3", about=about), [])

    def tell(self, event: str, request_id: str, *, is_probe: bool = False) -> None:
        """Add a record of a kind, as if it were of this request; a probe says what no other record says."""
        text = json.dumps(self._pieces[event], ensure_ascii=False)
        line = json.loads(text.replace(self._pieces[event]["request"], request_id))
        del line["request"]
        if is_probe:
            line["message"]["payload"]["content"] |= PROBES.get(event, {})
        if event in ("busy", "idle"):
            line["message"]["payload"]["header"]["date"] = format_ts(self._us - (PROBE_US if is_probe else 0))
        self.tell_line(line)

    def tell_line(self, line: dict[str, Any]) -> None:
        offset = len(self.trace.lines)
        self._us += STEP_US
        message = line["message"]
        if message["headers"]["msg_type"] != "execute_request":
            message["id"] = message["payload"]["header"]["msg_id"] = f"{self.trace.name}-{offset}"
        message["headers"]["kernel_id"] = self.trace.name
        line |= {"offset": offset, "ts": format_ts(self._us)}
        self.trace.lines.append(json.dumps(line, ensure_ascii=False, separators=(",", ":")))


def _pieces(recorded: dict[str, Trace]) -> dict[str, dict[str, Any]]:
    """One recorded record of each kind of event, with the id of its request."""
    found: dict[str, dict[str, Any]] = {}
    for name in (ORDINARY, FAILED):
        for line in map(json.loads, recorded[name].lines):
            kind = _kind_of(line)
            if kind is not None:
                found.setdefault(kind, line | {"request": _request_of(line)})
    return found


def _kind_of(line: dict[str, Any]) -> str | None:
    content = line["message"]["payload"]["content"]
    msg_type = line["message"]["headers"]["msg_type"]
    if not _request_of(line):
        return None
    kinds = {
        "execute_request": "sent",
        "execute_input": "input",
        "execute_result": "result",
        "error": "error",
    }
    kinds |= {"execute_reply": "reply"}
    if msg_type == "status":
        return {"busy": "busy", "idle": "idle"}.get(content["execution_state"])
    return kinds.get(msg_type) or str(content.get("event", "")).removeprefix("request_") or None


def _request_of(line: dict[str, Any]) -> str:
    message = line["message"]
    is_request = message["headers"]["msg_type"] == "execute_request"
    return str(message["id"] if is_request else message["headers"]["parent_id"])


def _event_line(trace: Trace, event: str) -> dict[str, Any]:
    lines: Iterator[dict[str, Any]] = map(json.loads, trace.lines)
    return next(line for line in lines if line["message"]["payload"]["content"].get("event") == event)
