"""What the commands print: data on stdout, everything said about it on stderr."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from himalia.client.events import Event, Notice

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


# About what is printed


def print_error(message: str) -> None:
    """One sentence on stderr."""
    _note("error", message, style="bold red")


def print_warning(message: str) -> None:
    _note("warning", message, style="bold yellow")


def _note(kind: str, message: str, *, style: str) -> None:
    from rich.console import Console
    from rich.text import Text

    # Text, not markup: a message may quote anything. Not wrapped, so that it stays one line in a log.
    # Not as it is: what a server, a client or a kernel named may be meant for the terminal.
    text = Text.assemble((f"{kind}: ", style), printable(message))
    Console(stderr=True).print(text, soft_wrap=True, highlight=False)


def print_notice(notice: Notice) -> None:
    """What happened to a subscription, in words on stderr."""
    sentence = _sentence(notice)
    if sentence is not None:
        print_warning(sentence)


def _sentence(notice: Notice) -> str | None:
    from himalia.client import events

    match notice:
        case events.Dropped(topic, first, last, count):
            records = "record was" if count == 1 else "records were"
            again = f"'himalia tail {topic} --from {first} --count {count}' shows them"
            return f"{count} {records} dropped from {topic} ({first} to {last}) because we were too slow; {again}"
        case events.Gap(topic, requested, first, _):
            return f"there is a gap in {topic}: offset {requested} is not there; going on at {first}"
        case events.TopicDeleted(topic):
            return f"topic {topic} was deleted"
        case events.FilterFailure(topic, message):
            return f"the filter failed in {topic}: {message}"
        case events.Disconnected(reason):
            return f"{reason}; trying again"
        case events.Resumed(url):
            return f"connected to {url} again"
    return None


# Data


def print_json(value: Any) -> None:
    """One JSON document on one line of stdout, flushed, so that a reader behind a pipe has it at once."""
    write_line(msgspec.json.encode(value).decode())


def write_line(line: str) -> None:
    """One line on stdout, in which control characters are escaped: names and texts of others may be in it."""
    _write(printable(line))


def _write(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, empty: str) -> None:
    """A table on stdout; numbers to the right. Says ``empty`` on stderr if there is nothing to show."""
    from rich.console import Console

    if not rows:
        print_warning(empty)
        return
    console = Console()
    if not console.is_terminal:
        # Behind a pipe nothing is cut off or wrapped.
        console = Console(width=10_000)
    console.print(make_table(columns, rows))


def make_table(columns: Sequence[str], rows: Sequence[Sequence[str]], title: str | None = None) -> Any:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", pad_edge=False)
    for number, column in enumerate(columns):
        is_number = bool(rows) and rows[0][number].replace(".", "").isdigit()
        table.add_column(column, justify="right" if is_number else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    return table


class PublishedRange(msgspec.Struct, frozen=True):
    """What a command published: how many messages, and the offsets of the first and the last one."""

    topic: str
    count: int
    first: int | None
    last: int | None


class _Line(msgspec.Struct):
    """A record as one JSON object; ``himalia publish --envelope`` takes it as it is."""

    topic: str
    offset: int
    ts: str
    id: str
    headers: dict[str, str]
    payload: msgspec.Raw


def event_printer(*, json: bool) -> Callable[[Event], None]:
    """How to print records: as JSON lines, in colours on a terminal, or plain."""
    if json:
        return _print_as_json
    from rich.console import Console
    from rich.style import Style

    colours = Console().color_system if sys.stdout.isatty() else None
    if colours is None:
        return lambda event: write_line(" ".join(_columns(event)))
    from rich.console import COLOR_SYSTEMS

    system = COLOR_SYSTEMS[colours]
    styles = [Style.parse(style) for style in ("dim", "cyan", "yellow", "none")]
    return lambda event: _write(
        " ".join(
            style.render(part, color_system=system)
            for style, part in zip(styles, _columns(event), strict=True)
        )
    )


def _print_as_json(event: Event) -> None:
    line = _Line(event.topic, event.offset, event.ts, event.id, event.headers, msgspec.Raw(event.raw))
    print_json(line)


def _columns(event: Event) -> tuple[str, str, str, str]:
    time = event.time.astimezone().isoformat(sep=" ", timespec="milliseconds")[:23]
    return time, printable(event.topic), str(event.offset), printable(event.raw.decode())


def printable(text: str) -> str:
    """Text that cannot steer a terminal: control characters are escaped, as JSON does it.

    Everything passes through here that another client, a kernel or a server may have named: a client id, or an error,
    can hold sequences that clear the screen or fill the clipboard (OSC 52). JSON escapes only the first 32 of them.
    """
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def abandon_stdout() -> None:
    """Whoever read stdout is gone. Points it elsewhere, so that the interpreter's last flush does not complain."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)
