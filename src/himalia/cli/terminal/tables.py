"""Tables in a terminal, cut to fit; printing the result of a query."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec

from himalia.cli.terminal.output import abandon_stdout, escape_controls, print_warning

if TYPE_CHECKING:
    from rich.console import Console

    from himalia.tables import Result


MISSING = "-"
WIDTH_MIN = 6
LINE_BREAK = "⏎"
SHARES = ("_rate", "_share")
"""Endings of the names of columns that are shown in percent."""


class PrintedColumn:
    """A column of a printed table: its cells as text."""

    def __init__(self, name: str, values: Sequence[Any]) -> None:
        known = [value for value in values if value is not None]
        self.name = name
        self.is_number = bool(known) and all(isinstance(value, int | float) for value in known)
        if known and all(isinstance(value, datetime) for value in known):
            self.cells = _format_times(values)
        elif self.is_number and name.endswith(SHARES):
            self.cells = [MISSING if value is None else f"{value:.1%}" for value in values]
        else:
            self.cells = [MISSING if value is None else _format_value(value) for value in values]


def _format_times(values: Sequence[datetime | None]) -> list[str]:
    """Format times in the local time zone, no finer than the column needs."""
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


def _format_value(value: Any) -> str:
    match value:
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:.1f}" if abs(value) >= 10 else f"{value:.3g}"
        case list():
            return ", ".join(_format_value(item) for item in value)
        case dict():
            return ", ".join(f"{key}={_format_value(item)}" for key, item in value.items())
        case _:
            return escape_controls(str(value).rstrip("\n").replace("\n", LINE_BREAK).replace("\t", " "))


def print_columns(columns: Sequence[PrintedColumn]) -> None:
    """Print a table on stdout: as wide as the terminal, or in a pipe with nothing cut off."""
    from rich.console import Console

    console = Console()
    if console.is_terminal:
        console.print(_table(columns, _fit_widths(columns, console)))
    else:
        Console(width=1_000_000).print(_table(columns, None))


def _table(columns: Sequence[PrintedColumn], widths: Sequence[int] | None) -> Any:
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


def _fit_widths(columns: Sequence[PrintedColumn], console: Console) -> list[int]:
    """Return the width of each column, so that all fit: the widest are narrowed first."""
    from rich.cells import cell_len

    # Between two columns there are two blanks and an invisible border, and one blank at each end.
    room = console.width - 3 * (len(columns) - 1) - 2
    widest = [max(cell_len(text) for text in (column.name, *column.cells)) for column in columns]
    widths = [min(width, console.width) for width in widest]
    while sum(widths) > room and max(widths) > WIDTH_MIN:
        widths[widths.index(max(widths))] -= 1
    return widths


Query = Callable[[], "Result"]


def print_as_table(query: Query, limit: int, *, empty: str) -> None:
    """Print at most ``limit`` rows; report on stderr that there are more, or ``empty`` if there are none."""
    with interruptible():
        columns, count = _read_columns(query(), limit + 1)
    if count == 0:
        print_warning(empty)
        return
    print_columns([PrintedColumn(name, values[:limit]) for name, values in columns.items()])
    if count > limit:
        print(f"there are more than these {limit} rows; raise --limit to see them", file=sys.stderr)


def _read_columns(result: Result, rows: int) -> tuple[dict[str, list[Any]], int]:
    """Return the values of each column for at most so many rows, and the number of rows."""
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


def print_as_json(query: Query) -> None:
    """Print all rows as one JSON array, one row a line, while they are read."""
    from himalia.tables.result import rows_of

    with interruptible():
        # The first rows are read before anything is printed: a query that fails prints nothing.
        before = "["
        for batch in query():
            for row in rows_of(batch):
                sys.stdout.write(before + escape_controls(msgspec.json.encode(row).decode()))
                before = ",\n"
        sys.stdout.write("[]\n" if before == "[" else "]\n")
        sys.stdout.flush()


@contextmanager
def interruptible() -> Iterator[None]:
    """Have Ctrl-C end the process at once within this block: Python's handler would not run while the engine works.

    A reader that closes the pipe ends the block without an error.
    """
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    except BrokenPipeError:
        abandon_stdout()
    finally:
        signal.signal(signal.SIGINT, before)
