"""Erasing rows, for good: from the tables, from the pipeline's state, and from the disk. No Spark is needed."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import DeltaError

from himalia.errors import BadQuery, WarehouseNotFound
from himalia.spark.warehouse.layout import REQUESTS, TABLES
from himalia.spark.warehouse.lock import locked

_UNKNOWN_COLUMN = "No field named"


def forget(warehouse: Path, where: str) -> dict[str, int]:
    """Erase the rows for which a condition in SQL holds, in every table that has the columns it names.

    Returns how many, by table; tables that lack a column are not in it. Raises ``WarehouseLocked`` while the
    pipeline runs, ``BadQuery`` if the condition is wrong or fits no table. If it is interrupted, it can be
    repeated. The topics of the server are another matter: delete those, or wait for retention.
    """
    found = [name for name in (*TABLES, REQUESTS) if DeltaTable.is_deltatable(str(warehouse / name))]
    if not found:
        raise WarehouseNotFound(warehouse)
    with locked(warehouse):
        tables = {name: DeltaTable(warehouse / name) for name in found}
        counts = {name: _count(table, where) for name, table in tables.items()}
        fitting = {name: count for name, count in counts.items() if count is not None}
        if not fitting:
            raise BadQuery(f"no table has all the columns of: {where}")
        for name in fitting:
            _erase(tables[name], where)
    return fitting


def _count(table: DeltaTable, where: str) -> int | None:
    """How many rows a condition holds for; None if the table lacks a column that it names."""
    # On lines of its own: a comment at its end must not take the rest of the query along.
    query = f"select count(*) as rows from t where (\n{where}\n)"
    try:
        answer = pa.table(QueryBuilder().register("t", table).execute(query).read_all())
    except DeltaError as error:
        if _UNKNOWN_COLUMN in str(error):
            return None
        raise BadQuery(f"{_first_line(error)} in: {where}") from None
    return int(answer["rows"][0].as_py())


def _erase(table: DeltaTable, where: str) -> None:
    try:
        table.delete(where)
    except DeltaError as error:
        raise BadQuery(f"{_first_line(error)} in: {where}") from None
    # The engine stops at the end of the first expression, and would erase less than was asked for.
    if _count(table, where):
        raise BadQuery(f"this is more than one condition: {where}")
    table.vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
