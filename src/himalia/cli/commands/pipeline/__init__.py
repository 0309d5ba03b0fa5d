"""``himalia pipeline``: run it, and show, erase and replay what it stored. Each part is imported when it is used."""

from __future__ import annotations

import typer

from himalia.cli.lazy import LazyGroup


class PipelineGroup(LazyGroup):
    """The parts of the pipeline's command. ``show`` and ``sql`` load neither a client nor Spark."""

    NAMES = ("run", "show", "sql", "forget", "replay")
    MODULES = "himalia.cli.commands.pipeline.{}"


app = typer.Typer(
    cls=PipelineGroup, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False
)


@app.callback()
def pipeline() -> None:
    """Turn the log into tables, and show, query, erase or replay their rows.

    Example:

        himalia pipeline run --once

        himalia pipeline show executions
    """
