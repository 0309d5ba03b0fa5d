"""``himalia pipeline forget``: erase rows permanently."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from himalia.cli.options import Json, WarehouseOption, make_app, warehouse_path
from himalia.cli.terminal.output import print_json, write_line
from himalia.errors import BadQuery, ConfigurationError

app = make_app()


@app.command("forget")
def forget_rows(
    where: Annotated[
        str, typer.Option("--where", help="Erase rows for which this SQL condition is true.", metavar="SQL")
    ],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    warehouse: WarehouseOption = None,
    json: Json = False,
) -> None:
    """Erase rows from every table that has the columns of a condition, and from the disk.

    On a terminal it asks for confirmation. A table without a column of the condition keeps its rows: a condition on
    kernel_id does not erase rows of 'messages' and 'topic_activity', which have the topic, or of 'errors', which has
    last_kernel_id.

    The pipeline must not be running. The server's log is not touched: delete the topic there, or wait for retention.

    Examples:

        himalia pipeline forget --where "topic = 'orders' and ts < '2026-01-01'"

        himalia pipeline forget --where "topic = 'kernels.2f1c9a07-5a56-4c0c-8f5a-0d9c1f6f7b11'" --yes

        himalia pipeline forget --where "kernel_id = '2f1c9a07-5a56-4c0c-8f5a-0d9c1f6f7b11'" --yes
    """
    path = warehouse_path(warehouse)
    # Also with --yes: this finds conditions that are invalid or match no table.
    affected = _affected(path, where)
    if not yes:
        _confirm(affected)
    try:
        from himalia.spark.pipeline.erase import erase_rows
    except ImportError as error:
        raise ConfigurationError(
            f"erasing needs the package {error.name}: pip install 'himalia[tables]'"
        ) from None
    erased = erase_rows(path, where)
    if json:
        print_json({"status": "erased", "rows": erased})
    else:
        write_line(f"erased {_format_counts(erased)}")


def _confirm(affected: dict[str, int]) -> None:
    if not sys.stdin.isatty():
        raise typer.BadParameter("there is no terminal to confirm the erasure; give --yes")
    typer.confirm(f"Erase {_format_counts(affected)} permanently?", abort=True, err=True)


def _affected(path: Path, where: str) -> dict[str, int]:
    """Return the number of rows of each table that a condition matches, without tables that lack one of its columns."""
    from himalia.tables import Tables

    tables = Tables(path)
    found: dict[str, int] = {}
    wrong: BadQuery | None = None
    for name in tables.require_names():
        try:
            found[name] = tables.count(name, where)
        except BadQuery as error:
            if "column" not in error.data:
                raise
            wrong = error
    if wrong is not None and not found:
        raise wrong
    return found


def _format_counts(rows: dict[str, int]) -> str:
    parts = [f"{count:,} of {name}" for name, count in rows.items() if count]
    return "rows: " + ", ".join(parts) if parts else "nothing: no row matches"
