"""Content filters in CEL: compiled once for each distinct text, evaluated once for each record."""

from __future__ import annotations

import re
import time
from functools import lru_cache
from typing import Any

import cel
import msgspec

from himalia.errors import BadFilter, FilterFailed
from himalia.record import Record

VARIABLES = frozenset({"message", "headers", "topic", "offset"})
_decode = msgspec.json.decode
# The library also lists the variable of a macro, as in `tags.exists(t, t == "new")`.
_BOUND = re.compile(r"\.(?:all|exists|exists_one|map|filter)\(\s*([A-Za-z_]\w*)\s*,")


SECONDS_MAX = 0.2
MATCHES_LENGTH_MAX = 100
_STRING = re.compile(r"""\"(?:[^"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'""")
_MACRO = re.compile(r"\.(?:all|exists|exists_one|map|filter)\(")
_MATCHES = re.compile(r"\bmatches\(")


class Filter:
    """A compiled filter. Equal texts share one object, so it can be a key of shared work."""

    __slots__ = ("_is_too_slow", "_program", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self._is_too_slow = False
        _check_cost(text)
        try:
            self._program = cel.compile(text)
        except ValueError as error:
            raise BadFilter(f"the filter is not CEL: {_first_line(error)}", filter=text) from None
        unknown = set(self._program.variables()) - VARIABLES - set(_BOUND.findall(text))
        if unknown:
            names = ", ".join(sorted(unknown))
            raise BadFilter(
                f"the filter speaks of {names}; it may speak of {', '.join(sorted(VARIABLES))}", filter=text
            )

    def matches(self, activation: dict[str, Any]) -> bool:
        """Whether a record passes; ``FilterFailed`` if that cannot be said.

        A filter that once took too long is not tried again: everybody waits while it is evaluated.
        """
        if self._is_too_slow:
            raise FilterFailed(f"the filter took more than {SECONDS_MAX} s on a record", filter=self.text)
        started = time.perf_counter()
        try:
            answer = self._program.execute(activation)
        except Exception as error:  # the library raises whatever fits: KeyError, TypeError, ...
            kind = type(error).__name__
            raise FilterFailed(f"the filter failed: {kind}: {_first_line(error)}", filter=self.text) from None
        finally:
            self._is_too_slow = time.perf_counter() - started > SECONDS_MAX
        if not isinstance(answer, bool):
            raise FilterFailed(
                f"the filter gave {type(answer).__name__}, not true or false", filter=self.text
            )
        return answer


@lru_cache(maxsize=1024)
def compile_filter(text: str) -> Filter:
    """The one ``Filter`` of this text, or ``BadFilter``."""
    return Filter(text)


def activation(record: Record) -> dict[str, Any]:
    """What a filter sees of a record."""
    headers = _decode(record.headers)
    return {
        "topic": record.topic,
        "offset": record.offset,
        "headers": headers,
        "message": {"id": record.id, "payload": _decode(record.payload), "headers": headers},
    }


def _check_cost(text: str) -> None:
    """Refuse what multiplies: a macro inside another, and regular expressions that are large or computed."""
    bare = _STRING.sub('""', text)
    for macro in _MACRO.finditer(bare):
        if _MACRO.search(_inside(bare, macro.end())):
            raise BadFilter(
                "a macro (all, exists, map, ...) inside another is too costly for a filter", filter=text
            )
    for call in _MATCHES.finditer(text):
        pattern = _STRING.match(text, call.end())
        if pattern is None or len(pattern[0]) > MATCHES_LENGTH_MAX or "{" in pattern[0]:
            raise BadFilter(
                f"matches takes a text of at most {MATCHES_LENGTH_MAX} characters without counts in braces",
                filter=text,
            )


def _inside(text: str, start: int) -> str:
    """What stands between the parenthesis that was opened before ``start`` and the one that closes it."""
    depth = 1
    for at in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        if not depth:
            return text[start:at]
    return text[start:]


def _first_line(error: Exception) -> str:
    return (str(error) or repr(error)).splitlines()[0]
