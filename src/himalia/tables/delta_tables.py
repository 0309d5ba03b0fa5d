"""Query the tables of a warehouse with SQL, by deltalake's own engine: without Spark and without a JVM."""

from __future__ import annotations

import re
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from himalia.errors import ConfigurationError, TableNotFound, WarehouseNotFound
from himalia.protocol.models import TableColumn, TableSummary
from himalia.record import format_ts
from himalia.tables.catalog import CATALOG
from himalia.tables.errors import NEED_DELTALAKE, no_such_table, translate_errors
from himalia.tables.query import Statement, count_rows, is_query, not_a_query, parse_query, select_rows
from himalia.tables.result import Result

if TYPE_CHECKING:
    from deltalake import DeltaTable, QueryBuilder

LOG = "_delta_log"
VERSION_DIGITS = 20
"""A directory is a Delta table if its log has files whose names begin with the number of a version."""
ENGINE = {"datafusion.catalog.information_schema": "true"}


class Tables:
    """The tables below a directory, read-only. Every call sees each table as it is when the call begins.

    ``engine`` are settings of the query engine (DataFusion); ``memory_bytes_max`` bounds what one query may use.
    Raises ``WarehouseNotFound``, ``TableNotFound``, ``BadQuery``, or ``QueryTooLarge``, with messages for users.
    """

    def __init__(
        self,
        path: str | PathLike[str],
        *,
        engine: dict[str, str] | None = None,
        memory_bytes_max: int | None = None,
    ) -> None:
        self.path = Path(path)
        self._engine = {**ENGINE, **(engine or {})}
        self._memory_bytes_max = memory_bytes_max

    def names(self) -> list[str]:
        """Return the tables that exist, the pipeline's own first; an empty list where no pipeline has run yet."""
        try:
            found = {entry.name for entry in self.path.iterdir() if _has_commits(entry / LOG)}
        except (FileNotFoundError, NotADirectoryError):
            found = set()
        except OSError as error:
            raise ConfigurationError(f"the warehouse {self.path} cannot be read: {error.strerror}") from None
        return [name for name in CATALOG if name in found] + sorted(found - CATALOG.keys())

    def require_names(self) -> list[str]:
        """Return the tables that exist; raise ``WarehouseNotFound`` if there are none."""
        names = self.names()
        if not names:
            raise WarehouseNotFound(self.path)
        return names

    def describe(self) -> list[TableSummary]:
        """Return each table with its columns and its size. Reads no rows."""
        return [_summarize(name, self._open(name, [name])) for name in self.names()]

    def read(
        self,
        name: str,
        *,
        where: str | None = None,
        order: str | None = None,
        columns: Sequence[str] | None = None,
        limit: int | None = None,
    ) -> Result:
        """Return the rows of a table for which ``where``, a condition in SQL, holds; the newest first.

        ``order`` names columns instead, each with ``asc`` or ``desc``: ``run_ms desc, started``.
        """
        names = self.require_names()
        known = [field.name for field in self._open(name, names).schema().fields]
        schema = CATALOG.get(name)
        statement = select_rows(
            name,
            known,
            where=where,
            order=order,
            newest_first=schema.newest_first if schema else None,
            columns=columns,
            limit=limit,
        )
        return self._execute(statement, _mentioned_tables(where, names) | {name}, names)

    def count(self, name: str, where: str | None = None) -> int:
        """Count the rows of a table for which ``where`` holds."""
        names = self.require_names()
        if name not in names:
            raise no_such_table(name, names)
        result = self._execute(count_rows(name, where), _mentioned_tables(where, names) | {name}, names)
        return int(result.rows()[0]["rows"])

    def sql(self, text: str) -> Result:
        """Run a query over all tables. Raises ``BadQuery`` for a statement that is not a query."""
        query = parse_query(text)
        names = self.require_names()
        return self._execute(
            query.statement, _mentioned_tables(text, names) or set(names), names, plan=query.plan
        )

    def _open(self, name: str, names: Sequence[str]) -> DeltaTable:
        # Checked against the listing, so that a name cannot lead out of the warehouse.
        if name not in names:
            raise no_such_table(name, names)
        try:
            from deltalake import DeltaTable
        except ImportError:
            raise ConfigurationError(NEED_DELTALAKE) from None
        try:
            return DeltaTable(self.path / name)
        except Exception as error:
            reason = " ".join(str(error).split())
            raise TableNotFound(f"the table {name!r} in {self.path} cannot be read: {reason}") from error

    def _execute(
        self, statement: Statement, wanted: set[str], names: list[str], *, plan: Statement | None = None
    ) -> Result:
        def execute() -> Any:
            tables = {name: self._open(name, names) for name in wanted}
            from deltalake import QueryBuilder

            engine = QueryBuilder(self._engine)
            for name, table in tables.items():
                engine.register(name, table)
            if self._memory_bytes_max is not None:
                limit = f"{self._memory_bytes_max >> 20}M"
                engine.execute(f"SET datafusion.runtime.memory_limit = '{limit}'").read_all()
            if plan is not None:
                _require_query(engine, plan, names)
            return engine.execute(statement.text)

        return Result(execute, statement, names)


