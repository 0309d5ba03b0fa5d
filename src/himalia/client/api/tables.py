"""Tables of the pipeline."""

from __future__ import annotations

from collections.abc import Sequence

from himalia.client.api.resource import Resource, path
from himalia.protocol.models import TableList, TableRows, TableSummary


class TableResource(Resource):
    async def tables(self) -> list[TableSummary]:
        """List the tables of the pipeline with their columns; none if it has not run yet."""
        return (await self._rest().call("GET", "/tables", TableList)).tables

    async def table(
        self,
        name: str,
        *,
        where: str | None = None,
        order: str | None = None,
        columns: Sequence[str] | None = None,
        limit: int | None = None,
    ) -> TableRows:
        """Return the rows of a table that match ``where``, a condition in SQL; the newest first, at most 100.

        ``order`` names columns, each with ``asc`` or ``desc``; ``limit`` may be up to 10,000. Raises ``BadQuery`` with
        the engine's message, ``TableNotFound``, or ``QueryTooLarge``.
        """
        names = None if columns is None else ",".join(columns)
        query = {"where": where, "order": order, "columns": names, "limit": limit}
        return await self._rest().call("GET", path("tables", name, **query), TableRows)
