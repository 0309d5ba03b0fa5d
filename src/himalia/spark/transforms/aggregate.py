"""Tables of sums: the rows that a batch adds are merged with the rows of the same keys that the table has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from himalia.tables.catalog import TableSchema

HOUR = "yyyy-MM-dd'T'HH"


class AggregateTable(msgspec.Struct, frozen=True):
    """A table of sums, which a batch replaces hour by hour. Its columns include ``hour``, and partition it by that.

    Both functions have to be associative, so that the rows do not depend on where the log was cut into batches.
    """

    schema: TableSchema
    keys: tuple[str, ...]
    """The columns that identify a row."""
    source: Literal["messages", "executions"]
    """What it sums: the batch's rows of ``messages``, or the executions that closed in the batch."""
    new_rows: Callable[[DataFrame], DataFrame]
    """The rows that a batch of ``source`` adds, complete: where the table has none with their keys, they are stored."""
    merge: Callable[[DataFrame, DataFrame], DataFrame]
    """Merge the rows that the table has in some hours with new ones; keys stay unique."""


def hour_of(ts: Column) -> Column:
    """Return the hour of a time, in the form of the column ``hour``."""
    return F.date_format(ts, HOUR)
