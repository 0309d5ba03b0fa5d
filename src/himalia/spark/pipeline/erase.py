"""Erase rows for good: from the tables, from the pipeline's state, and from the disk. Needs no Spark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import DeltaError

from himalia.errors import BadQuery, WarehouseNotFound
from himalia.spark.delta.lock import warehouse_lock
from himalia.spark.delta.table import APPLICATION
from himalia.tables import Tables
from himalia.tables.catalog import CATALOG, REQUESTS
from himalia.topics import KERNEL_TOPIC_PREFIX

KEYS_AT_A_TIME = 1_000
_UNKNOWN_COLUMN = "No field named"
_KEY = "concat(topic, ' ', epoch, ' ', request_id)"
"""Identifies a request; neither topic nor epoch has blanks in it."""


def erase_rows(warehouse: Path, where: str) -> dict[str, int]:
    """Erase the rows for which an SQL condition holds from every table that has all columns of the condition.

    Returns the number of erased rows by table, without the tables that lack a column. Raises ``WarehouseLocked`` while
    a pipeline runs, and ``BadQuery`` if the condition is malformed or fits no table. An interrupted call can be
    repeated. The server's log is not touched: delete topics there, or wait for retention.
    """
    tables = _open_tables(warehouse)
    if not tables:
        raise WarehouseNotFound(warehouse)
    with warehouse_lock(warehouse):
        tables = _open_tables(warehouse)
        counts = {name: _count(table, where) for name, table in tables.items() if name != REQUESTS}
        erased = {name: count for name, count in counts.items() if count is not None}
        requests = _request_keys(tables, where)
        if not erased and requests is None:
            raise BadQuery(f"no table has all the columns of: {where}")
        for name in erased:
            _erase(tables[name], where)
        if requests is not None:
            erased[REQUESTS] = len(requests)
            for keys in _split_keys(sorted(set(requests))):
                _erase(tables[REQUESTS], f"{_KEY} in ({', '.join(map(_quote, keys))})")
    return erased


def _open_tables(warehouse: Path) -> dict[str, DeltaTable]:
    """Open the pipeline's tables and its state; tables that others keep in the same directory are not erased from."""
    tables = {name: DeltaTable(warehouse / name) for name in Tables(warehouse).names()}
    own = {name: table for name, table in tables.items() if name in CATALOG or _is_of_pipeline(table)}
    if DeltaTable.is_deltatable(str(warehouse / REQUESTS)):
        own[REQUESTS] = DeltaTable(warehouse / REQUESTS)
    return own


def _is_of_pipeline(table: DeltaTable) -> bool:
    return table.transaction_version(APPLICATION) is not None


def _request_keys(tables: Mapping[str, DeltaTable], where: str) -> list[str] | None:
    """Return the keys of the rows to erase from the state, one for each row; None if the state lacks a column.

    Besides the rows for which the condition holds, these are the requests whose running execution is erased: the next
    batch would write its row again.
    """
    if REQUESTS not in tables:
        return None
    state = tables[REQUESTS]
    keys = _keys(state, where)
    if "executions" in tables and (running := _keys(tables["executions"], f"is_running and (\n{where}\n)")):
        known = set(keys or ())
        listed = ", ".join(_quote(key) for key in running if key not in known) or "''"
        keys = [*(keys or ()), *(_keys(state, f"{_KEY} in ({listed})") or ())]
    return keys


def _keys(table: DeltaTable, where: str) -> list[str] | None:
    """Return the keys of the rows for which a condition holds; None if the table lacks a column of the condition."""
    names = {field.name for field in table.schema().fields}
    # The state has no column kernel_id: it follows from the topic.
    kernel = "" if "kernel_id" in names else f", substr(topic, {len(KERNEL_TOPIC_PREFIX) + 1}) as kernel_id"
    rows = _query(table, f"select {_KEY} as key from (select *{kernel} from t) where (\n{where}\n)", where)
    return None if rows is None else rows["key"].to_pylist()


def _count(table: DeltaTable, where: str) -> int | None:
    """Count the rows for which a condition holds; None if the table lacks a column of the condition."""
    # The condition has lines of its own, so that a comment at its end does not hide the closing parenthesis.
    rows = _query(table, f"select count(*) as rows from t where (\n{where}\n)", where)
    return None if rows is None else int(rows["rows"][0].as_py())


def _query(table: DeltaTable, query: str, where: str) -> pa.Table | None:
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
    # The engine parses only the first expression, and would erase fewer rows than the condition names.
    if _count(table, where):
        raise BadQuery(f"this is more than one condition: {where}")
    table.vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)


def _split_keys(keys: Iterable[str]) -> Iterator[list[str]]:
    remaining = iter(keys)
    while batch := list(islice(remaining, KEYS_AT_A_TIME)):
        yield batch


def _quote(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
