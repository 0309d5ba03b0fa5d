"""Escape sequences in what a program printed: colours for a terminal, nothing for a pipe.

A terminal obeys more than colours: it can be told to rename its window, to fill the clipboard, to answer as if
somebody had typed. None of that is for a kernel's output to do.
"""

from __future__ import annotations

import re

HELD_MAX = 256
"""Characters of a sequence that is not over; more than any colour needs."""

_SEQUENCE = re.compile(
    r"\x1b(?:"
    r"\[[0-?]*[ -/]*[@-~]"  # CSI: colours, the cursor
    r"|[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)"  # OSC, DCS and their kin: everything that is no picture of text
    r"|[ -/]*[0-OQ-WYZ\\`-~]"  # two or three characters: character sets and resets
    r")"
)
_UNFINISHED = re.compile(r"\x1b(?:\[[0-?]*[ -/]*|[\]PX^_][^\x07\x1b]*\x1b?|[ -/]*)?\Z")
_HARMLESS = re.compile(r"\x1b\[[\d;:]*[mABCDGK]")
_COLOUR = re.compile(r"\x1b\[[\d;:]*m")
_CONTROL = re.compile(r"[\x00-\x07\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f-\x9f]")
"""Control characters that do more than to move the cursor in its line."""


class Escapes:
    """A filter of one stream of text that may be cut anywhere, also within a sequence.

    For a ``terminal`` colours stay, and so do movements within what a progress bar draws; with ``colours`` off
    (``NO_COLOR``) only the latter. For anything else every sequence goes, and the text stays as it is.
    """

    def __init__(self, *, terminal: bool, colours: bool) -> None:
        self._terminal = terminal
        self._colours = colours
        self._held = ""

    def feed(self, text: str) -> str:
        if not self._held and "\x1b" not in text:
            return _CONTROL.sub("", text) if self._terminal else text
        text, self._held = self._held + text, ""
        unfinished = _UNFINISHED.search(text)
        if unfinished is not None and len(unfinished[0]) <= HELD_MAX:
            text, self._held = text[: unfinished.start()], unfinished[0]
        text = _SEQUENCE.sub(self._decide, text)
        if not self._terminal:
            return text
        # What begins a sequence that we do not know must not begin one that the terminal knows.
        return _CONTROL.sub("", re.sub(r"\x1b(?!\[[\d;:]*[mABCDGK])", "", text))

    def _decide(self, found: re.Match[str]) -> str:
        if not self._terminal or _HARMLESS.fullmatch(found[0]) is None:
            return ""
        return "" if _COLOUR.fullmatch(found[0]) and not self._colours else found[0]


def strip(text: str) -> str:
    """Text without escape sequences."""
    return _SEQUENCE.sub("", text)
