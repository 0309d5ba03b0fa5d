"""What a commit tells of a Parquet file: how many rows, and within which bounds, so that readers can pass over it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from pyarrow import parquet

SKIPPED_BY = frozenset(
    ("topic", "kernel_id", "offset", "ts", "finished", "minute", "window_start", "hour_start")
)
"""Columns that people select by."""
TEXT_LENGTH_MAX = 255
"""A longer text may stand shortened in a footer, and is then no bound."""


def statistics_of(file: Path) -> dict[str, Any]:
    """In Delta's form; read from the file's footer."""
    footer = parquet.read_metadata(file)
    least, greatest = {}, {}
    for name, low, high in _bounds(footer):
        least[name], greatest[name] = _told(low), _told(high)
    return {"numRecords": footer.num_rows, "minValues": least, "maxValues": greatest, "nullCount": {}}


def _bounds(footer: parquet.FileMetaData) -> Iterator[tuple[str, Any, Any]]:
    """The least and the greatest value of a column, where the footer knows them."""
    for number in range(footer.num_columns):
        name = footer.schema.column(number).path
        if name not in SKIPPED_BY:
            continue
        found = [footer.row_group(group).column(number).statistics for group in range(footer.num_row_groups)]
        if not found or not all(stats is not None and stats.has_min_max for stats in found):
            continue
        low, high = min(stats.min for stats in found), max(stats.max for stats in found)
        if not isinstance(high, str) or max(len(low), len(high)) <= TEXT_LENGTH_MAX:
            yield name, low, high


def _told(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return value.isoformat() if isinstance(value, date) else value
