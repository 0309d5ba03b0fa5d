"""What went wrong in a batch: our own errors, found again in what Spark says of them."""

from __future__ import annotations

import re

from himalia import errors
from himalia.errors import ConfigurationError, HimaliaError

# As a worker's traceback names it; the sentence is on the same line.
_OURS = re.compile(r"himalia\.errors\.(\w+): ([^\n]+)")
_MISSING = re.compile(r"^ModuleNotFoundError: No module named '([\w.]+)'", re.MULTILINE)
_TRACEBACK = "Traceback (most recent call last):\n"
_CALLING = re.compile(r"An error occurred while calling \S+\n: ")
LINE_LENGTH_MAX = 500


def translated(error: Exception) -> HimaliaError | None:
    """The error of ours behind an exception; None if it is none."""
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
    """What an exception says, as far as it fits into a sentence: of a worker's traceback, the line below it."""
    _, is_of_worker, said = _CALLING.sub("", str(error)).rpartition(_TRACEBACK)
    lines = [
        line.strip()
        for line in said.splitlines()
        if line.strip() and not (is_of_worker and line[0].isspace())
    ]
    return (lines[0] if lines else type(error).__name__)[:LINE_LENGTH_MAX]
