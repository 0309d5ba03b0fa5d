"""A content filter: compiled once for each distinct expression, bounded before it is evaluated."""

from __future__ import annotations

import time
from functools import lru_cache
from typing import Any

import cel
import msgspec

from himalia.errors import BadFilter, FilterFailed
from himalia.pubsub.filters.cost import (
    PATTERN_LENGTH_MAX,
    SCANNED_BYTES_PER_STEP,
    STEPS_MAX,
    Size,
    estimate,
    nodes_of,
    pattern_steps,
    size_of,
    steps_of_numbers,
    steps_to_hand_over,
)
from himalia.pubsub.filters.fields import Binder, Reader
from himalia.pubsub.filters.parser import parse
from himalia.pubsub.filters.syntax_tree import Call, Literal, Node, children, read_name, render
from himalia.pubsub.filters.tokens import NotCel
from himalia.record import Record

SECONDS_MAX = 0.2
"""Processor time after which a filter is not tried again. The bound on steps should make this impossible."""
_decode = msgspec.json.decode


class Filter:
    """A compiled filter. Equal expressions share one object, so it can be a key of shared work."""

    __slots__ = ("_is_too_slow", "_names", "_program", "_reader", "_size_free", "_sources", "_tree", "text")

    def __init__(self, tree: Node, text: str) -> None:
        self.text = text
        self._is_too_slow = False
        binder = Binder()
        self._tree = binder.bind(tree)
        _check_patterns(self._tree)
        self._sources = binder.sources
        self._reader = Reader(binder.sources)
        self._names = [read_name(number) for number in range(len(binder.sources))]
        least = self._steps_at(0)
        if least > STEPS_MAX:
            raise BadFilter(
                f"the filter takes {least:,.0f} steps on the smallest record, {STEPS_MAX:,} are allowed"
            )
        self._size_free = self._largest_free_size()
        try:
            self._program = cel.compile(render(self._tree))
        except ValueError as error:
            raise BadFilter(f"the filter is not CEL: {_first_line(error)}") from None

    def matches(self, record: Record) -> bool:
        """Whether a record passes; raises ``FilterFailed`` if the evaluation fails or could cost too much."""
        if self._is_too_slow:
            raise FilterFailed(f"the filter took more than {SECONDS_MAX} s on a record", filter=self.text)
        variables = self._read(record)
        started = time.thread_time()
        try:
            answer = self._program.execute(variables)
        except Exception as error:  # the library raises whatever fits: KeyError, TypeError, ...
            raise FilterFailed(f"the filter failed: {self._reason(error)}", filter=self.text) from None
        finally:
            self._is_too_slow = time.thread_time() - started > SECONDS_MAX
        if not isinstance(answer, bool):
            raise FilterFailed(
                f"the filter returned {type(answer).__name__}, not true or false", filter=self.text
            )
        return answer

    def _read(self, record: Record) -> dict[str, Any]:
        """Return the parts of the record that the program reads, by its names for them."""
        scan = self._reader.count_scanned_bytes(record) / SCANNED_BYTES_PER_STEP
        if scan > STEPS_MAX:
            raise self._too_costly(scan)
        try:
            found = self._reader.find(record)
            if len(record.payload) + len(record.headers) <= self._size_free:
                values = [None if text is None else _decode(text) for text in found]
            else:
                values = self._decode_within_bounds(found, scan)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            raise FilterFailed(f"the record cannot be read as JSON: {error}", filter=self.text) from None
        there = zip(self._names, found, values, strict=True)
        return {name: value for name, text, value in there if text is not None}

    def _decode_within_bounds(self, found: list[bytes | None], steps: float) -> list[Any]:
        """Decode the parts that were found; raise if that or the evaluation could take too many steps."""
        nodes = [0 if text is None else nodes_of(text) for text in found]
        lengths = [0 if text is None else len(text) for text in found]
        steps += sum(map(steps_to_hand_over, nodes, lengths))
        steps += sum(steps_of_numbers(text) for text in found if text is not None)
        if steps > STEPS_MAX:
            raise self._too_costly(steps)
        values = [None if text is None else _decode(text) for text in found]
        counts = [len(value) if isinstance(value, list | dict) else 0 for value in values]
        steps += estimate(self._tree, list(map(size_of, nodes, lengths, counts))).steps
        if steps > STEPS_MAX:
            raise self._too_costly(steps)
        return values

    def _steps_at(self, size_bytes: int) -> float:
        """Return the most steps that a record of this size can take."""
        nodes = 1 + size_bytes / 2  # each value or key has at least a byte, and one that sets it apart
        sizes: list[Size] = [size_of(nodes, size_bytes, nodes)] * len(self._sources)
        # Numbers with exponents, each of six bytes at least, take a little more for each byte.
        read = len(self._sources) * (
            steps_to_hand_over(nodes, size_bytes) + size_bytes + 8 * size_bytes / SCANNED_BYTES_PER_STEP
        )
        return read + estimate(self._tree, sizes).steps

    def _largest_free_size(self) -> int:
        """Return the size up to which no record can take too many steps, whatever it contains."""
        size = 1
        while size < 1 << 20 and self._steps_at(size * 2) <= STEPS_MAX:
            size *= 2
        return size

    def _reason(self, error: Exception) -> str:
        line = _first_line(error)
        for name, source in zip(self._names, self._sources, strict=True):
            if f"'{name}'" in line:
                return f"there is no {source}; test it with has() first"
        return f"{type(error).__name__}: {line}"

    def _too_costly(self, steps: float) -> FilterFailed:
        return FilterFailed(
            f"the filter could take {steps:,.0f} steps on this record, {STEPS_MAX:,} are allowed",
            filter=self.text,
        )


