"""``himalia pipeline forget``: erase rows for good."""

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
        str, typer.Option("--where", help="Erase rows for which this SQL condition holds.", metavar="SQL")
    ],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    warehouse: WarehouseOption = None,
    json: Json = False,
) -> None:
    """Erase rows from every table that has the columns of a condition, and from the disk. Asks first, on a terminal.

    A table without a column of the condition keeps its rows: one on kernel_id leaves those in 'messages' and
    'topic_activity', which go by topic, and in 'errors', where it is last_kernel_id.

    The pipeline must not be running. The server's log is not touched: delete the topic there, or wait for retention.

    Examples:

        himalia pipeline forget --where "topic = 'orders' and ts < '2026-01-01'"

        himalia pipeline forget --where "topic = 'kernels.2f1c9a07-5a56-4c0c-8f5a-0d9c1f6f7b11'" --yes

        himalia pipeline forget --where "kernel_id = '2f1c9a07-5a56-4c0c-8f5a-0d9c1f6f7b11'" --yes
    """
    path = warehouse_path(warehouse)
    # Asked even if nobody is: this also finds a condition that would not mean what it seems to.
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
        write_line(f"erased {_counted(erased)}")


def _confirm(affected: dict[str, int]) -> None:
    if not sys.stdin.isatty():
        raise typer.BadParameter("there is no terminal to ask whether to erase that; say --yes")
    typer.confirm(f"Erase {_counted(affected)}, for good?", abort=True, err=True)


def _affected(path: Path, where: str) -> dict[str, int]:
    """How many rows of each table a condition holds for. A table that lacks one of its columns is left alone."""
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


def _counted(rows: dict[str, int]) -> str:
    parts = [f"{count:,} of {name}" for name, count in rows.items() if count]
    return "rows: " + ", ".join(parts) if parts else "nothing: no row fits"
