"""The result of a query: as Arrow record batches, Python values, or rows for JSON."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from himalia.errors import BadQuery, TableNotFound
from himalia.tables.errors import FileVanished, translate_errors
from himalia.tables.query import Statement

if TYPE_CHECKING:
    from arro3.core import RecordBatch, RecordBatchReader, Schema

Execute = Callable[[], "RecordBatchReader"]


class Result:
    """The result of one query. It can be read once: iterate over its record batches, or call ``rows()``.

    Any Arrow library accepts it: ``pyarrow.table(result)``, ``polars.DataFrame(result)``. ``execute`` runs the query in
    the engine; it is called again if the table was rewritten before the first batch was read.
    """

    def __init__(self, execute: Execute, statement: Statement, names: Sequence[str]) -> None:
        self._execute = execute
        self._statement = statement
        self._names = names
        self._reader = self._open()

    def _open(self) -> RecordBatchReader:
        with translate_errors(self._statement, self._names):
            return self._execute()

    @property
    def schema(self) -> Schema:
        return self._reader.schema

    def __iter__(self) -> Iterator[RecordBatch]:
        try:
            batch = self._next()
        except FileVanished:
            self._reader = self._open()
            batch = self._next_or_gone()
        while batch is not None:
            yield batch
            batch = self._next_or_gone()

    def _next_or_gone(self) -> RecordBatch | None:
        try:
            return self._next()
        except FileVanished:
            raise TableNotFound("the table was rewritten while it was read; repeat the query") from None

    def _next(self) -> RecordBatch | None:
        with translate_errors(self._statement, self._names):
            try:
                return self._reader.read_next_batch()
            except StopIteration:
                return None

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self._reader.__arrow_c_stream__(requested_schema)

    def rows(self) -> list[dict[str, Any]]:
        """Return all rows, as ``rows_of`` does."""
        return [row for batch in self for row in rows_of(batch)]


def columns_of(batch: RecordBatch) -> dict[str, list[Any]]:
    """Return the values of each column; maps as dictionaries."""
    names: list[str] = batch.schema.names
    return {name: _values(name, column) for name, column in zip(names, batch.columns, strict=True)}


def _values(name: str, column: Any) -> list[Any]:
    from arro3.core import DataType

    if DataType.is_interval(column.type):
        raise BadQuery(f"the column {name!r} is an interval, which cannot be shown; cast it to text")
    values = [scalar.as_py() for scalar in column]
    if DataType.is_map(column.type):
        return [None if value is None else dict(value) for value in values]
    return values


def rows_of(batch: RecordBatch) -> list[dict[str, Any]]:
    """Return rows for JSON: times in ISO 8601, UTC, to the microsecond; maps as objects; null instead of NaN."""
    columns = {name: [_to_json(value) for value in values] for name, values in columns_of(batch).items()}
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _to_json(value: Any) -> Any:
    match value:
        case None | str() | int():
            return value
        case float():
            return value if math.isfinite(value) else None
        case datetime():
            return f"{utc(value).replace(tzinfo=None).isoformat(timespec='microseconds')}Z"
        case date() | time():
            return value.isoformat()
        case dict():
            return {str(key): _to_json(item) for key, item in value.items()}
        case list() if value and isinstance(value[0], tuple):
            return {str(key): _to_json(item) for key, item in value}
        case list():
            return [_to_json(item) for item in value]
        case Decimal():
            return float(value)
        case timedelta():
            return value.total_seconds()
        case bytes():
            return value.hex()
        case _:
            return str(value)


def utc(moment: datetime) -> datetime:
    """Convert a time to UTC; the engine's times without a zone are in UTC."""
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
