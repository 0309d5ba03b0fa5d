"""Bounds how many steps a filter can take on a record, before it is evaluated.

The library that evaluates CEL cannot be interrupted, holds the interpreter, and copies a lot: each selection copies the
value, and ``map`` and ``filter`` copy their whole result in every iteration. So the cost is bounded from above by the
tree and by the sizes of the values that it reads. A step is about 0.1 microseconds.

Every value has a weight, its nodes and its text. Costs and weights grow in proportion to the weight of a macro's
element, so a loop is counted from two points: an element without weight, and one of weight 1.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from himalia.pubsub.filters.syntax_tree import (
    Call,
    Chain,
    Conditional,
    Has,
    Index,
    ListOf,
    Literal,
    Macro,
    MapOf,
    Name,
    Node,
    Read,
    Select,
    Unary,
)

STEPS_MAX = 100_000
"""Most steps that a filter may take on a record: about 10 ms."""
PATTERN_LENGTH_MAX = 100
"""Longest regular expression of ``matches``."""

# Measured on cel 0.14 by way of common-expression-language 0.10, rounded up.
STEPS_PER_NODE = 20
"""Cost of passing one value of the record to the library."""
BYTES_PER_STEP = 64
"""Bytes of text that are passed to the library in a step."""
SCANNED_BYTES_PER_STEP = 32
"""Bytes of JSON that are skipped in a step."""
STEPS_PER_EXPONENT = 80
"""Additional cost of decoding a number such as 1.5e+300, compared with another value."""
STEPS_PER_DIGIT = 0.3
"""The same for each byte of a number with very many digits."""
_EXPONENTS_FREE = 50
_EXPONENT = re.compile(rb"[0-9.][eE]")
_TEXT = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_AS_ZEROS = bytes.maketrans(b"123456789.", b"0000000000")
_LONG_NUMBER = b"0" * 64
_BYTES_PER_WEIGHT = 256
_STEPS_PER_OPERATION = 4
_STEPS_PER_CALL = 10
_STEPS_PER_TURN = 10
_STEPS_OF_CLASS = {"w": 5_000, "W": 5_000, "p": 5_000, "P": 5_000, "d": 600, "D": 600}
_NOT_STRUCTURE = bytes(sorted(set(range(256)) - set(b",:[{")))


class Size(NamedTuple):
    """``weight`` bounds the nodes and the text of a value, ``length`` its elements."""

    weight: float
    length: float


class Estimate(NamedTuple):
    """The steps to compute a value, and its size."""

    steps: float
    weight: float
    length: float


def nodes_of(text: bytes) -> int:
    """Return an upper bound of the values and keys in this JSON; too high only if strings look like structure."""
    return 1 + len(text.translate(None, _NOT_STRUCTURE)) if text[:1] in (b"[", b"{") else 1


def steps_of_numbers(text: bytes) -> float:
    """Return the additional steps for numbers in this JSON that have exponents, or very many digits."""
    exponents, has_long = _unusual_numbers(text)
    if b'"' in text and (has_long or exponents > _EXPONENTS_FREE):
        # It may be strings that look like that, such as those of hexadecimal digits.
        text = _TEXT.sub(b"", text)
        exponents, has_long = _unusual_numbers(text)
    return exponents * STEPS_PER_EXPONENT + (len(text) * STEPS_PER_DIGIT if has_long else 0)


def _unusual_numbers(text: bytes) -> tuple[int, bool]:
    return len(_EXPONENT.findall(text)), _LONG_NUMBER in text.translate(_AS_ZEROS)


def steps_to_hand_over(nodes: float, size_bytes: float) -> float:
    return nodes * STEPS_PER_NODE + size_bytes / BYTES_PER_STEP


def size_of(nodes: float, size_bytes: float, length: float) -> Size:
    return Size(nodes + size_bytes / _BYTES_PER_WEIGHT, length)


def estimate(node: Node, sizes: list[Size], element: float = 0.0) -> Estimate:
    """Return an upper bound of evaluating ``node``, if the values that it reads have these sizes."""
    match node:
        case Literal(value):
            text = len(value) if isinstance(value, str | bytes) else 0
            return Estimate(1, 1 + text / _BYTES_PER_WEIGHT, 0)
        case Read(number):
            return Estimate(1, *sizes[number])
        case Name():
            return Estimate(1, element, element)
        case Has(operand, _) | Unary(_, operand):
            inner = estimate(operand, sizes, element)
            return Estimate(inner.steps + inner.weight + _STEPS_PER_OPERATION, 1, 0)
        case Select(operand, _):
            inner = estimate(operand, sizes, element)
            return Estimate(inner.steps + inner.weight + _STEPS_PER_OPERATION, inner.weight, inner.weight)
        case Index(operand, key):
            inner, index = estimate(operand, sizes, element), estimate(key, sizes, element)
            steps = inner.steps + index.steps + inner.weight + index.weight + _STEPS_PER_OPERATION
            return Estimate(steps, inner.weight, inner.weight)
        case Chain():
            return _chain(node, sizes, element)
        case Conditional(condition, then, otherwise):
            parts = [estimate(part, sizes, element) for part in (condition, then, otherwise)]
            steps = sum(part.steps for part in parts) + _STEPS_PER_OPERATION
            return Estimate(steps, parts[1].weight + parts[2].weight, parts[1].length + parts[2].length)
        case Call():
            return _call(node, sizes, element)
        case Macro():
            return _macro(node, sizes)
        case ListOf(items):
            return _collection([estimate(item, sizes, element) for item in items], len(items))
        case MapOf(entries):
            parts = [estimate(part, sizes, element) for entry in entries for part in entry]
            return _collection(parts, len(entries))


def _collection(parts: list[Estimate], length: int) -> Estimate:
    weight = sum(part.weight for part in parts)
    steps = sum(part.steps for part in parts) + weight + _STEPS_PER_OPERATION * (len(parts) + 1)
    return Estimate(steps, weight + 1, length)


def _chain(node: Chain, sizes: list[Size], element: float) -> Estimate:
    steps, weight, length = estimate(node.first, sizes, element)
    for operator, operand in node.rest:
        right = estimate(operand, sizes, element)
        both = weight + right.weight
        # An operator that does not fit its operands copies both for its error.
        steps += right.steps + 4 * both + _STEPS_PER_OPERATION
        if operator == "+":
            weight, length = both, length + right.length
        else:
            weight, length = 1.0, 0.0
    return Estimate(steps, weight, length)


def _call(node: Call, sizes: list[Size], element: float) -> Estimate:
    given = node.arguments if node.target is None else (node.target, *node.arguments)
    parts = [estimate(part, sizes, element) for part in given]
    weight = sum(part.weight for part in parts)
    steps = sum(part.steps for part in parts) + 4 * weight + _STEPS_PER_CALL
    if node.function == "matches":
        pattern = _pattern(node)
        steps += pattern_steps(pattern) + _search_steps(pattern, parts[0].weight)
    # Bytes that are no UTF-8 grow threefold as text; a double has up to 330 digits.
    is_text = node.function in ("string", "bytes", "dyn")
    return Estimate(steps, 3 * weight + 2 if is_text else 1, weight if node.function == "dyn" else 0)


def _macro(node: Macro, sizes: list[Size]) -> Estimate:
    steps, weight, length = estimate(node.range, sizes)
    turns = min(length, weight)
    bare = [estimate(part, sizes, 0.0) for part in node.body]
    laden = [estimate(part, sizes, 1.0) for part in node.body]
    steps += 2 * weight + turns * _STEPS_PER_TURN
    for at_nothing, at_one in zip(bare, laden, strict=True):
        steps += turns * at_nothing.steps + weight * (at_one.steps - at_nothing.steps)
    if node.name not in ("map", "filter"):
        return Estimate(steps, 1, 0)
    result = weight
    if node.name == "map":
        result = turns * bare[-1].weight + weight * (laden[-1].weight - bare[-1].weight)
    return Estimate(steps + (turns + 1) * result, result + turns + 1, turns)


def _pattern(node: Call) -> str:
    [pattern] = node.arguments
    assert isinstance(pattern, Literal) and isinstance(pattern.value, str)  # checked when it was compiled
    return pattern.value


@lru_cache(maxsize=1024)
def pattern_steps(pattern: str) -> int:
    """Return the steps to compile a regular expression, which the library does at every call.

    Large classes of Unicode take half a millisecond each, wide ranges whose case is ignored several.
    """
    escaped = [pattern[at + 1 : at + 2] for at, char in enumerate(pattern) if char == "\\"]
    classes = sum(_STEPS_OF_CLASS.get(char, 0) for char in escaped)
    ignores_case = "(?" in pattern and "i" in pattern
    ends = [pattern[at + 1 : at + 2] for at, char in enumerate(pattern) if char == "-"]
    wide = sum(1 for end in ends if end == "\\" or not end.isascii()) if ignores_case else 0
    return 100 + 50 * len(pattern) + classes + 70_000 * wide


def _search_steps(pattern: str, weight: float) -> float:
    """Return the steps to search for a pattern: at worst all of its states are followed at every byte."""
    return weight * _BYTES_PER_WEIGHT * (1 + len(pattern)) * 0.15
