"""Finds the parts of a record that a filter names, and decodes nothing else.

``message.payload.total > 100`` needs one number, however large the payload is. The rest of the payload is skipped as
text and never becomes objects, and a loop does not copy it in every turn.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import msgspec

from himalia.errors import BadFilter
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
from himalia.record import Record

VARIABLES = frozenset({"message", "headers", "topic", "offset"})
KEYS_MAX = 8
"""How many keys deep a part is looked up in the text of a document; CEL selects deeper parts."""
# The variable of every macro, so that none can have a name that stands for something read.
_EACH = Name("each")
_PARTS_OF_MESSAGE = ("id", "payload", "headers")
_encode = msgspec.json.encode
_decode = msgspec.json.decode


class Source(NamedTuple):
    """A part of a record; with ``field``, whether the part has that field."""

    document: str
    keys: tuple[str, ...] = ()
    field: str | None = None

    def __str__(self) -> str:
        shown = f"message.{self.document}" if self.document == "payload" else self.document
        return ".".join([shown, *self.keys])


class Binder:
    """Replaces the parts of the record that a tree names by ``Read``; refuses unknown names and nested macros."""

    def __init__(self) -> None:
        self.sources: list[Source] = []
        self._variable: str | None = None

    def bind(self, node: Node) -> Node:
        path = self._path(node)
        if path is not None:
            return self._read(*path)
        match node:
            case Name(name):
                return _EACH if name == self._variable else self._refuse(name)
            case Select(operand, _) | Unary(_, operand):
                return replace(node, operand=self.bind(operand))
            case Has(operand, field):
                return self._presence(operand, field)
            case Index(operand, key):
                return Index(self.bind(operand), self.bind(key))
            case Chain(first, rest):
                return Chain(self.bind(first), tuple((sign, self.bind(right)) for sign, right in rest))
            case Conditional(condition, then, otherwise):
                return Conditional(self.bind(condition), self.bind(then), self.bind(otherwise))
            case Call(function, target, arguments):
                bound = None if target is None else self.bind(target)
                return Call(function, bound, tuple(map(self.bind, arguments)))
            case Macro():
                return self._macro(node)
            case ListOf(items):
                return ListOf(tuple(map(self.bind, items)))
            case MapOf(entries):
                return MapOf(tuple((self.bind(key), self.bind(value)) for key, value in entries))
        return node

    def _macro(self, node: Macro) -> Node:
        if self._variable is not None:
            raise BadFilter("a macro (all, exists, map, ...) inside another is too costly for a filter")
        bound_range = self.bind(node.range)
        self._variable = node.variable
        body = tuple(map(self.bind, node.body))
        self._variable = None
        return Macro(node.name, bound_range, _EACH.name, body)

    def _presence(self, operand: Node, field: str) -> Node:
        path = self._path(operand)
        if path is None or not _can_look_up((*path[1], field)):
            return Has(self.bind(operand), field)
        source = _source(*path)
        return Has(self._add_source(source._replace(field=field)), field)

    def _read(self, root: str, keys: tuple[str, ...]) -> Node:
        """Return the longest part that can be looked up, with selections for the rest."""
        count = next((n for n in range(len(keys), 0, -1) if _can_look_up(keys[:n])), 0)
        node: Node = self._add_source(_source(root, keys[:count]))
        for key in keys[count:]:
            node = Index(node, Literal(key))
        return node

    def _add_source(self, source: Source) -> Read:
        if source not in self.sources:
            self.sources.append(source)
        return Read(self.sources.index(source))

    def _path(self, node: Node) -> tuple[str, tuple[str, ...]] | None:
        """Return the variable of the filter and the keys, if the node is nothing else."""
        keys: list[str] = []
        while True:
            match node:
                case Name(name) if name in VARIABLES and name != self._variable:
                    return name, tuple(reversed(keys))
                case Select(operand, field):
                    keys.append(field)
                    node = operand
                case Index(operand, Literal(str() as key)):
                    keys.append(key)
                    node = operand
                case _:
                    return None

    def _refuse(self, name: str) -> Node:
        raise BadFilter(f"the filter names {name}; the variables are {', '.join(sorted(VARIABLES))}")


def _can_look_up(keys: tuple[str, ...]) -> bool:
    """Whether msgspec accepts these as names of fields."""
    return len(keys) <= KEYS_MAX and not any(char in '"\\' or char < " " for key in keys for char in key)


def _source(root: str, keys: tuple[str, ...]) -> Source:
    if root != "message" or not keys:
        return Source(root, keys)
    return Source(keys[0] if keys[0] in _PARTS_OF_MESSAGE else "nothing", keys[1:])


class Reader:
    """Finds the sources of a filter in a record, as JSON text that is not decoded yet."""

    def __init__(self, sources: list[Source]) -> None:
        self._count = len(sources)
        self._documents: dict[str, _Place] = {}
        for number, source in enumerate(sources):
            place = self._documents.setdefault(source.document, _Place())
            place.add(number, source.keys, source.field)
        for place in self._documents.values():
            place.close()

    def count_scanned_bytes(self, record: Record) -> int:
        """Return how many bytes must be scanned to find every source."""
        total = 0
        for name, place in self._documents.items():
            size = {"payload": len(record.payload), "headers": len(record.headers)}
            total += (sum(size.values()) if name == "message" else size.get(name, 0)) * place.passes
        return total

    def find(self, record: Record) -> list[bytes | None]:
        """Return the text of each source; ``None`` if the record does not have it."""
        found: list[bytes | None] = [None] * self._count
        for name, place in self._documents.items():
            place.collect(_document(record, name), found)
        return found


def _document(record: Record, name: str) -> bytes:
    match name:
        case "payload":
            return record.payload.lstrip()
        case "headers":
            return record.headers.lstrip()
        case "topic":
            return _encode(record.topic)
        case "offset":
            return _encode(record.offset)
        case "id":
            return _encode(record.id)
        case "message":
            parts = (_encode(record.id), b',"payload":', record.payload, b',"headers":', record.headers)
            return b"".join([b'{"id":', *parts, b"}"])
        case _:
            return b"{}"


class _Place:
    """A place in a document: the sources that read its value, and the keys below it that are looked up."""

    __slots__ = ("_below", "_decoder", "_has", "_wanted_by", "passes")

    def __init__(self) -> None:
        self._wanted_by: list[int] = []
        self._has: list[tuple[int, str]] = []
        self._below: dict[str, _Place] = {}
        self._decoder: msgspec.json.Decoder[Any] | None = None
        self.passes = 0

    def add(self, number: int, keys: tuple[str, ...], field: str | None) -> None:
        if keys:
            self._below.setdefault(keys[0], _Place()).add(number, keys[1:], field)
        elif field is not None:
            self._below.setdefault(field, _Place())
            self._has.append((number, field))
        else:
            self._wanted_by.append(number)

    def close(self) -> None:
        """Prepare to collect. Nothing is added after this."""
        for place in self._below.values():
            place.close()
        self.passes = 1 + max([place.passes for place in self._below.values()], default=0)
        if self._below:
            fields = [
                (f"f{at}", msgspec.Raw | msgspec.UnsetType, msgspec.UNSET) for at in range(len(self._below))
            ]
            names = {f"f{at}": key for at, key in enumerate(self._below)}
            self._decoder = msgspec.json.Decoder(msgspec.defstruct("Fields", fields, rename=names))

    def collect(self, text: bytes, found: list[bytes | None]) -> None:
        for number in self._wanted_by:
            found[number] = text
        if self._decoder is None:
            return
        if text[:1] != b"{":
            for number, _ in self._has:
                found[number] = _EMPTY.get(text[:1], b"0")
            return
        values = msgspec.structs.astuple(self._decoder.decode(text))
        present = set()
        for (key, place), value in zip(self._below.items(), values, strict=True):
            if value is not msgspec.UNSET:
                present.add(key)
                place.collect(bytes(value), found)
        for number, field in self._has:
            found[number] = _encode({field: True} if field in present else {})


_EMPTY = {b"[": b"[]", b'"': b'""', b"t": b"true", b"f": b"true", b"n": b"null"}
"""Replaces a value that is no object, where a filter only tests for a field: CEL evaluates that to false."""
