"""``himalia pipeline sql``: any query over the tables."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from himalia.cli.options import Json, WarehouseOption, make_app, warehouse_path
from himalia.cli.terminal.tables import print_as_json, print_as_table

app = make_app()

LIMIT = 1000


@app.command("sql")
def sql(
    query: Annotated[
        str, typer.Argument(help="A query: SELECT, WITH, SHOW, DESCRIBE, EXPLAIN. '-' reads it from a pipe.")
    ],
    limit: Annotated[
        int, typer.Option("--limit", help="Show at most so many rows; --json gives all.", min=1)
    ] = LIMIT,
    warehouse: WarehouseOption = None,
    json: Json = False,
) -> None:
    """Ask the tables that the pipeline made, in SQL.

    Needs neither the server nor Spark. Nothing can be changed by it. The dialect is DataFusion's, near to PostgreSQL's.

    Examples:

        himalia pipeline sql "select status, count(*) as n, avg(run_ms) as ms from executions group by status"

        himalia pipeline sql "describe executions"

        himalia pipeline sql "select ename, sum(count) as n from errors group by ename order by n desc" --json
    """
    from himalia.tables import Tables

    text = sys.stdin.read() if query == "-" else query
    tables = Tables(warehouse_path(warehouse))
    if json:
        print_as_json(lambda: tables.sql(text))
    else:
        print_as_table(lambda: tables.sql(text), limit, empty="no row is the answer")
