"""Parses the text of a filter into its tree, by the grammar of CEL and with a limit on depth."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

from himalia.pubsub.filters.syntax_tree import (
    LEVELS,
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
    Select,
    Unary,
    children,
)
from himalia.pubsub.filters.tokens import (
    INT_MAX,
    INT_MIN,
    RESERVED,
    UINT_MAX,
    NotCel,
    Token,
    bytes_value,
    string_value,
    tokenize,
)

DEPTH_MAX = 24
"""How deep a filter may nest. The library's own parser fails at about four times that."""

MACROS: dict[str, tuple[int, ...]] = {
    "all": (2,),
    "exists": (2,),
    "exists_one": (2,),
    "existsOne": (2,),
    "map": (2, 3),
    "filter": (2,),
}
"""Loops, by name, with their number of arguments."""
FUNCTIONS: dict[str, int] = dict.fromkeys(
    ("size", "string", "int", "uint", "double", "bytes", "duration", "timestamp", "type", "dyn"), 1
)
"""Functions, by name, with their number of arguments."""
METHODS: dict[str, int] = {
    "size": 0,
    **dict.fromkeys(("contains", "startsWith", "endsWith", "matches"), 1),
    **dict.fromkeys(
        (
            "getFullYear",
            "getMonth",
            "getDate",
            "getDayOfMonth",
            "getDayOfWeek",
            "getDayOfYear",
            "getHours",
            "getMinutes",
            "getSeconds",
            "getMilliseconds",
        ),
        0,
    ),
}
"""Functions that are called on a value, by name, with their number of further arguments."""

_CONSTANTS = {"true": True, "false": False, "null": None}
_KEYWORDS = frozenset({*_CONSTANTS, "in"})
_Part = TypeVar("_Part")


def parse(text: str) -> Node:
    """Return the tree of a filter; raise ``NotCel`` if the text is not CEL."""
    return _Parser(tokenize(text)).whole()


