"""``himalia pipeline``: run it, and look at, erase and replay what it stored. Each part is loaded when it is used."""

from __future__ import annotations

import typer

from himalia.cli.lazy import LazyGroup


class PipelineGroup(LazyGroup):
    """So that ``show`` and ``sql`` answer at once: neither loads a client, nor Spark."""

    NAMES = ("run", "show", "sql", "forget", "replay")
    MODULES = "himalia.cli.commands.pipeline.{}"


app = typer.Typer(
    cls=PipelineGroup, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False
)


@app.callback()
def pipeline() -> None:
    """Turn the log into tables, and read, erase or replay what is in them.

    Example:

        himalia pipeline run --once

        himalia pipeline show executions
    """
