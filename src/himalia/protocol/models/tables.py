"""Tables of the pipeline, their rows, and how far the pipeline has read."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from himalia.record import Position


class TableColumn(msgspec.Struct, frozen=True):
    name: Annotated[str, Meta(examples=["run_ms"])]
    type: Annotated[str, Meta(description="SQL type.", examples=["double"])]
    description: str = ""


class TableSummary(msgspec.Struct, frozen=True):
    """The current state of a table of the pipeline."""

    name: Annotated[str, Meta(examples=["executions"])]
    description: Annotated[str, Meta(description="What a row is.")]
    rows: Annotated[
        int | None, Meta(description="Number of rows; null if the table's metadata does not have it.")
    ]
    bytes: Annotated[int, Meta(description="Size of its files.")]
    updated: Annotated[
        str, Meta(description="Time of the last change.", examples=["2026-11-15T20:17:03.000123Z"])
    ]
    columns: list[TableColumn]


class TableList(msgspec.Struct, frozen=True):
    tables: list[TableSummary]


class TableRows(msgspec.Struct, frozen=True):
    table: Annotated[str, Meta(examples=["executions"])]
    columns: list[str]
    rows: Annotated[list[dict[str, Any]], Meta(description="Each a dictionary; times are ISO 8601, UTC.")]
    truncated: Annotated[bool, Meta(description="Whether there are more rows.")]


class PipelinePositions(msgspec.Struct, frozen=True):
    """The newest record of ``pipeline.positions``: how far the pipeline has read, by topic."""

    positions: dict[str, Position]
