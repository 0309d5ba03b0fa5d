"""The tables of a warehouse, asked with SQL: deltalake's own engine, so neither Spark nor a JVM is needed."""

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
from himalia.tables.errors import NEED_DELTALAKE, no_such_table, translating
from himalia.tables.query import Statement, asking, counting, is_query, not_a_query, reading
from himalia.tables.result import Result

if TYPE_CHECKING:
    from deltalake import DeltaTable, QueryBuilder

LOG = "_delta_log"
VERSION_DIGITS = 20
"""What makes a directory a Delta table: in its log, files whose names begin with the number of a version."""
ENGINE = {"datafusion.catalog.information_schema": "true"}


class Tables:
    """The tables below a directory, read-only. Every call sees each table as it is when the call begins.

    ``engine`` are settings of the query engine (DataFusion); ``memory_bytes_max`` bounds what one query may use.
    Raises ``WarehouseNotFound``, ``TableNotFound``, ``BadQuery``, or ``QueryTooLarge``, in words for people.
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
        """The tables that are there: the pipeline's own first. None where no pipeline has run yet."""
        try:
            found = {entry.name for entry in self.path.iterdir() if _has_commits(entry / LOG)}
        except (FileNotFoundError, NotADirectoryError):
            found = set()
        except OSError as error:
            raise ConfigurationError(f"the warehouse {self.path} cannot be read: {error.strerror}") from None
        return [name for name in CATALOG if name in found] + sorted(found - CATALOG.keys())

    def existing(self) -> list[str]:
        """The same, but ``WarehouseNotFound`` where there is none."""
        names = self.names()
        if not names:
            raise WarehouseNotFound(self.path)
        return names

    def describe(self) -> list[TableSummary]:
        """Each table with its columns and its size. Reads no rows."""
        return [_info(name, self._open(name, [name])) for name in self.names()]

    def read(
        self,
        name: str,
        *,
        where: str | None = None,
        order: str | None = None,
        columns: Sequence[str] | None = None,
        limit: int | None = None,
    ) -> Result:
        """The rows of a table for which ``where``, a condition in SQL, holds; the newest first.

        ``order`` names columns instead, each with ``asc`` or ``desc``: ``run_ms desc, started``.
        """
        names = self.existing()
        known = [field.name for field in self._open(name, names).schema().fields]
        schema = CATALOG.get(name)
        statement = reading(
            name,
            known,
            where=where,
            order=order,
            newest_first=schema.newest_first if schema else None,
            columns=columns,
            limit=limit,
        )
        return self._ask(statement, _named(where, names) | {name}, names)

    def count(self, name: str, where: str | None = None) -> int:
        """How many rows of a table there are for which ``where`` holds."""
        names = self.existing()
        if name not in names:
            raise no_such_table(name, names)
        result = self._ask(counting(name, where), _named(where, names) | {name}, names)
        return int(result.rows()[0]["rows"])

    def sql(self, text: str) -> Result:
        """The answer to a query over all tables. ``BadQuery`` for what is not a query."""
        query = asking(text)
        names = self.existing()
        return self._ask(query.statement, _named(text, names) or set(names), names, plan=query.plan)

    def _open(self, name: str, names: Sequence[str]) -> DeltaTable:
        # By the listing, so that a name cannot lead out of the warehouse.
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

    def _ask(
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
    """The next offset that the pipeline reads, by topic and epoch, from its table of positions.

    By the engine, not by ``to_pyarrow_table``: threads of pyarrow would call Python for the files, and a process that
    exits while one of them does is aborted.
    """
    from deltalake import QueryBuilder

    engine = QueryBuilder().register("positions", table)
    rows = engine.execute('SELECT topic, epoch, "offset" FROM positions').read_all()
    columns = [rows.column(name).to_pylist() for name in ("topic", "epoch", "offset")]
    return {(topic, epoch): int(offset) for topic, epoch, offset in zip(*columns, strict=True)}


def _require_query(engine: QueryBuilder, plan: Statement, names: Sequence[str]) -> None:
    """``BadQuery`` if the engine's plan would do anything but read."""
    with translating(plan, names):
        root = str(engine.execute(plan.text).read_all().column("plan")[0].as_py())
    if not is_query(root.partition("\n")[0]):
        raise not_a_query(plan.text.partition("\n")[2].strip())


def _has_commits(log: Path) -> bool:
    """Whether there is a table: not yet while its first commit is being written, nor if that never came."""
    try:
        return any(file.name[:VERSION_DIGITS].isdecimal() for file in log.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return False


def _named(text: str | None, names: Sequence[str]) -> set[str]:
    """The tables that a text can mean. Opening one costs some milliseconds, so the others are not."""
    return {name for name in names if text and re.search(rf"\b{re.escape(name)}\b", text, re.IGNORECASE)}


def _info(name: str, table: DeltaTable) -> TableSummary:
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
                field.name, _type(field.type), meanings.get(field.name) or field.metadata.get("comment", "")
            )
            for field in table.schema().fields
        ],
    )


def _type(kind: Any) -> str:
    """A column's type as SQL calls it: ``bigint``, ``array<string>``."""
    return _type_name(msgspec.json.decode(kind.to_json()))


_NAMES = {"long": "bigint", "integer": "int", "short": "smallint", "byte": "tinyint"}


def _type_name(described: Any) -> str:
    if isinstance(described, str):
        return _NAMES.get(described, described)
    match described["type"]:
        case "array":
            return f"array<{_type_name(described['elementType'])}>"
        case "map":
            return f"map<{_type_name(described['keyType'])},{_type_name(described['valueType'])}>"
        case _:
            fields = ",".join(f"{field['name']}:{_type_name(field['type'])}" for field in described["fields"])
            return f"struct<{fields}>"