def compile_filter(text: str) -> Filter:
    """Return the one ``Filter`` of this expression, however it is spaced.

    Raises ``BadFilter`` if the expression is not valid or too costly.

    Takes up to some ten milliseconds, the first time that a text is given.
    """
    found = _compile_cached(text)
    if isinstance(found, str):
        raise BadFilter(found)
    return found


@lru_cache(maxsize=1024)
def _compile_cached(text: str) -> Filter | str:
    """Return the filter, or what is wrong with the text: finding that out takes as long, so it is cached too."""
    try:
        tree = parse(text)
        return _make_filter(tree, render(tree))
    except NotCel as error:
        return f"the filter is not CEL: {error}"
    except BadFilter as error:
        return error.message


@lru_cache(maxsize=1024)
def _make_filter(tree: Node, text: str) -> Filter:
    return Filter(tree, text)


def _check_patterns(tree: Node) -> None:
    """Refuse regular expressions that are large, computed, or none. All are counted before any is compiled."""
    patterns: list[Literal] = []
    for node in _all_nodes(tree):
        if not isinstance(node, Call) or node.function != "matches":
            continue
        [pattern] = node.arguments
        if (
            not isinstance(pattern, Literal)
            or not isinstance(pattern.value, str)
            or len(pattern.value) > PATTERN_LENGTH_MAX
            or "{" in pattern.value
        ):
            raise BadFilter(
                f"matches takes a text of at most {PATTERN_LENGTH_MAX} characters without counts in braces"
            )
        patterns.append(pattern)
    if sum(pattern_steps(str(pattern.value)) for pattern in patterns) > STEPS_MAX:
        raise BadFilter("the regular expressions are too costly: use fewer classes and ranges")
    for pattern in patterns:
        try:
            cel.evaluate(f'"".matches({render(pattern)})')
        except Exception as error:
            raise BadFilter(f"the regular expression is not valid: {_regex_error(error)}") from None


def _all_nodes(node: Node) -> list[Node]:
    found = [node]
    for each in found:
        found += children(each)
    return found


def _first_line(error: Exception) -> str:
    return (str(error) or repr(error)).splitlines()[0]


def _regex_error(error: Exception) -> str:
    """Return the last line of the library's explanation of a regular expression, without its advice."""
    line = (str(error) or repr(error)).splitlines()[-1]
    return line.removeprefix("error: ").removesuffix(" Check function arguments and their types.").rstrip(".")
