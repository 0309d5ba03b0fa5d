"""Erasing rows, for good: from the tables, from the pipeline's state, and from the disk. No Spark is needed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import DeltaError

from himalia.errors import BadQuery, WarehouseNotFound
from himalia.spark.delta.lock import locked
from himalia.spark.pipeline.warehouse import REQUESTS, TABLES
from himalia.topics import KERNEL_TOPIC_PREFIX

KEYS_AT_A_TIME = 1_000
_UNKNOWN_COLUMN = "No field named"
_KEY = "concat(topic, ' ', epoch, ' ', request_id)"
"""Neither of the first two has blanks in it."""


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
        counts = {name: _count(table, where) for name, table in tables.items() if name != REQUESTS}
        fitting = {name: count for name, count in counts.items() if count is not None}
        requests = _requests(tables, where)
        if not fitting and requests is None:
            raise BadQuery(f"no table has all the columns of: {where}")
        for name in fitting:
            _erase(tables[name], where)
        if requests is not None:
            fitting[REQUESTS] = len(requests)
            for some in _batched(sorted(set(requests))):
                _erase(tables[REQUESTS], f"{_KEY} in ({', '.join(map(_quoted, some))})")
    return fitting


def _requests(tables: Mapping[str, DeltaTable], where: str) -> list[str] | None:
    """Whose rows in the state go too, one for each row: those for which the condition holds, and those of executions
    that run, which the next batch would bring back. None if the state cannot be asked."""
    if REQUESTS not in tables:
        return None
    state = tables[REQUESTS]
    found = _keys(state, where)
    if "executions" in tables and (running := _keys(tables["executions"], f"is_running and (\n{where}\n)")):
        known = set(found or ())
        listed = ", ".join(_quoted(key) for key in running if key not in known) or "''"
        found = [*(found or ()), *(_keys(state, f"{_KEY} in ({listed})") or ())]
    return found


def _keys(table: DeltaTable, where: str) -> list[str] | None:
    """The keys of the rows for which a condition holds; None if the table lacks a column that it names."""
    names = {field.name for field in table.schema().fields}
    # The state has a kernel's topic only.
    kernel = "" if "kernel_id" in names else f", substr(topic, {len(KERNEL_TOPIC_PREFIX) + 1}) as kernel_id"
    rows = _asked(table, f"select {_KEY} as key from (select *{kernel} from t) where (\n{where}\n)", where)
    return None if rows is None else rows["key"].to_pylist()


def _count(table: DeltaTable, where: str) -> int | None:
    """How many rows a condition holds for; None if the table lacks a column that it names."""
    # On lines of its own: a comment at its end must not take the rest of the query along.
    rows = _asked(table, f"select count(*) as rows from t where (\n{where}\n)", where)
    return None if rows is None else int(rows["rows"][0].as_py())


def _asked(table: DeltaTable, query: str, where: str) -> pa.Table | None:
    try:
        return pa.table(QueryBuilder().register("t", table).execute(query).read_all())
    except DeltaError as error:
        if _UNKNOWN_COLUMN in str(error):
            return None
        raise BadQuery(f"{_first_line(error)} in: {where}") from None


def _erase(table: DeltaTable, where: str) -> None:
    try:
        table.delete(where)
    except DeltaError as error:
        raise BadQuery(f"{_first_line(error)} in: {where}") from None
    # The engine stops at the end of the first expression, and would erase less than was asked for.
    if _count(table, where):
        raise BadQuery(f"this is more than one condition: {where}")
    table.vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)


def _batched(keys: Iterable[str]) -> Iterator[list[str]]:
    rest = iter(keys)
    while some := list(islice(rest, KEYS_AT_A_TIME)):
        yield some


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
