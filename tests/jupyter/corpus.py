"""The recorded traces: one compressed file per family, in which each trace is a line about it and then its records.

The records have the shape of ``GET /topics/{name}/messages`` as NDJSON. What the state machine makes of each trace is
in ``expected/<family>.json``.
"""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from himalia.jupyter.lifecycle import RequestState
from himalia.jupyter.records import EVENT_CHANNEL, RecordHeaders, to_message
from himalia.jupyter.timeline import KernelTimeline
from himalia.record import Record, parse_ts

FOLDER = Path(__file__).with_name("traces")
EXPECTED = FOLDER / "expected"


class About(msgspec.Struct, frozen=True, kw_only=True):
    """The first line of a trace."""

    trace: str
    family: str
    kernel: str
    about: str


class _Message(msgspec.Struct):
    id: str
    payload: msgspec.Raw
    headers: msgspec.Raw


class _Line(msgspec.Struct):
    offset: int
    ts: str
    message: _Message


_line_of = msgspec.json.Decoder(_Line).decode
_about_of = msgspec.json.Decoder(About).decode


@dataclass(frozen=True)
class Trace:
    """What one kernel's topic had when its scenario was over."""

    about: About
    lines: list[str]

    @property
    def name(self) -> str:
        return self.about.trace

    @property
    def topic(self) -> str:
        return f"kernels.{self.name}"

    @cached_property
    def records(self) -> list[Record]:
        """As the log gives them."""
        return [_record_of(self.topic, line) for line in self.lines]


def _record_of(topic: str, text: str) -> Record:
    line = _line_of(text)
    message = line.message
    return Record(
        topic,
        line.offset,
        parse_ts(line.ts),
        message.id,
        headers=bytes(message.headers),
        payload=bytes(message.payload),
    )


def traces() -> list[Trace]:
    """All of them, by name."""
    found = [trace for path in sorted(FOLDER.glob("*.jsonl.gz")) for trace in _read(path)]
    return sorted(found, key=lambda trace: trace.name)


def _read(path: Path) -> Iterator[Trace]:
    trace: Trace | None = None
    for line in gzip.decompress(path.read_bytes()).decode().splitlines():
        if line.startswith('{"trace":'):
            if trace is not None:
                yield trace
            trace = Trace(_about_of(line), [])
        else:
            assert trace is not None, f"{path} begins with a record"
            trace.lines.append(line)
    if trace is not None:
        yield trace


def write(recorded: Iterable[Trace]) -> None:
    """Replace the traces by these; the same traces always give the same files."""
    by_family: dict[str, list[Trace]] = defaultdict(list)
    for trace in sorted(recorded, key=lambda trace: trace.name):
        by_family[trace.about.family].append(trace)
    FOLDER.mkdir(exist_ok=True)
    for path in FOLDER.glob("*.jsonl.gz"):
        path.unlink()
    for family, of_family in by_family.items():
        lines = [
            line for trace in of_family for line in (msgspec.json.encode(trace.about).decode(), *trace.lines)
        ]
        data = gzip.compress(("\n".join(lines) + "\n").encode(), compresslevel=9, mtime=0)
        (FOLDER / f"{family}.jsonl.gz").write_bytes(data)


def event_name(record: Record, headers: RecordHeaders) -> str:
    """The name of a server's event; empty for any other record."""
    return (
        str(to_message(record, headers).decoded_content()["event"])
        if headers.channel == EVENT_CHANNEL
        else ""
    )


# What the state machine makes of them


def fold(records: Iterable[Record]) -> list[RequestState]:
    """The requests of a topic, in the order in which they became known; one of a repeated id for each of its lives."""
    timeline = KernelTimeline()
    lives: dict[tuple[str, int], RequestState] = {}
    for record in records:
        for state in timeline.apply(record):
            lives[state.request_id, state.offset] = state
    return list(lives.values())


def described(state: RequestState, began_us: int) -> dict[str, Any]:
    """A request as ``expected`` has it. Times are microseconds since the trace began."""

    def since(us: int | None) -> int | None:
        return None if us is None else us - began_us

    return {
        "request": state.request_id,
        "offset": state.offset,
        "type": state.request_type,
        "origin": state.origin,
        "stage": state.stage,
        "status": state.status,
        "reason": state.reason,
        "count": state.execution_count,
        "failed": state.has_failed,
        "reply": state.reply_status,
        "queued": since(state.queued_us),
        "sent": since(state.sent_us),
        "started": since(state.started_us),
        "closed": since(state.closed_us),
        "ran": state.run_us,
    }


def results(trace: Trace) -> list[dict[str, Any]]:
    return [described(state, trace.records[0].ts_us) for state in fold(trace.records)]


def expected(family: str) -> dict[str, Any]:
    """What the traces of a family are expected to be folded to, by the name of the trace."""
    found: dict[str, Any] = json.loads((EXPECTED / f"{family}.json").read_text())
    return found


def write_expected() -> None:
    """Write what the state machine makes of the traces: one line for each request."""
    by_family: dict[str, dict[str, list[dict[str, Any]]]] = defaultdict(dict)
    for trace in traces():
        by_family[trace.about.family][trace.name] = results(trace)
    EXPECTED.mkdir(exist_ok=True)
    for path in EXPECTED.glob("*.json"):
        path.unlink()
    for family, of_family in by_family.items():
        parts = [
            f"  {json.dumps(name)}: [\n" + ",\n".join(f"    {json.dumps(one)}" for one in requests) + "\n  ]"
            for name, requests in of_family.items()
        ]
        (EXPECTED / f"{family}.json").write_text("{\n" + ",\n".join(parts) + "\n}\n")


def differences(wanted: Mapping[Any, Mapping[str, Any]], found: Mapping[Any, Mapping[str, Any]]) -> list[str]:
    """Where two tellings of the same requests differ, one line for each field."""
    wrong = [f"missing {key}: {dict(wanted[key])}" for key in wanted.keys() - found.keys()]
    wrong += [f"too much {key}: {dict(found[key])}" for key in found.keys() - wanted.keys()]
    for key in wanted.keys() & found.keys():
        for name, value in wanted[key].items():
            if found[key][name] != value:
                wrong.append(f"{key} {name}: {found[key][name]!r} instead of {value!r}")
    return wrong
