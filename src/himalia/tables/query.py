"""SQL for the engine: statements that can only read, composed of a caller's parts or checked as a whole."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from typing import NamedTuple

from himalia.errors import BadQuery, BadRequest

EXAMPLE = "select status, count(*) from executions group by status"

_WORD = re.compile(r"[A-Za-z_]\w*|\(|\Z")
_BEGINNINGS = frozenset({"select", "with", "values", "show", "describe", "desc", "("})
_EXPLAIN_OPTION = re.compile(r"(?:analyze|verbose|format)\b", re.IGNORECASE)
_ORDER = re.compile(r'\s*("?)(?P<column>\w+)\1(?:\s+(?P<direction>asc|desc))?\s*\Z', re.IGNORECASE)


class Statement(NamedTuple):
    """SQL for the engine. The caller wrote its lines ``first`` to ``last``."""

    text: str
    first: int
    last: int


class Query(NamedTuple):
    """A query of a caller, and the statement that returns the engine's plan for it without executing it."""

    statement: Statement
    plan: Statement


def select_rows(
    table: str,
    known: Sequence[str],
    *,
    where: str | None = None,
    order: str | None = None,
    newest_first: str | None = None,
    columns: Sequence[str] | None = None,
    limit: int | None = None,
) -> Statement:
    """Make the query for the rows of a table. ``known`` are its columns.

    ``where`` is a condition in SQL, ``order`` a list of columns such as ``run_ms desc, started``; without it rows are
    ordered by ``newest_first``. Whatever ``where`` contains, this is one SELECT with its limit: the engine accepts only
    a single statement, text that closes the parenthesis early has to open another one for ours, and a comment ends with
    its line.
    """
    for column in columns or ():
        _check_column(table, column, known)
    wanted = ", ".join(quote(column) for column in columns or known)
    ordered = _order_by(table, order, known) if order else newest_first
    return _statement(
        f"SELECT {wanted} FROM {quote(table)}",
        where,
        f"ORDER BY {ordered}" if ordered else "",
        "" if limit is None else f"LIMIT {int(limit)}",
    )


def count_rows(table: str, where: str | None) -> Statement:
    """Make the query for the number of rows of a table."""
    return _statement(f'SELECT count(*) AS "rows" FROM {quote(table)}', where)


def _statement(beginning: str, where: str | None, *end: str) -> Statement:
    condition = f"WHERE (\n{where}\n)" if where and where.strip() else ""
    text = " ".join(part for part in (beginning, condition, *end) if part)
    return Statement(text, 2, 2 + (where or "").count("\n"))


def quote(name: str) -> str:
    escaped = name.replace('"', '""')
    return f'"{escaped}"'


def _order_by(table: str, order: str, known: Sequence[str]) -> str:
    terms = []
    for part in order.split(","):
        found = _ORDER.match(part)
        if found is None:
            raise BadRequest(
                f"{part.strip()!r} is not an order: list columns, each with asc or desc, as in 'ts desc, topic'"
            )
        _check_column(table, found["column"], known)
        direction = (found["direction"] or "asc").upper()
        # Nulls come last in both directions.
        terms.append(f"{quote(found['column'])} {direction} NULLS LAST")
    return ", ".join(terms)


def _check_column(table: str, column: str, known: Sequence[str]) -> None:
    if column not in known:
        near = difflib.get_close_matches(column, known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(known)}"
        raise BadRequest(f"{table} has no column {column!r}; {hint}", table=table, column=column)


def parse_query(text: str) -> Query:
    """Parse the beginning of a query that the caller wrote as a whole. Raises ``BadQuery`` if it is no query's.

    The engine can also write files and create tables, and has no option against that. Only its planner can decide
    whether this is a query: ``Query.plan`` returns the plan, whose first line ``is_query`` checks.
    """
    text = text.strip().removesuffix(";").rstrip()
    start = _skip_comments(text, 0)
    word = _word_at(text, start)
    options: list[str] = []
    if word == "explain":
        start, options = _skip_explain(text, start + len(word))
        word = _word_at(text, start)
    if not text[start:]:
        raise BadQuery(f"the query is empty; write one such as: {EXAMPLE}")
    if word not in _BEGINNINGS:
        raise not_a_query(text[start:])
    # The text before it is replaced by blanks, so that positions in the engine's errors are those of the caller's text.
    body = re.sub(r"[^\n]", " ", text[:start]) + text[start:]
    last = 2 + body.count("\n")
    explain = " ".join(["EXPLAIN", *options]) if options or start > _skip_comments(text, 0) else ""
    return Query(Statement(f"{explain}\n{body}", 2, last), Statement(f"EXPLAIN VERBOSE\n{body}", 2, last))


def is_query(root: str) -> bool:
    """Whether a plan with this first line only reads: an operator that writes or changes the session is the root."""
    return _READING_ROOT.match(root) is not None


def not_a_query(text: str) -> BadQuery:
    return BadQuery(
        f"{_excerpt(text)!r} is not a query; tables are read-only: "
        "begin with SELECT, WITH, VALUES, SHOW, DESCRIBE <table> or EXPLAIN SELECT"
    )


_READING_ROOT = re.compile(
    r"(?:Projection|Filter|WindowAggr|Aggregate|Sort|Union|TableScan|EmptyRelation|Subquery|SubqueryAlias|Limit|Values"
    r"|Distinct|DistinctOn|Unnest|RecursiveQuery|DescribeTable|(?:\w+ )?Join)(?::|\Z)"
)


def _skip_explain(text: str, at: int) -> tuple[int, list[str]]:
    """Return where the statement begins that EXPLAIN is to explain, and the options before it."""
    options = []
    at = _skip_comments(text, at)
    while found := _EXPLAIN_OPTION.match(text, at):
        option = found[0].upper()
        at = _skip_comments(text, found.end())
        if option == "FORMAT":
            format_name = _word_at(text, at)
            at = _skip_comments(text, at + len(format_name))
            option += f" {format_name}"
        options.append(option)
    return at, options


def _word_at(text: str, at: int) -> str:
    found = _WORD.match(text, at)
    return found[0].lower() if found else ""


def _skip_comments(text: str, at: int) -> int:
    """Return the next position outside of blanks and comments; ``/* */`` nest, as they do in the engine."""
    while at < len(text):
        if text[at] in " \t\r\n":
            at += 1
        elif text.startswith("--", at):
            at = _or_length(text, text.find("\n", at))
        elif text.startswith("/*", at):
            at = _skip_block_comment(text, at)
        else:
            break
    return at


def _skip_block_comment(text: str, at: int) -> int:
    depth = 0
    for found in re.finditer(r"/\*|\*/", text[at:]):
        depth += 1 if found[0] == "/*" else -1
        if depth == 0:
            return at + found.end()
    return len(text)


def _or_length(text: str, at: int) -> int:
    return len(text) if at < 0 else at


def _excerpt(text: str) -> str:
    line = " ".join(text[:200].split())
    return line if len(line) <= 40 else line[:39] + "…"
