"""``himalia pipeline sql``: query the tables with SQL."""

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
        int, typer.Option("--limit", help="Show at most N rows; --json prints all of them.", min=1)
    ] = LIMIT,
    warehouse: WarehouseOption = None,
    json: Json = False,
) -> None:
    """Query the tables of the pipeline with SQL.

    Needs neither the server nor Spark. Queries are read-only. The dialect is DataFusion's, which is close to
    PostgreSQL's.

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
        print_as_table(lambda: tables.sql(text), limit, empty="the query returned no rows")