class _Parser:
    """Recursive descent: a method for each rule of the grammar."""

    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens
        self._next = 0
        self._depth = 0

    def whole(self) -> Node:
        node = self._expression()
        if self._peek().kind != "end":
            raise self._unexpected_error("the end")
        if _depth(node) > DEPTH_MAX * 4:
            raise NotCel("it is nested too deeply")
        return node

    def _expression(self) -> Node:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise NotCel(f"it is nested more than {DEPTH_MAX} deep")
        node = self._operators(0)
        if self._takes("?"):
            then = self._operators(0)
            self._expect(":")
            node = Conditional(node, then, self._expression())
        self._depth -= 1
        return node

    def _operators(self, level: int) -> Node:
        if level == len(LEVELS):
            return self._unary()
        first = self._operators(level + 1)
        rest = []
        while self._operator() in LEVELS[level]:
            operator = self._take().text
            rest.append((operator, self._operators(level + 1)))
        return Chain(first, tuple(rest)) if rest else first

    def _operator(self) -> str:
        token = self._peek()
        return token.text if token.kind == "name" else token.kind

    def _unary(self) -> Node:
        sign = self._peek().kind
        signs = 0
        while self._peek().kind == sign and sign in ("!", "-") and not self._is_negative_number():
            self._take()
            signs += 1
        node = self._member()
        for _ in range(signs):
            node = Unary(sign, node)
        return node

    def _is_negative_number(self) -> bool:
        return self._peek().kind == "-" and self._tokens[self._next + 1].kind in ("int", "double")

    def _member(self) -> Node:
        node = self._primary()
        while True:
            if self._takes("["):
                node = Index(node, self._expression())
                self._expect("]")
            elif self._takes("."):
                field = self._name()
                node = self._call(field, node) if self._takes("(") else Select(node, field.text)
            else:
                return node

    def _primary(self) -> Node:
        token = self._take()
        match token.kind:
            case "(":
                node = self._expression()
                self._expect(")")
                return node
            case "[":
                return ListOf(tuple(self._list("]", self._expression)))
            case "{":
                return MapOf(tuple(self._list("}", self._entry)))
            case "name":
                return self._parse_named(token)
            case "string":
                return Literal(string_value(token))
            case "bytes":
                return Literal(bytes_value(token))
            case "-" | "int" | "uint" | "double":
                return self._number(token)
        raise self._unexpected_error("a value", token)

    def _parse_named(self, token: Token) -> Node:
        if token.text in _CONSTANTS:
            return Literal(_CONSTANTS[token.text])
        if token.text in _KEYWORDS or token.text in RESERVED:
            raise NotCel(f"{token.text!r} at character {token.at} is a reserved word")
        return self._call(token, None) if self._takes("(") else Name(token.text)

    def _number(self, token: Token) -> Node:
        sign = 1
        if token.kind == "-":
            token, sign = self._take(), -1
        if token.kind == "double":
            double = sign * float(token.text)
            if math.isinf(double):
                raise NotCel(f"the number at character {token.at} is too large")
            return Literal(double)
        is_unsigned = token.kind == "uint"
        digits = token.text.rstrip("uU")
        whole = sign * (int(digits, 16) if digits[:2] == "0x" else int(digits[:25]))
        if not (0 if is_unsigned else INT_MIN) <= whole <= (UINT_MAX if is_unsigned else INT_MAX):
            raise NotCel(f"the number at character {token.at} is too large")
        return Literal(whole, is_unsigned)

    def _call(self, function: Token, target: Node | None) -> Node:
        name = function.text
        arguments = self._list(")", self._expression, may_end_with_comma=False)
        if target is None and name == "has":
            return self._has(function, arguments)
        if target is not None and name in MACROS:
            return self._macro(function, target, arguments)
        known = FUNCTIONS if target is None else METHODS
        if name not in known:
            raise NotCel(f"there is no {'function' if target is None else 'method'} {name!r}")
        if len(arguments) != known[name]:
            raise NotCel(f"{name} at character {function.at} takes {_arguments(known[name])}")
        return Call(name, target, tuple(arguments))

    def _has(self, function: Token, arguments: list[Node]) -> Node:
        if len(arguments) == 1 and isinstance(arguments[0], Select):
            return Has(arguments[0].operand, arguments[0].field)
        raise NotCel(f"has at character {function.at} takes one field, as in has(message.payload.total)")

    def _macro(self, function: Token, target: Node, arguments: list[Node]) -> Node:
        name = function.text
        if len(arguments) not in MACROS[name] or not isinstance(arguments[0], Name):
            raise NotCel(f"{name} at character {function.at} takes the name of a variable and an expression")
        return Macro(name, target, arguments[0].name, tuple(arguments[1:]))

    def _entry(self) -> tuple[Node, Node]:
        key = self._expression()
        self._expect(":")
        return key, self._expression()

    def _list(
        self, closing: str, part: Callable[[], _Part], *, may_end_with_comma: bool = True
    ) -> list[_Part]:
        parts: list[_Part] = []
        while not self._takes(closing):
            if parts:
                self._expect(",")
                if may_end_with_comma and self._takes(closing):
                    break
            parts.append(part())
        return parts

    def _name(self) -> Token:
        token = self._take()
        if token.kind != "name" or token.text in _KEYWORDS:
            raise self._unexpected_error("a name", token)
        return token

    def _peek(self) -> Token:
        return self._tokens[self._next]

    def _take(self) -> Token:
        token = self._tokens[self._next]
        if token.kind != "end":
            self._next += 1
        return token

    def _takes(self, kind: str) -> bool:
        if self._peek().kind != kind:
            return False
        self._next += 1
        return True

    def _expect(self, kind: str) -> None:
        if not self._takes(kind):
            raise self._unexpected_error(repr(kind))

    def _unexpected_error(self, wanted: str, token: Token | None = None) -> NotCel:
        token = token or self._peek()
        if token.kind == "end":
            return NotCel(f"it ends where {wanted} should follow")
        return NotCel(f"{token.text[:40]!r} at character {token.at} stands where {wanted} should")


def _arguments(count: int) -> str:
    return {0: "no arguments", 1: "one argument"}[count]


def _depth(node: Node) -> int:
    """Return the depth of a tree. Without recursion, because a chain of selections nests without brackets."""
    deepest = 0
    waiting = [(node, 1)]
    while waiting:
        node, depth = waiting.pop()
        deepest = max(deepest, depth)
        waiting += [(child, depth + 1) for child in children(node)]
    return deepest