def read_positions(table: DeltaTable) -> dict[tuple[str, str], int]:
    """Return the next offset that the pipeline reads, by topic and epoch, from its table of positions.

    The engine reads it, not ``to_pyarrow_table``: threads of pyarrow call Python for the files, and a process that
    exits during such a call is aborted.
    """
    from deltalake import QueryBuilder

    engine = QueryBuilder().register("positions", table)
    rows = engine.execute('SELECT topic, epoch, "offset" FROM positions').read_all()
    columns = [rows.column(name).to_pylist() for name in ("topic", "epoch", "offset")]
    return {(topic, epoch): int(offset) for topic, epoch, offset in zip(*columns, strict=True)}


def _require_query(engine: QueryBuilder, plan: Statement, names: Sequence[str]) -> None:
    """Raise ``BadQuery`` if the engine's plan would do anything but read."""
    with translate_errors(plan, names):
        root = str(engine.execute(plan.text).read_all().column("plan")[0].as_py())
    if not is_query(root.partition("\n")[0]):
        raise not_a_query(plan.text.partition("\n")[2].strip())


def _has_commits(log: Path) -> bool:
    """Whether there is a table: not before its first commit is complete."""
    try:
        return any(file.name[:VERSION_DIGITS].isdecimal() for file in log.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return False


def _mentioned_tables(text: str | None, names: Sequence[str]) -> set[str]:
    """Return the tables that a text may refer to. Opening one takes some milliseconds, so the others are not opened."""
    return {name for name in names if text and re.search(rf"\b{re.escape(name)}\b", text, re.IGNORECASE)}


def _summarize(name: str, table: DeltaTable) -> TableSummary:
    schema = CATALOG.get(name)
    meanings = schema.meanings if schema else {}
    files: Any = table.get_add_actions(flatten=True)
    counts: list[int | None] = [count.as_py() for count in files.column("num_records")]
    return TableSummary(
        name=name,
        description=schema.description if schema else table.metadata().description or "",
        rows=None if None in counts else sum(count or 0 for count in counts),
        bytes=sum(size.as_py() for size in files.column("size_bytes")),
        updated=format_ts(table.history(1)[0]["timestamp"] * 1000),
        columns=[
            TableColumn(
                field.name,
                _sql_type(field.type),
                meanings.get(field.name) or field.metadata.get("comment", ""),
            )
            for field in table.schema().fields
        ],
    )


def _sql_type(kind: Any) -> str:
    """Return the name of a column's type in SQL: ``bigint``, ``array<string>``."""
    return _sql_type_name(msgspec.json.decode(kind.to_json()))


_NAMES = {"long": "bigint", "integer": "int", "short": "smallint", "byte": "tinyint"}


def _sql_type_name(described: Any) -> str:
    if isinstance(described, str):
        return _NAMES.get(described, described)
    match described["type"]:
        case "array":
            return f"array<{_sql_type_name(described['elementType'])}>"
        case "map":
            return f"map<{_sql_type_name(described['keyType'])},{_sql_type_name(described['valueType'])}>"
        case _:
            fields = ",".join(
                f"{field['name']}:{_sql_type_name(field['type'])}" for field in described["fields"]
            )
            return f"struct<{fields}>"
