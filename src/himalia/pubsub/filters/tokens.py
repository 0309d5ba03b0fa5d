"""The tokens of CEL, as its grammar defines them."""

from __future__ import annotations

import re
from typing import NamedTuple

INT_MIN, INT_MAX, UINT_MAX = -(1 << 63), (1 << 63) - 1, (1 << 64) - 1
# fmt: off
RESERVED = frozenset({
    "as", "break", "const", "continue", "else", "for", "function", "if", "import", "let", "loop", "package",
    "namespace", "return", "var", "void", "while",
})
# fmt: on


class NotCel(ValueError):
    """The text is not CEL; the message says what is wrong and at which character."""


class Token(NamedTuple):
    """``kind`` is name, int, uint, double, string, bytes, end, or the operator itself; ``at`` counts from 1."""

    kind: str
    text: str
    at: int


# The order matters: the longer form comes first.
_TOKEN = re.compile(
    r"""
    (?P<skip>[\t\ \r\n\f]+|//[^\n]*)
  | (?P<string>[bB]?[rR]?(?:\"{3}|'{3}|\"|'))
  | (?P<double>[0-9]+\.[0-9]+(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+|\.[0-9]+(?:[eE][+-]?[0-9]+)?)
  | (?P<uint>(?:0x[0-9a-fA-F]+|[0-9]+)[uU])
  | (?P<int>0x[0-9a-fA-F]+|[0-9]+)
  | (?P<name>[A-Za-z_][A-Za-z0-9_]*)
  | (?P<operator>==|!=|<=|>=|&&|\|\||[<>\[\]{}().,\-!?:+*/%])
    """,
    re.VERBOSE,
)
_ESCAPE = re.compile(
    r"""\\(?:(?P<plain>[abfnrtv"'\\?`])|[xX](?P<x>[0-9a-fA-F]{2})|u(?P<u>[0-9a-fA-F]{4})"""
    r"""|U(?P<U>[0-9a-fA-F]{8})|(?P<octal>[0-3][0-7]{2}))"""
)
_PLAIN = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


def tokenize(text: str) -> list[Token]:
    """Return all tokens and an ``end``. The text of a string or bytes token is its source with prefix and quotes."""
    tokens = []
    at = 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            raise NotCel(f"{text[at]!r} at character {at + 1} means nothing")
        kind, until = str(found.lastgroup), found.end()
        if kind == "string":
            until = _string_end(text, at, found[0])
            kind = "bytes" if found[0][0] in "bB" else "string"
        if kind != "skip":
            content = text[at:until]
            tokens.append(Token(content if kind == "operator" else kind, content, at + 1))
        at = until
    tokens.append(Token("end", "", len(text) + 1))
    return tokens


def _string_end(text: str, at: int, opening: str) -> int:
    """Return where the literal that begins with ``opening`` (prefix and quotes) ends."""
    quotes = opening.lstrip("bBrR")
    is_raw = "r" in opening.lower()
    place = at + len(opening)
    while place < len(text):
        if text.startswith(quotes, place):
            return place + len(quotes)
        if text[place] == "\\" and not is_raw:
            place += 1
        elif text[place] in "\r\n" and len(quotes) == 1:
            break
        place += 1
    raise NotCel(f"the text that begins at character {at + 1} has no end")


def string_value(token: Token) -> str:
    """Return the value of a string literal."""
    prefix, content = _content(token)
    return content if "r" in prefix else _unescape(content, token)


def bytes_value(token: Token) -> bytes:
    """Return the value of a bytes literal: text as UTF-8, escapes as single bytes."""
    prefix, content = _content(token)
    if "r" in prefix:
        return content.encode()
    parts = []
    at = 0
    for found in _escapes(content, token):
        parts.append(content[at : found.start()].encode())
        if found["u"] or found["U"]:
            raise NotCel(f"the bytes at character {token.at} have an escape that only text may have")
        code = found["x"] or found["octal"]
        value = int(code, 16 if found["x"] else 8) if code else ord(_plain(found["plain"]))
        parts.append(bytes([value]))
        at = found.end()
    parts.append(content[at:].encode())
    return b"".join(parts)


def _content(token: Token) -> tuple[str, str]:
    quotes_at = next(at for at, char in enumerate(token.text) if char in "\"'")
    prefix, quoted = token.text[:quotes_at].lower(), token.text[quotes_at:]
    width = 3 if len(quoted) >= 6 and quoted[:3] in ('"""', "'''") else 1
    return prefix, quoted[width:-width]


def _unescape(content: str, token: Token) -> str:
    parts = []
    at = 0
    for found in _escapes(content, token):
        parts.append(content[at : found.start()])
        code = found["x"] or found["u"] or found["U"]
        if code or found["octal"]:
            value = int(code, 16) if code else int(found["octal"], 8)
            if value > 0x10FFFF or 0xD800 <= value <= 0xDFFF:
                raise NotCel(f"the text at character {token.at} has an escape that is no character")
            parts.append(chr(value))
        else:
            parts.append(_plain(found["plain"]))
        at = found.end()
    return "".join([*parts, content[at:]])


def _escapes(content: str, token: Token) -> list[re.Match[str]]:
    found = []
    at = content.find("\\")
    while at >= 0:
        escape = _ESCAPE.match(content, at)
        if escape is None:
            raise NotCel(f"the text at character {token.at} has an unknown escape, {content[at : at + 2]!r}")
        found.append(escape)
        at = content.find("\\", escape.end())
    return found


def _plain(char: str) -> str:
    return _PLAIN.get(char, char)
