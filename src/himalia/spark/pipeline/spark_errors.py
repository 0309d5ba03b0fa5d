"""Errors of a batch: Himalia's own errors are recovered from the text of Spark's exceptions."""

from __future__ import annotations

import re

from himalia import errors
from himalia.errors import ConfigurationError, HimaliaError

# As in a worker's traceback, with the message on the same line.
_OURS = re.compile(r"himalia\.errors\.(\w+): ([^\n]+)")
_MISSING = re.compile(r"^ModuleNotFoundError: No module named '([\w.]+)'", re.MULTILINE)
_TRACEBACK = "Traceback (most recent call last):\n"
_CALLING = re.compile(r"An error occurred while calling \S+\n: ")
LINE_LENGTH_MAX = 500


def find_himalia_error(error: Exception) -> HimaliaError | None:
    """Return the Himalia error that caused an exception; None if there is none."""
    if isinstance(error, HimaliaError):
        return error
    if missing := _MISSING.search(str(error)):
        return ConfigurationError(
            f"the Python of Spark's executors lacks the module {missing[1]!r}: they need pyspark and pyarrow; "
            "the environment variable PYSPARK_PYTHON names the Python that they use"
        )
    found = _OURS.search(str(error))
    kind = getattr(errors, found[1], None) if found else None
    if found is None or not (isinstance(kind, type) and issubclass(kind, HimaliaError)):
        return None
    return kind.from_message(found[2].strip())


def first_line(error: Exception) -> str:
    """Return the first line of an exception's message, or the line below the last traceback of a worker in it."""
    _, is_of_worker, message = _CALLING.sub("", str(error)).rpartition(_TRACEBACK)
    lines = [
        line.strip()
        for line in message.splitlines()
        if line.strip() and not (is_of_worker and line[0].isspace())
    ]
    return (lines[0] if lines else type(error).__name__)[:LINE_LENGTH_MAX]
