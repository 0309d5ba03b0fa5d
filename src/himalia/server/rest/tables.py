"""REST: the pipeline's tables, read-only."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Response
from pydantic import BaseModel, Field

from himalia.errors import Forbidden
from himalia.server.auth import SECURITY, Caller, TheBroker
from himalia.server.identity import Principal, Right
from himalia.server.observe.audit import AuditEvent
from himalia.server.rest.models import ErrorResponse
from himalia.server.rest.table_queries import LIMIT_MAX
from himalia.server.rest.topics import ERRORS

LIMIT = 100
TEXT_MAX = 10_000
WHERE_SHOWN_MAX = 200
"""How much of a condition the audit trail has."""

NO_TABLE: dict[int | str, dict[str, Any]] = {404: {"model": ErrorResponse, "description": "No such table"}}
NO_ENGINE: dict[int | str, dict[str, Any]] = {
    501: {"model": ErrorResponse, "description": "The server lacks what reading tables needs"}
}


class ColumnBody(BaseModel):
    name: str = Field(examples=["run_ms"])
    type: str = Field(description="As SQL calls it.", examples=["double"])
    description: str


class TableBody(BaseModel):
    name: str = Field(examples=["executions"])
    description: str = Field(description="What a row is.")
    rows: int | None = Field(description="How many there are; null if the table does not say.")
    bytes: int = Field(description="Size of its files.")
    updated: str = Field(description="When it last changed.", examples=["2026-11-15T20:17:03.000123Z"])
    columns: list[ColumnBody]


class TableList(BaseModel):
    tables: list[TableBody]


class TableRows(BaseModel):
    table: str = Field(examples=["executions"])
    columns: list[str]
    rows: list[dict[str, Any]] = Field(description="Times in ISO 8601, UTC.")
    truncated: bool = Field(description="Whether there are more rows than these.")


router = APIRouter(responses=ERRORS, tags=["tables"], dependencies=SECURITY)


@router.get("/tables", response_model=TableList, responses=NO_ENGINE)
async def list_tables(broker: TheBroker, caller: Caller) -> Response:
    """The tables that the pipeline has made, with their columns; none if it has not run yet."""
    _require_all(caller)
    return _json(await broker.tables.describe())


@router.get("/tables/{name}", response_model=TableRows, responses={**NO_TABLE, **NO_ENGINE})
async def read_table(
    broker: TheBroker,
    caller: Caller,
    name: Annotated[str, Path(description="The table's name.", examples=["executions"], max_length=255)],
    where: Annotated[
        str | None,
        Query(description="A condition in SQL.", examples=["status = 'error'"], max_length=TEXT_MAX),
    ] = None,
    order: Annotated[
        str | None,
        Query(
            description="Columns, each with asc or desc; the newest rows first by default.",
            examples=["run_ms desc"],
            max_length=TEXT_MAX,
        ),
    ] = None,
    columns: Annotated[
        str | None,
        Query(description="Only these, separated by commas.", examples=["code,run_ms"], max_length=TEXT_MAX),
    ] = None,
    limit: Annotated[int, Query(description="At most so many rows.", ge=1, le=LIMIT_MAX)] = LIMIT,
) -> Response:
    """Rows of a table. Bounded in rows, bytes and time; nothing can be changed by it."""
    _require_all(caller)
    shown = where if where is None or len(where) <= WHERE_SHOWN_MAX else where[:WHERE_SHOWN_MAX] + "..."

    def record() -> None:
        broker.audit.record_repeated(AuditEvent.TABLE_QUERIED, caller, table=name, where=shown)

    wanted = None if columns is None else [column.strip() for column in columns.split(",")]
    return _json(
        await broker.tables.read(
            name, caller=caller, where=where, order=order, columns=wanted, limit=limit, on_begin=record
        )
    )


def _require_all(caller: Principal) -> None:
    if not caller.may_all(Right.SUBSCRIBE):
        raise Forbidden(
            f"{caller.name!r} has no right to read tables, which hold every topic: that is subscribe on '>'",
            right=Right.SUBSCRIBE,
        )


def _json(body: bytes) -> Response:
    # Encoded where it was read; decoding it here would hold up the event loop for nothing.
    return Response(body, media_type="application/json")
