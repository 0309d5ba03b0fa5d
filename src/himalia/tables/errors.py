"""Translate errors of the query engine to Himalia's."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from himalia.errors import BadQuery, HimaliaError, QueryTooLarge, TableNotFound
from himalia.tables.query import Statement

NEED_DELTALAKE = "reading tables needs the package deltalake: pip install 'himalia[tables]'"

_SYNTAX = re.compile(r'(?:Parser|Tokenizer)Error\("(.*?) at Line: (\d+), Column: (\d+)')
_PREFIX = re.compile(
    r"(?:(?:External|Schema|Execution|Arrow|Parquet|Parser|Compute) error: |Error during planning: |External: "
    r"|Optimizer rule '\w+' failed |type_coercion |caused by )+"
)
_UNKNOWN_TABLE = re.compile(r"table '(?:datafusion\.public\.)?([^']+)' not found")
_UNKNOWN_COLUMN = re.compile(
    r"No field named (.+?)\.(?: Did you mean '([^']+)'| Valid fields are (.+?)\.?\Z|\Z)"
)


class FileVanished(Exception):
    """A file of the table was removed while it was read: the table was rewritten, and can be read again."""


@contextmanager
def translate_errors(statement: Statement, names: Sequence[str]) -> Iterator[None]:
    """Translate the engine's errors in the block to Himalia's."""
    try:
        yield
    except (HimaliaError, FileVanished):
        raise
    except Exception as error:
        raise _translate(" ".join(str(error).split()), statement, names) from error


def _translate(text: str, statement: Statement, names: Sequence[str]) -> Exception:
    if "Object Store error: Object at location" in text and "not found" in text:
        return FileVanished(text)
    if "Resources exhausted" in text or "Not enough memory" in text:
        return QueryTooLarge("the query needs more memory than it may have; request fewer rows or columns")
    if "only supports a single SQL statement" in text:
        return BadQuery("these are several statements; send one query at a time")
    if unknown := _UNKNOWN_TABLE.search(text):
        return no_such_table(unknown[1], names)
    if unknown := _UNKNOWN_COLUMN.search(text):
        return _no_such_column(unknown)
    if wrong := _SYNTAX.search(text):
        return _syntax_error(wrong[1], int(wrong[2]), int(wrong[3]), statement)
    return BadQuery(f"the query failed: {_uncapitalize(_PREFIX.sub('', text))}")


def _syntax_error(problem: str, line: int, column: int, statement: Statement) -> BadQuery:
    if not statement.first <= line <= statement.last:
        return BadQuery("the condition ends too early, or closes a parenthesis that it did not open")
    place = f"at character {column}"
    if statement.last > statement.first:
        place += f" of line {line - statement.first + 1}"
    is_offset = re.search(r",\s*offset\b", statement.text, re.IGNORECASE)
    hint = '; in a list of columns, "offset" must be in double quotes' if is_offset else ""
    return BadQuery(f"this is not SQL: {_uncapitalize(problem).replace(': ', ' ')}, {place}{hint}")


def no_such_table(name: str, names: Sequence[str]) -> TableNotFound:
    return TableNotFound(f"there is no table {name!r}; there are {', '.join(names)}", table=name)


def _no_such_column(found: re.Match[str]) -> BadQuery:
    column, near, valid = found[1].strip('"'), found[2], found[3]
    message = f"there is no column {column!r} (text goes in 'single quotes')"
    if near:
        message += f"; did you mean {_strip_qualifier(near)!r}?"
    elif valid:
        message += f"; there are {', '.join(map(_strip_qualifier, valid.split(', ')))}"
    return BadQuery(message, column=column)


def _strip_qualifier(column: str) -> str:
    return column.rpartition(".")[2].strip('"')


def _uncapitalize(text: str) -> str:
    return text[:1].lower() + text[1:] if text[1:2].islower() else text
