"""REST: the pipeline's tables, read-only."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Response

from himalia.errors import Forbidden
from himalia.protocol import models
from himalia.server.auth import SECURITY, Caller, Context
from himalia.server.identity import Principal, Right
from himalia.server.observe.audit import AuditEvent
from himalia.server.rest.schema import ERRORS, JSON, errors, model_of
from himalia.server.rest.table_queries import LIMIT_MAX

LIMIT = 100
TEXT_MAX = 10_000
WHERE_SHOWN_MAX = 200
"""Characters of a condition that the audit trail records."""

NO_TABLE = errors({404: "No such table"})
NO_ENGINE = errors({501: "The server lacks a package that reading tables needs"})

router = APIRouter(responses=ERRORS, tags=["tables"], dependencies=SECURITY)


@router.get("/tables", response_model=model_of(models.TableList), responses=NO_ENGINE)
async def list_tables(context: Context, caller: Caller) -> Response:
    """List the tables of the pipeline with their columns; none if it has not run yet."""
    _require_all(caller)
    return _to_response(await context.tables.describe())


@router.get("/tables/{name}", response_model=model_of(models.TableRows), responses={**NO_TABLE, **NO_ENGINE})
async def read_table(
    context: Context,
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
        Query(
            description="Names of columns, separated by commas; all by default.",
            examples=["code,run_ms"],
            max_length=TEXT_MAX,
        ),
    ] = None,
    limit: Annotated[int, Query(description="Most rows to return.", ge=1, le=LIMIT_MAX)] = LIMIT,
) -> Response:
    """Return rows of a table, bounded in number, bytes and time. Read-only."""
    _require_all(caller)
    shown = where if where is None or len(where) <= WHERE_SHOWN_MAX else where[:WHERE_SHOWN_MAX] + "..."

    def record() -> None:
        context.audit.record_repeated(AuditEvent.TABLE_QUERIED, caller, table=name, where=shown)

    wanted = None if columns is None else [column.strip() for column in columns.split(",")]
    return _to_response(
        await context.tables.read(
            name, caller=caller, where=where, order=order, columns=wanted, limit=limit, on_begin=record
        )
    )


def _require_all(caller: Principal) -> None:
    if not caller.may_all(Right.SUBSCRIBE):
        raise Forbidden(
            f"{caller.name!r} has no right to read tables, which hold every topic: that takes subscribe on '>'",
            right=Right.SUBSCRIBE,
        )


def _to_response(body: bytes) -> Response:
    # Encoded by the worker process.
    return Response(body, media_type=JSON)
