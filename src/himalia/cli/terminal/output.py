"""The output of commands: data on stdout, messages about it on stderr."""

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


# Messages


def print_error(message: str) -> None:
    """Print an error as one line on stderr."""
    _print_message("error", message, style="bold red")


def print_warning(message: str) -> None:
    """Print a warning as one line on stderr."""
    _print_message("warning", message, style="bold yellow")


def _print_message(kind: str, message: str, *, style: str) -> None:
    from rich.console import Console
    from rich.text import Text

    # Text, not markup: a message may quote anything. Not wrapped, so that it stays one line in a log.
    # Escaped: a name that a server, a client or a kernel chose may hold sequences that control the terminal.
    text = Text.assemble((f"{kind}: ", style), escape_controls(message))
    Console(stderr=True).print(text, soft_wrap=True, highlight=False)


def print_notice(notice: Notice) -> None:
    """Print an event of a subscription, such as a lost connection, on stderr."""
    message = _describe_notice(notice)
    if message is not None:
        print_warning(message)


def _describe_notice(notice: Notice) -> str | None:
    from himalia.client import events

    match notice:
        case events.Dropped(topic, first, last, count):
            records = "record was" if count == 1 else "records were"
            again = f"'himalia tail {topic} --from {first} --count {count}' prints them"
            return f"{count} {records} dropped from {topic} ({first} to {last}): this command reads too slowly; {again}"
        case events.Gap(topic, requested, first, _):
            return f"there is a gap in {topic}: offset {requested} is not there; continuing at {first}"
        case events.TopicDeleted(topic):
            return f"topic {topic} was deleted"
        case events.FilterFailure(topic, message):
            return f"the filter failed in {topic}: {message}"
        case events.Disconnected(reason):
            return f"{reason}; reconnecting"
        case events.Resumed(url):
            return f"reconnected to {url}"
    return None


# Data


def print_json(value: Any) -> None:
    """Print a JSON document as one line on stdout and flush it, so that a reader of the pipe gets it at once."""
    write_line(msgspec.json.encode(value).decode())


def write_line(line: str) -> None:
    """Print a line on stdout with control characters escaped: it may hold names and texts of others."""
    _write(escape_controls(line))


def _write(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, empty: str) -> None:
    """Print a table on stdout, or ``empty`` on stderr if it has no rows. Numbers are aligned right."""
    from rich.console import Console

    if not rows:
        print_warning(empty)
        return
    console = Console()
    if not console.is_terminal:
        # In a pipe nothing is cut off or wrapped.
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
        table.add_row(*(Text(escape_controls(cell)) for cell in row))
    return table


class PublishedRange(msgspec.Struct, frozen=True):
    """What a command published: the number of messages, and the offsets of the first and the last."""

    topic: str
    count: int
    first: int | None
    last: int | None


class _RecordLine(msgspec.Struct):
    """A record as a JSON object, which ``himalia publish --envelope`` accepts."""

    topic: str
    offset: int
    ts: str
    id: str
    headers: dict[str, str]
    payload: msgspec.Raw


def make_event_printer(*, json: bool) -> Callable[[Event], None]:
    """Return a function that prints records: as JSON lines, in colours on a terminal, or plain."""
    if json:
        return _print_as_json
    from rich.console import Console
    from rich.style import Style

    colours = Console().color_system if sys.stdout.isatty() else None
    if colours is None:
        return lambda event: write_line(" ".join(_format_columns(event)))
    from rich.console import COLOR_SYSTEMS

    system = COLOR_SYSTEMS[colours]
    styles = [Style.parse(style) for style in ("dim", "cyan", "yellow", "none")]
    return lambda event: _write(
        " ".join(
            style.render(part, color_system=system)
            for style, part in zip(styles, _format_columns(event), strict=True)
        )
    )


def _print_as_json(event: Event) -> None:
    line = _RecordLine(event.topic, event.offset, event.ts, event.id, event.headers, msgspec.Raw(event.raw))
    print_json(line)


def _format_columns(event: Event) -> tuple[str, str, str, str]:
    time = event.time.astimezone().isoformat(sep=" ", timespec="milliseconds")[:23]
    return time, escape_controls(event.topic), str(event.offset), escape_controls(event.raw.decode())


def escape_controls(text: str) -> str:
    """Escape control characters as JSON does, so that a text cannot control the terminal.

    Every text that another client, a kernel or a server chose is passed through here: a client id or an error may hold
    sequences that clear the screen or fill the clipboard (OSC 52). JSON escapes only the first 32 of these characters.
    """
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def abandon_stdout() -> None:
    """Redirect stdout to nothing after its reader closed the pipe: the interpreter's last flush would fail."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)
