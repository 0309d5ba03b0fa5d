"""Maintenance between batches: compact small files, and delete files that were replaced.

Neither changes a row, nor the number of the latest batch.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from deltalake import WriterProperties

from himalia.spark.delta.table import Table

MIB = 1024 * 1024


class CompactionLevel(msgspec.Struct, frozen=True):
    """Every ``every`` batches, files below ``bytes`` are rewritten as files of that size."""

    every: int
    bytes: int


LEVELS = (CompactionLevel(32, 8 * MIB), CompactionLevel(1024, 128 * MIB))
"""Two levels, so that a row is rewritten twice and not at every compaction."""
VACUUM_EVERY = 64
KEEP_HOURS = 1
"""How long a replaced file is kept for readers that have opened the table before."""


def maintain(tables: Iterable[Table], internal_tables: Iterable[Table], batch: int) -> None:
    """Do what is due after a batch. Only the pipeline reads ``internal_tables``, so their replaced files go at once."""
    level = max(
        (level for level in LEVELS if batch % level.every == 0), key=lambda one: one.bytes, default=None
    )
    is_vacuum_due = batch % VACUUM_EVERY == 0
    for table in tables:
        if level is not None:
            compact(table, level.bytes)
        if is_vacuum_due:
            vacuum(table, KEEP_HOURS)
    for table in internal_tables:
        if is_vacuum_due:
            vacuum(table, 0)


def compact(table: Table, target_bytes: int) -> None:
    """Rewrite small files as larger ones. Rows and application transactions stay."""
    properties = WriterProperties(compression="ZSTD")
    table.delta.optimize.compact(target_size=target_bytes, writer_properties=properties)


def vacuum(table: Table, keep_hours: int) -> None:
    """Delete files that were replaced more than ``keep_hours`` ago."""
    table.delta.vacuum(keep_hours, dry_run=False, enforce_retention_duration=False)
    table.delta.update_incremental()
