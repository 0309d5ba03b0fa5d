"""What a query gave, printed: a table for people, one JSON array for programs."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from himalia.cli.output import abandon_stdout, print_warning, printable

if TYPE_CHECKING:
    from himalia.tables import Result

Ask = Callable[[], "Result"]


def print_as_table(ask: Ask, limit: int, *, empty: str) -> None:
    """Print at most ``limit`` rows, and say on stderr if there are more, or what is ``empty`` if there are none."""
    from himalia.cli.cells import Column, print_columns

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
