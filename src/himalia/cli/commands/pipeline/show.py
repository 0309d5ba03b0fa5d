"""``himalia pipeline show``: the rows of a table, or the list of tables."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from himalia.cli.options import Json, WarehouseOption, Where, make_app, warehouse_path
from himalia.cli.terminal.output import print_json, print_table
from himalia.cli.terminal.tables import print_as_json, print_as_table
from himalia.cli.terminal.units import format_size

if TYPE_CHECKING:
    from himalia.tables import Result

app = make_app()

LIMIT = 20


@app.command("show")
def show(
    table: Annotated[str | None, typer.Argument(help="The table; without it, list the tables.")] = None,
    where: Where = None,
    order: Annotated[
        str | None,
        typer.Option(
            "--order", help="Columns, each with asc or desc; newest first by default.", metavar="COLUMNS"
        ),
    ] = None,
    columns: Annotated[
        str | None,
        typer.Option("--columns", help="Only these, separated by commas; '*' for all.", metavar="COLUMNS"),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", help="Show at most N rows.", min=1)] = LIMIT,
    warehouse: WarehouseOption = None,
    json: Json = False,
) -> None:
    """Show rows of a table of the pipeline, newest first.

    Needs neither the server nor Spark. --json prints one array with all columns, and times in UTC.

    Examples:

        himalia pipeline show executions

        himalia pipeline show executions --where "status = 'error'" --columns started,code,ename,evalue

        himalia pipeline show messages --where "topic = 'orders' and ts > now() - interval '1 hour'" --json
    """
    path = warehouse_path(warehouse)
    if table is None:
        _list_tables(path, json=json)
        return
    from himalia.tables import Tables

    wanted = _columns(table, columns, json=json)

    def query(limit: int) -> Result:
        return Tables(path).read(table, where=where, order=order, columns=wanted, limit=limit)

    if json:
        print_as_json(lambda: query(limit))
    else:
        empty = f"{table} has no rows" + (" that match" if where else " yet")
        # One more, to find out whether there are more.
        print_as_table(lambda: query(limit + 1), limit, empty=empty)


def _columns(table: str, given: str | None, *, json: bool) -> list[str] | None:
    from himalia.tables.catalog import CATALOG

    if given is None and not json and table in CATALOG:
        return list(CATALOG[table].shown)
    return None if given in (None, "*") else [name.strip() for name in given.split(",")]


def _list_tables(path: Path, *, json: bool) -> None:
    from himalia.errors import WarehouseNotFound
    from himalia.tables import Tables

    found = Tables(path).describe()
    if not found:
        raise WarehouseNotFound(path)
    if json:
        print_json(found)
        return
    rows = [
        [one.name, "-" if one.rows is None else f"{one.rows}", format_size(one.bytes), one.description]
        for one in found
    ]
    print_table(["table", "rows", "size", "what a row is"], rows, empty="")
