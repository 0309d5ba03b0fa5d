"""The progress of a pipeline: a live display on a terminal, lines in a pipe, JSON for programs."""

from __future__ import annotations

import logging
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from himalia.cli.terminal.output import escape_controls, print_json, print_warning
from himalia.cli.terminal.units import format_duration

if TYPE_CHECKING:
    from rich.console import RenderableType

    from himalia.spark.pipeline.progress import Progress, Summary

DONE = "done"


class ProgressDisplay(Protocol):
    """Where progress is shown. Warnings may come from any thread, the rest from the pipeline's."""

    def note(self, text: str) -> None: ...

    def warn(self, text: str) -> None: ...

    def show(self, progress: Progress) -> None: ...


@contextmanager
def open_display(*, json: bool) -> Iterator[ProgressDisplay]:
    """Open the display that suits stderr. It also shows the warnings that the pipeline logs."""
    if json or not sys.stderr.isatty():
        lines = _LineDisplay(json=json)
        with _capture_warnings(lines):
            yield lines
    else:
        with _LiveDisplay() as live, _capture_warnings(live):
            yield live


def format_summary(summary: Summary) -> str:
    """Describe a whole run in one line."""
    if not summary.batches:
        return "there was nothing new to read" + _lost(summary.lost)
    records = "1 record" if summary.rows == 1 else f"{summary.rows:,} records"
    batches = "1 batch" if summary.batches == 1 else f"{summary.batches} batches"
    return (
        f"read {records} in {batches} and {format_duration(summary.seconds)} "
        f"({summary.rows_per_s:,.0f}/s){_lost(summary.lost)}: {format_rows(summary.tables)}"
    )


def format_rows(tables: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {rows:,}" for name, rows in tables.items() if rows) or "no rows"


def _lost(count: int) -> str:
    return f"; {count:,} records were deleted before they could be read" if count else ""


class _LineDisplay:
    """Prints a line for each batch: on stderr for people, on stdout as JSON for programs."""

    def __init__(self, *, json: bool) -> None:
        self._json = json

    def note(self, text: str) -> None:
        print(escape_controls(text), file=sys.stderr, flush=True)

    def warn(self, text: str) -> None:
        print_warning(text)

    def show(self, progress: Progress) -> None:
        if progress.stage != DONE:
            return
        if self._json:
            print_json(progress)
        else:
            self.note(
                f"batch {progress.batch}: {progress.rows:,} records in {progress.seconds:.1f} s "
                f"({progress.rows_per_s:,.0f}/s), {progress.lag:,} behind; {format_rows(progress.tables)}"
            )


class _LiveDisplay:
    """Shows a bar over the records in the log, the stage of the batch, and the rows written so far by table."""

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
            get_renderable=self._render, console=self._console, transient=True, redirect_stdout=False
        )

    def __enter__(self) -> _LiveDisplay:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def note(self, text: str) -> None:
        from rich.text import Text

        self._console.print(Text(escape_controls(text), style="dim"), soft_wrap=True)

    def warn(self, text: str) -> None:
        from rich.text import Text

        self._console.print(
            Text.assemble(("warning: ", "bold yellow"), escape_controls(text)), soft_wrap=True
        )

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

    def _render(self) -> RenderableType:
        from rich.console import Group
        from rich.text import Text

        return Group(self._bars, Text("  " + format_rows(self._rows) if self._rows else "", style="dim"))


@contextmanager
def _capture_warnings(display: ProgressDisplay) -> Iterator[None]:
    """Show what the pipeline logs as a warning."""

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            display.warn(record.getMessage())

    handler = Handler(logging.WARNING)
    logger = logging.getLogger("himalia")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
