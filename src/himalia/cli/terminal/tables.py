"""Rows in a terminal, cut to fit; the result of a query."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec

from himalia.cli.terminal.output import abandon_stdout, print_warning, printable

if TYPE_CHECKING:
    from rich.console import Console

    from himalia.tables import Result


MISSING = "-"
WIDTH_MIN = 6
LINE_BREAK = "⏎"
SHARES = ("_rate", "_share")
"""How columns end that are shown in percent."""


class Column:
    """One column of a table that people look at: its cells as text."""

    def __init__(self, name: str, values: Sequence[Any]) -> None:
        known = [value for value in values if value is not None]
        self.name = name
        self.is_number = bool(known) and all(isinstance(value, int | float) for value in known)
        if known and all(isinstance(value, datetime) for value in known):
            self.cells = _moments(values)
        elif self.is_number and name.endswith(SHARES):
            self.cells = [MISSING if value is None else f"{value:.1%}" for value in values]
        else:
            self.cells = [MISSING if value is None else _text(value) for value in values]


def _moments(values: Sequence[datetime | None]) -> list[str]:
    """Times in the zone of whoever looks, no finer than the column needs."""
    from himalia.tables.result import utc

    known = [value for value in values if value is not None]
    if any(value.microsecond for value in known):
        unit, length = "milliseconds", 23
    elif any(value.second for value in known):
        unit, length = "seconds", 19
    else:
        unit, length = "minutes", 16
    return [
        MISSING if value is None else utc(value).astimezone().isoformat(sep=" ", timespec=unit)[:length]
        for value in values
    ]


def _text(value: Any) -> str:
    match value:
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:.1f}" if abs(value) >= 10 else f"{value:.3g}"
        case list():
            return ", ".join(_text(item) for item in value)
        case dict():
            return ", ".join(f"{key}={_text(item)}" for key, item in value.items())
        case _:
            return printable(str(value).rstrip("\n").replace("\n", LINE_BREAK).replace("\t", " "))


def print_columns(columns: Sequence[Column]) -> None:
    """Print them on stdout: as wide as the terminal, or behind a pipe with nothing cut off."""
    from rich.console import Console

    console = Console()
    if console.is_terminal:
        console.print(_table(columns, _widths(columns, console)))
    else:
        Console(width=1_000_000).print(_table(columns, None))


def _table(columns: Sequence[Column], widths: Sequence[int] | None) -> Any:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for number, column in enumerate(columns):
        table.add_column(
            column.name,
            justify="right" if column.is_number else "left",
            width=widths[number] if widths else None,
            overflow="fold",
        )
    for row in zip(*(column.cells for column in columns), strict=True):
        texts = [Text(cell) for cell in row]
        if widths:
            for text, width in zip(texts, widths, strict=True):
                text.truncate(width, overflow="ellipsis")
        table.add_row(*texts)
    return table


def _widths(columns: Sequence[Column], console: Console) -> list[int]:
    """How wide each column is, so that all fit: the widest gives way first."""
    from rich.cells import cell_len

    # Between two columns there are two blanks and a border that is not seen; and one more at each end.
    room = console.width - 3 * (len(columns) - 1) - 2
    widest = [max(cell_len(text) for text in (column.name, *column.cells)) for column in columns]
    widths = [min(width, console.width) for width in widest]
    while sum(widths) > room and max(widths) > WIDTH_MIN:
        widths[widths.index(max(widths))] -= 1
    return widths


Ask = Callable[[], "Result"]


def print_as_table(ask: Ask, limit: int, *, empty: str) -> None:
    """Print at most ``limit`` rows, and say on stderr if there are more, or what is ``empty`` if there are none."""
    from himalia.cli.terminal.tables import Column, print_columns

    with asking():
        columns, count = _columns(ask(), limit + 1)
    if count == 0:
        print_warning(empty)
        return
    print_columns([Column(name, values[:limit]) for name, values in columns.items()])
    if count > limit:
        print(f"there are more than these {limit} rows; --limit shows more", file=sys.stderr)


def _columns(result: Result, rows: int) -> tuple[dict[str, list[Any]], int]:
    """The values of each column, and how many rows that are."""
    from himalia.tables.result import columns_of

    found: dict[str, list[Any]] = {name: [] for name in result.schema.names}
    count = 0
    for batch in result:
        taken = min(batch.num_rows, rows - count)
        for name, values in columns_of(batch.slice(0, taken)).items():
            found[name] += values
        count += taken
        if count == rows:
            break
    return found, count


def print_as_json(ask: Ask) -> None:
    """Print all rows as one JSON array, a row a line, as they come."""
    from himalia.tables.result import rows_of

    with asking():
        # The first rows are there before anything is printed: a query that is wrong prints nothing.
        before = "["
        for batch in ask():
            for row in rows_of(batch):
                sys.stdout.write(before + printable(msgspec.json.encode(row).decode()))
                before = ",\n"
        sys.stdout.write("[]\n" if before == "[" else "]\n")
        sys.stdout.flush()


@contextmanager
def asking() -> Iterator[None]:
    """Until the answer is there, or whoever reads it has gone. Ctrl-C ends the process at once: while the engine works
    it would not hear of it otherwise."""
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    except BrokenPipeError:
        abandon_stdout()
    finally:
        signal.signal(signal.SIGINT, before)
