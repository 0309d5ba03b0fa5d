"""A JSON list of messages, decoded while it comes in: neither its text is kept whole, nor decoded at one stroke."""

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
"""In the place of the elements before: what follows them then has to go on as a list does."""


class MessageList(Generic[T]):
    """Cuts a list behind its elements, which it finds by counting brackets; whether they are sound, ``decode`` says.

    Brackets of a kind are not told apart: text that closes ``{`` with ``]`` is cut somewhere, and then not sound.
    """

    def __init__(self, decode: Callable[[bytes], list[T]], element_bytes_max: int) -> None:
        self._decode = decode
        self._element_bytes_max = element_bytes_max
        self._text = bytearray()
        self._at = 0
        """Up to where brackets are counted."""
        self._depth = 0
        self._looks_again_at = 0
        """A long string is not looked through again with each of its pieces."""
        self.count = 0

    def feed(self, data: bytes) -> list[T]:
        """The elements that are whole now, and were not before."""
        self._text += data
        if len(self._text) < self._looks_again_at:
            return []
        end = self._count_brackets()
        elements = self._take(bytes(self._text[:end])) if end else []
        del self._text[:end]
        self._at -= end
        self._looks_again_at = 2 * len(self._text) - self._at
        if len(self._text) > self._element_bytes_max:
            raise MessageTooLarge(f"a message in a list has at most {self._element_bytes_max} bytes")
        return elements

    def finish(self) -> list[T]:
        """What is left, when nothing more comes."""
        self._count_brackets()
        return self._take(bytes(self._text), last=True)

    def _count_brackets(self) -> int:
        """Where the last whole element ends; 0 if none does."""
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

    def _take(self, text: bytes, *, last: bool = False) -> list[T]:
        """The text begins with the list's own bracket, or behind an element; the last one ends with the list."""
        goes_on = self.count > 0
        text = (_STAND_IN if goes_on else b"") + text + (b"" if last else b"]")
        try:
            elements = self._decode(text)
        except BadRequest as error:
            if not self.count:
                raise
            raise type(error)(f"behind the first {self.count} messages: {error.message}") from None
        elements = elements[1:] if goes_on else elements
        self.count += len(elements)
        return elements
