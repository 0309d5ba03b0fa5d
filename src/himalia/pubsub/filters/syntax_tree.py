"""The tree of a filter, and rendering it as text.

The library that evaluates CEL shows no tree of its own. What it is given is the text of ours, never the text of
a client: what was examined is what is evaluated, however differently the two parsers might read something.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

LEVELS: tuple[tuple[str, ...], ...] = (
    ("||",),
    ("&&",),
    ("<", "<=", ">=", ">", "==", "!=", "in"),
    ("+", "-"),
    ("*", "/", "%"),
)
"""Binary operators, lowest precedence first."""
_LEVEL_OF = {operator: level for level, operators in enumerate(LEVELS, 1) for operator in operators}
_UNARY_LEVEL = len(LEVELS) + 1
_MEMBER_LEVEL = _UNARY_LEVEL + 1


@dataclass(frozen=True, slots=True)
class Literal:
    """``None``, a bool, int, float, str or bytes; ``is_unsigned`` for a uint."""

    value: bool | int | float | str | bytes | None
    is_unsigned: bool = False


@dataclass(frozen=True, slots=True)
class Name:
    """A variable: one of the filter's own, or that of the macro around it."""

    name: str


@dataclass(frozen=True, slots=True)
class Read:
    """A part of the record, by its number among the parts that the filter reads."""

    number: int


@dataclass(frozen=True, slots=True)
class Select:
    operand: Node
    field: str


@dataclass(frozen=True, slots=True)
class Has:
    operand: Node
    field: str


@dataclass(frozen=True, slots=True)
class Index:
    operand: Node
    key: Node


@dataclass(frozen=True, slots=True)
class Unary:
    operator: str
    operand: Node


@dataclass(frozen=True, slots=True)
class Chain:
    """Operands with operators of one level between them, evaluated from left to right."""

    first: Node
    rest: tuple[tuple[str, Node], ...]


@dataclass(frozen=True, slots=True)
class Conditional:
    condition: Node
    then: Node
    otherwise: Node


@dataclass(frozen=True, slots=True)
class Call:
    function: str
    target: Node | None
    arguments: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Macro:
    """A loop over ``range``: the last of ``body`` is its result, one before it the condition of a ``map``."""

    name: str
    range: Node
    variable: str
    body: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class ListOf:
    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class MapOf:
    entries: tuple[tuple[Node, Node], ...]


Node = (
    Literal | Name | Read | Select | Has | Index | Unary | Chain | Conditional | Call | Macro | ListOf | MapOf
)


def render(node: Node) -> str:
    """Return the text of a tree, with parentheses where they are needed."""
    match node:
        case Literal():
            return _literal(node)
        case Name(name):
            return name
        case Read(number):
            return read_name(number)
        case Select(operand, field):
            return f"{_at(operand, _MEMBER_LEVEL)}.{field}"
        case Has(operand, field):
            return f"has({_at(operand, _MEMBER_LEVEL)}.{field})"
        case Index(operand, key):
            return f"{_at(operand, _MEMBER_LEVEL)}[{render(key)}]"
        case Unary(operator, operand):
            return f"{operator}{_at(operand, _MEMBER_LEVEL)}"
        case Chain(first, rest):
            above = _level(node) + 1
            return "".join([_at(first, above), *(f" {sign} {_at(right, above)}" for sign, right in rest)])
        case Conditional(condition, then, otherwise):
            return f"{_at(condition, 1)} ? {_at(then, 1)} : {render(otherwise)}"
        case Call(function, target, arguments):
            given = ", ".join(map(render, arguments))
            return f"{'' if target is None else _at(target, _MEMBER_LEVEL) + '.'}{function}({given})"
        case Macro(name, range_, variable, body):
            return f"{_at(range_, _MEMBER_LEVEL)}.{name}({', '.join([variable, *map(render, body)])})"
        case ListOf(items):
            return f"[{', '.join(map(render, items))}]"
        case MapOf(entries):
            return f"{{{', '.join(f'{render(key)}: {render(value)}' for key, value in entries)}}}"


def read_name(number: int) -> str:
    """Return the variable that stands for a part of the record."""
    return f"read_{number}"


def children(node: Node) -> tuple[Node, ...]:
    match node:
        case Literal() | Name() | Read():
            return ()
        case Select(operand, _) | Has(operand, _) | Unary(_, operand):
            return (operand,)
        case Index(operand, key):
            return (operand, key)
        case Chain(first, rest):
            return (first, *(right for _, right in rest))
        case Conditional(condition, then, otherwise):
            return (condition, then, otherwise)
        case Call(_, target, arguments):
            return arguments if target is None else (target, *arguments)
        case Macro(_, range_, _, body):
            return (range_, *body)
        case ListOf(items):
            return items
        case MapOf(entries):
            return tuple(part for entry in entries for part in entry)


def _at(node: Node, level: int) -> str:
    """Return the text of an operand, in parentheses if its precedence is lower than its place requires."""
    text = render(node)
    return text if _level(node) >= level else f"({text})"


def _level(node: Node) -> int:
    match node:
        case Conditional():
            return 0
        case Chain(_, rest):
            return _LEVEL_OF[rest[0][0]]
        case Unary():
            return _UNARY_LEVEL
        case Literal(value) if isinstance(value, int | float) and value < 0:
            return _UNARY_LEVEL
        case _:
            return _MEMBER_LEVEL


def _literal(node: Literal) -> str:
    value = node.value
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return f"{value}u" if node.is_unsigned else str(value)
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, str):
        return f'"{_NOT_PLAIN.sub(_escape, value)}"'
    return 'b"' + "".join(f"\\x{byte:02x}" for byte in value) + '"'


_NOT_PLAIN = re.compile(r"[^ !#-\[\]-~]")


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
