"""How a run of the pipeline gets on: a picture on a terminal, lines behind a pipe, JSON for programs."""

from __future__ import annotations

import logging
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from himalia.cli.terminal.output import print_json, print_warning, printable
from himalia.cli.terminal.units import show_duration

if TYPE_CHECKING:
    from rich.console import RenderableType

    from himalia.spark.pipeline.progress import Progress, Summary

DONE = "done"


class Display(Protocol):
    """Where progress goes."""

    def say(self, text: str) -> None: ...

    def warn(self, text: str) -> None: ...

    def show(self, progress: Progress) -> None: ...


@contextmanager
def display(*, json: bool) -> Iterator[Display]:
    """What suits where stderr goes. Warnings of the pipeline are shown with it."""
    if json or not sys.stderr.isatty():
        shown = _Lines(json=json)
        with _heard(shown):
            yield shown
    else:
        with _Picture() as picture, _heard(picture):
            yield picture


def sentence(summary: Summary) -> str:
    """A whole run in one line."""
    if not summary.batches:
        return "nothing new was taken in" + _lost(summary.lost)
    records = "1 record" if summary.rows == 1 else f"{summary.rows:,} records"
    batches = "1 batch" if summary.batches == 1 else f"{summary.batches} batches"
    return (
        f"read {records} in {batches} and {show_duration(summary.seconds)} "
        f"({summary.rows_per_s:,.0f}/s){_lost(summary.lost)}: {counted(summary.tables)}"
    )


def counted(tables: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {rows:,}" for name, rows in tables.items() if rows) or "no rows"


def _lost(count: int) -> str:
    return f"; {count:,} records were gone before they could be read" if count else ""


class _Lines:
    """A line for each batch: on stderr for people, on stdout as JSON for programs."""

    def __init__(self, *, json: bool) -> None:
        self._json = json

    def say(self, text: str) -> None:
        print(printable(text), file=sys.stderr, flush=True)

    def warn(self, text: str) -> None:
        print_warning(text)

    def show(self, progress: Progress) -> None:
        if progress.stage != DONE:
            return
        if self._json:
            print_json(progress)
        else:
            self.say(
                f"batch {progress.batch}: {progress.rows:,} records in {progress.seconds:.1f} s "
                f"({progress.rows_per_s:,.0f}/s), {progress.lag:,} behind; {counted(progress.tables)}"
            )


class _Picture:
    """A bar over the records that were there, what is being done, and rows so far by table."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live
        from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn
        from rich.progress import Progress as Bars

        self._bars = Bars(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[pace]}"),
        )
        self._task = self._bars.add_task("starting Spark", total=None, pace="")
        self._rows: Counter[str] = Counter()
        self._console = Console(stderr=True)
        self._live = Live(
            get_renderable=self._picture, console=self._console, transient=True, redirect_stdout=False
        )

    def __enter__(self) -> _Picture:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def say(self, text: str) -> None:
        from rich.text import Text

        self._console.print(Text(printable(text), style="dim"), soft_wrap=True)

    def warn(self, text: str) -> None:
        from rich.text import Text

        self._console.print(Text.assemble(("warning: ", "bold yellow"), printable(text)), soft_wrap=True)

    def show(self, progress: Progress) -> None:
        done = progress.total_rows
        left = 0 if progress.stage == DONE else progress.rows
        if progress.stage == DONE:
            self._rows.update(progress.tables)
            self._bars.update(self._task, pace=f"{progress.rows_per_s:,.0f}/s")
        self._bars.update(
            self._task,
            description=f"batch {progress.batch}: {progress.stage}" if progress.rows else progress.stage,
            completed=done,
            total=done + left + progress.lag,
        )

    def _picture(self) -> RenderableType:
        from rich.console import Group
        from rich.text import Text

        return Group(self._bars, Text("  " + counted(self._rows) if self._rows else "", style="dim"))


@contextmanager
def _heard(shown: Display) -> Iterator[None]:
    """Show what the pipeline logs as a warning."""

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            shown.warn(record.getMessage())

    handler = Handler(logging.WARNING)
    logger = logging.getLogger("himalia")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
