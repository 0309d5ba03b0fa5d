"""What the engine is asked, as SQL: made of parts that cannot become more than a query."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from typing import NamedTuple

from himalia.errors import BadQuery, BadRequest

EXAMPLE = "select status, count(*) from executions group by status"

_COMMENTS = re.compile(r"(?:\s+|--[^\n]*(?:\n|\Z)|/\*.*?\*/)+", re.DOTALL)
_QUERY = re.compile(
    r"""(?:EXPLAIN\s+(?:(?:ANALYZE|VERBOSE|FORMAT\s+\w+)\s+)*)?[\s(]*(?:SELECT|WITH|VALUES)\b
    |SHOW\b
    |DESC(?:RIBE)?\s+[\w."]+\s*\Z""",
    re.IGNORECASE | re.VERBOSE,
)
_ORDER = re.compile(r'\s*("?)(?P<column>\w+)\1(?:\s+(?P<direction>asc|desc))?\s*\Z', re.IGNORECASE)


class Statement(NamedTuple):
    """What the engine is asked. Of its lines, those from ``first`` to ``last`` are what the caller wrote."""

    text: str
    first: int
    last: int


def reading(
    table: str,
    known: Sequence[str],
    *,
    where: str | None = None,
    order: str | None = None,
    newest_first: str | None = None,
    columns: Sequence[str] | None = None,
    limit: int | None = None,
) -> Statement:
    """The query for the rows of a table. ``known`` are its columns.

    ``where`` is a condition in SQL, ``order`` a list of columns such as ``run_ms desc, started``; without it rows come
    by ``newest_first``. Whatever ``where`` says, this is one SELECT with its limit: the engine takes a single statement
    only, what closes the parenthesis early has to open another one for ours, and a comment ends with its line.
    """
    for column in columns or ():
        _check_column(table, column, known)
    wanted = ", ".join(quoted(column) for column in columns or known)
    ordered = _order(table, order, known) if order else newest_first
    return _statement(
        f"SELECT {wanted} FROM {quoted(table)}",
        where,
        f"ORDER BY {ordered}" if ordered else "",
        "" if limit is None else f"LIMIT {int(limit)}",
    )


def counting(table: str, where: str | None) -> Statement:
    return _statement(f'SELECT count(*) AS "rows" FROM {quoted(table)}', where)


def _statement(beginning: str, where: str | None, *end: str) -> Statement:
    condition = f"WHERE (\n{where}\n)" if where and where.strip() else ""
    text = " ".join(part for part in (beginning, condition, *end) if part)
    return Statement(text, 2, 2 + (where or "").count("\n"))


def quoted(name: str) -> str:
    escaped = name.replace('"', '""')
    return f'"{escaped}"'


def _order(table: str, order: str, known: Sequence[str]) -> str:
    terms = []
    for part in order.split(","):
        found = _ORDER.match(part)
        if found is None:
            raise BadRequest(
                f"{part.strip()!r} is not an order: name columns, each with asc or desc, as in 'ts desc, topic'"
            )
        _check_column(table, found["column"], known)
        direction = (found["direction"] or "asc").upper()
        # What is unknown comes last either way.
        terms.append(f"{quoted(found['column'])} {direction} NULLS LAST")
    return ", ".join(terms)


def _check_column(table: str, column: str, known: Sequence[str]) -> None:
    if column not in known:
        near = difflib.get_close_matches(column, known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(known)}"
        raise BadRequest(f"{table} has no column {column!r}; {hint}", table=table, column=column)


def asking(text: str) -> Statement:
    """A query that somebody wrote as a whole. ``BadQuery`` if it would do anything but ask.

    The engine itself would also write files and make tables. Its parser takes one statement, and decides by the first
    word what that is; so does this. EXPLAIN is a query only if what it explains is one: ANALYZE would do it.
    """
    text = text.strip().removesuffix(";").rstrip()
    comments = _COMMENTS.match(text)
    query = text[comments.end() :] if comments else text
    if not query:
        raise BadQuery(f"there is no query; write one such as: {EXAMPLE}")
    if not _QUERY.match(query):
        raise BadQuery(
            f"{_beginning(query)!r} is not a query, and tables are only read here: "
            "begin with SELECT, WITH, VALUES, SHOW, DESCRIBE <table> or EXPLAIN SELECT"
        )
    return Statement(text, 1, 1 + text.count("\n"))


def _beginning(text: str) -> str:
    line = " ".join(text[:200].split())
    return line if len(line) <= 40 else line[:39] + "…"
