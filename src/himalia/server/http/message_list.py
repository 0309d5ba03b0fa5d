"""Decodes a JSON list of messages while it is received, so that neither its text nor the work accumulates."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Generic, TypeVar

from himalia.errors import BadRequest, MessageTooLarge

T = TypeVar("T")

# Everything up to the next bracket outside a string, in one match. Possessive, so that it takes linear time.
_UP_TO_BRACKET = re.compile(
    rb'[^"\[\]{}]*+(?:"[^"\\]*+(?:\\.[^"\\]*+)*+"[^"\[\]{}]*+)*+[\[\]{}]', re.DOTALL
).match
_OPENING = frozenset(b"[{")
_STAND_IN = b'[{"payload":0}'
"""Stands for the previous elements, so that the text behind them must continue the list."""


class MessageList(Generic[T]):
    """Splits a list behind its elements, which it finds by counting brackets; ``decode`` finds what is invalid.

    Kinds of brackets are not distinguished: text that closes ``{`` with ``]`` is split somewhere, and then invalid.
    """

    def __init__(self, decode: Callable[[bytes], list[T]], element_bytes_max: int) -> None:
        self._decode = decode
        self._element_bytes_max = element_bytes_max
        self._text = bytearray()
        self._at = 0
        """Up to where brackets have been counted."""
        self._depth = 0
        self._next_count_at = 0
        """The length of the text at which to count again, so that a long string is not scanned with each piece."""
        self.count = 0

    def feed(self, data: bytes) -> list[T]:
        """Add a piece; returns the elements that are complete now and were not before."""
        self._text += data
        if len(self._text) < self._next_count_at:
            return []
        end = self._count_brackets()
        elements = self._decode_elements(bytes(self._text[:end])) if end else []
        del self._text[:end]
        self._at -= end
        self._next_count_at = 2 * len(self._text) - self._at
        if len(self._text) > self._element_bytes_max:
            raise MessageTooLarge(f"a message in a list has at most {self._element_bytes_max} bytes")
        return elements

    def finish(self) -> list[T]:
        """Return the remaining elements at the end of the text."""
        self._count_brackets()
        return self._decode_elements(bytes(self._text), last=True)

    def _count_brackets(self) -> int:
        """Return where the last complete element ends; 0 if there is none."""
        text, at, depth, end = self._text, self._at, self._depth, 0
        while (match := _UP_TO_BRACKET(text, at)) is not None:
            at = match.end()
            if text[at - 1] in _OPENING:
                depth += 1
            else:
                depth -= 1
                if depth == 1:
                    end = at
        self._at, self._depth = at, depth
        return end

    def _decode_elements(self, text: bytes, *, last: bool = False) -> list[T]:
        """Decode text that begins with the list's bracket or behind an element; the last one ends with the list."""
        continues = self.count > 0
        text = (_STAND_IN if continues else b"") + text + (b"" if last else b"]")
        try:
            elements = self._decode(text)
        except BadRequest as error:
            if not self.count:
                raise
            raise type(error)(f"after the first {self.count} messages: {error.message}") from None
        elements = elements[1:] if continues else elements
        self.count += len(elements)
        return elements
