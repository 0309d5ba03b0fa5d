"""Inserts many rows with one statement, for a writer that shares the GIL with a busy event loop."""

from __future__ import annotations

import sqlite3
from bisect import bisect_left
from collections.abc import Sequence
from itertools import islice
from typing import Any

VARIABLES_MAX = 32_766
"""Variables that SQLite allows in a statement, since 3.32 and unless built otherwise."""
ROWS_MAX = 4096

# A statement is prepared once for each of these numbers of rows. The rows are padded with NULLs to the next number,
# and the statement leaves the padding out.
_SIZES = sorted(
    {size for power in range(13) for size in (1 << power, 3 << power >> 1) if 0 < size <= ROWS_MAX}
)


class MultiRowInsert:
    """Inserts many rows in one statement. ``verb`` may be ``INSERT OR REPLACE``; the first column is never NULL.

    ``sqlite3`` releases the GIL around every step of a statement and has to acquire it again afterwards, which takes up
    to 5 ms each time while another thread computes. ``executemany`` pays that for every row (800 rows/s measured with
    a busy event loop); one statement for all rows pays it once (110,000 rows/s).
    """

    def __init__(self, table: str, columns: int, *, verb: str = "INSERT") -> None:
        self._head = f"{verb} INTO {table} SELECT * FROM (VALUES "
        self._row = f"({','.join('?' * columns)})"
        self._columns = columns
        self._rows_max = max(size for size in _SIZES if columns * size <= VARIABLES_MAX)
        self._statements: dict[int, str] = {}

    def __call__(self, db: sqlite3.Connection, values: Sequence[Any]) -> None:
        """Insert rows, given as one flat sequence of values."""
        per_statement = self._rows_max * self._columns
        if len(values) <= per_statement:
            self._insert(db, list(values))
            return
        remaining = iter(values)
        while chunk := list(islice(remaining, per_statement)):
            self._insert(db, chunk)

    def _insert(self, db: sqlite3.Connection, values: list[Any]) -> None:
        rows = len(values) // self._columns
        if not rows:
            return
        size = _SIZES[bisect_left(_SIZES, rows)]
        values += [None] * ((size - rows) * self._columns)
        db.execute(self._statement(size), values)

    def _statement(self, size: int) -> str:
        statement = self._statements.get(size)
        if statement is None:
            rows = ",".join([self._row] * size)
            statement = self._statements[size] = f"{self._head}{rows}) WHERE column1 IS NOT NULL"
        return statement
