"""Upkeep between batches: small files become large ones, and files that nobody reads any more go.

Neither changes a row, nor the number of the latest batch.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from deltalake import WriterProperties

from himalia.spark.delta.table import Table

MIB = 1024 * 1024


class Level(msgspec.Struct, frozen=True):
    """Every so many batches, the files below a size become files of that size."""

    every: int
    bytes: int


LEVELS = (Level(32, 8 * MIB), Level(1024, 128 * MIB))
"""Two of them, so that a file is written again twice in its life and not at every turn."""
VACUUM_EVERY = 64
KEEP_HOURS = 1
"""How long a file that was replaced stays for those who are reading it."""


def tend(tables: Iterable[Table], own: Iterable[Table], batch: int) -> None:
    """What is due after a batch. ``own`` are tables that nobody but the pipeline reads."""
    level = max(
        (level for level in LEVELS if batch % level.every == 0), key=lambda one: one.bytes, default=None
    )
    is_vacuum_due = batch % VACUUM_EVERY == 0
    for table in tables:
        if level is not None:
            compact(table, level.bytes)
        if is_vacuum_due:
            vacuum(table, KEEP_HOURS)
    for table in own:
        if is_vacuum_due:
            vacuum(table, 0)


def compact(table: Table, target_bytes: int) -> None:
    """Join small files. The rows stay, and so do the transactions of batches."""
    properties = WriterProperties(compression="ZSTD")
    table.delta.optimize.compact(target_size=target_bytes, writer_properties=properties)


def vacuum(table: Table, keep_hours: int) -> None:
    """Remove files that were replaced more than so many hours ago."""
    table.delta.vacuum(keep_hours, dry_run=False, enforce_retention_duration=False)
    table.delta.update_incremental()
