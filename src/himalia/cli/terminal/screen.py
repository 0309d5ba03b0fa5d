"""Standard output and error, each a terminal or a pipe; filtering of escape sequences."""

from __future__ import annotations

import os
import re
from enum import StrEnum
from typing import NamedTuple, TextIO

HELD_MAX = 256
"""Characters of an unfinished sequence that are held back; more than any colour needs."""

_SEQUENCE = re.compile(
    r"\x1b(?:"
    r"\[[0-?]*[ -/]*[@-~]"  # CSI: colours, the cursor
    r"|[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)"  # OSC, DCS and their kin: nothing that is shown as text
    r"|[ -/]*[0-OQ-WYZ\\`-~]"  # two or three characters: character sets and resets
    r")"
)
_UNFINISHED = re.compile(r"\x1b(?:\[[0-?]*[ -/]*|[\]PX^_][^\x07\x1b]*\x1b?|[ -/]*)?\Z")
_HARMLESS = re.compile(r"\x1b\[[\d;:]*[mABCDGK]")
_COLOUR = re.compile(r"\x1b\[[\d;:]*m")
_CONTROL = re.compile(r"[\x00-\x07\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f-\x9f]")
"""Control characters that do more than move the cursor within its line."""


class Escapes:
    """Filters the escape sequences of one stream of text, whose pieces may end anywhere, also within a sequence.

    A ``terminal`` gets colours, and the cursor movements of progress bars; with ``colours`` off (``NO_COLOR``) only the
    latter. Anything else gets the text without sequences.
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
        # The beginning of a sequence unknown to us must not begin one that the terminal knows.
        return _CONTROL.sub("", re.sub(r"\x1b(?!\[[\d;:]*[mABCDGK])", "", text))

    def _decide(self, found: re.Match[str]) -> str:
        if not self._terminal or _HARMLESS.fullmatch(found[0]) is None:
            return ""
        return "" if _COLOUR.fullmatch(found[0]) and not self._colours else found[0]


def strip(text: str) -> str:
    """Return a text without its escape sequences."""
    return _SEQUENCE.sub("", text)


_STEP = re.compile(r"\n|\r|\x08|\x1b\[[\d;:]*[A-Za-z]|[^\n\r\x08\x1b]+|\x1b")
ERASE_TO_END_OF_LINE, ERASE_BELOW = "\x1b[K", "\x1b[J"


class Stream(StrEnum):
    OUT = "stdout"
    ERR = "stderr"


class Mark(NamedTuple):
    """A place on the screen, by where the cursor was."""

    row: int
    column: int


class ScreenCursor:
    """The position of the cursor, as computed from what was written. Row 0 is where the first output began."""

    def __init__(self, width: int | None) -> None:
        self.row = 0
        self.column = 0
        self._width = width

    def advance(self, text: str) -> None:
        if self._width is None:
            # For a pipe it only matters whether the line is empty.
            self.column = 0 if text.endswith("\n") else 1
            return
        for step in _STEP.findall(text):
            self._step(step, self._width)

    def _step(self, step: str, width: int) -> None:
        if step == "\n":
            self.row, self.column = self.row + 1, 0
        elif step == "\r":
            self.column = 0
        elif step == "\b":
            self.column = max(self.column - 1, 0)
        elif step.startswith("\x1b"):
            rows = int(step[2:-1]) if step[2:-1].isdigit() else 1
            self.row += {"A": -rows, "B": rows}.get(step[-1], 0)
        else:
            from rich.cells import cell_len

            reached = self.column + cell_len(step)
            # A terminal moves to the next row only when there is a character to write there.
            rows = max(reached - 1, 0) // width
            self.row, self.column = self.row + rows, reached - rows * width


class Screen:
    """Writes a program's text to stdout and stderr, and can erase what it wrote to a terminal.

    If both are terminals they are assumed to be the same one, with one cursor. ``status`` is a line that stays below
    everything else; it is written to stderr, if that is a terminal.
    """

    def __init__(self, out: TextIO, err: TextIO) -> None:
        self._files = {Stream.OUT: out, Stream.ERR: err}
        self._escapes = {name: _escapes_for(file) for name, file in self._files.items()}
        self._terminal = next((file for file in (out, err) if file.isatty()), None)
        self._height, width = _size_of(self._terminal) if self._terminal else (0, None)
        shared = ScreenCursor(width)
        self._cursors = {
            name: shared if file.isatty() else ScreenCursor(None) for name, file in self._files.items()
        }
        self._cursor = shared
        self._status = ""
        self._is_status_shown = False

    def has_colours(self, stream: Stream) -> bool:
        return _has_colours(self._files[stream])

    def is_terminal(self, stream: Stream) -> bool:
        return self._files[stream].isatty()

    # Text

    def write(self, text: str, stream: Stream = Stream.OUT) -> None:
        """Write text of a kernel; a terminal gets no sequences but colours and movements within a line."""
        self._put(self._escapes[stream].feed(text), stream)

    def write_own(self, text: str, style: str = "", stream: Stream = Stream.OUT) -> None:
        """Write text of this command on a line of its own, in a style (``2`` dim, ``31`` red) if there are colours."""
        self.begin_line(stream)
        self._put(self.style(text, style, stream) + "\n", stream)

    def style(self, text: str, style: str, stream: Stream = Stream.OUT) -> str:
        """Return a text with the codes of a style, if the stream has colours."""
        return f"\x1b[{style}m{text}\x1b[0m" if style and self.has_colours(stream) else text

    def begin_line(self, stream: Stream = Stream.OUT) -> None:
        """End the current line, unless it is empty."""
        if self._cursors[stream].column:
            self._put("\n", stream)

    def advance_line(self) -> None:
        """Move the cursor down by the line break that the terminal echoed when the user pressed Enter."""
        self._cursor.advance("\n")

    def _put(self, text: str, stream: Stream) -> None:
        if not text:
            return
        file = self._files[stream]
        if file.isatty():
            self._hide_status()
        self._cursors[stream].advance(text)
        file.write(text)
        file.flush()
        self.show_status(self._status)

    # Erasing

    def mark(self) -> Mark:
        return Mark(self._cursor.row, self._cursor.column)

    def erase_to(self, mark: Mark) -> None:
        """Erase what was written to the terminal since the mark, as far as it has not scrolled off the screen."""
        if self._terminal is None:
            return
        self._hide_status()
        up = min(self._cursor.row - mark.row, self._height - 1)
        # Text above the mark is not erased.
        move = f"\x1b[{up}A" if up > 0 else ""
        self._terminal.write(f"{move}\r" + (f"\x1b[{mark.column}C" if mark.column else "") + ERASE_BELOW)
        self._terminal.flush()
        self._cursor.row, self._cursor.column = mark

    # The status line

    def show_status(self, text: str) -> None:
        """Show a line below everything else, none if it is empty; it waits until the current line is complete."""
        self._status = text
        err = self._files[Stream.ERR]
        if not err.isatty() or self._cursor.column or not (text or self._is_status_shown):
            return
        # The cursor returns to the beginning of the line, so that the next output replaces the status.
        err.write(f"{ERASE_TO_END_OF_LINE}{text}\r")
        err.flush()
        self._is_status_shown = bool(text)

    def _hide_status(self) -> None:
        if self._is_status_shown:
            self._files[Stream.ERR].write(ERASE_TO_END_OF_LINE)
            self._files[Stream.ERR].flush()
            self._is_status_shown = False


def _escapes_for(file: TextIO) -> Escapes:
    if hasattr(file, "reconfigure"):
        # A program may print characters that the encoding of the terminal does not have.
        file.reconfigure(errors="backslashreplace")
    return Escapes(terminal=file.isatty(), colours=_has_colours(file))


def _has_colours(file: TextIO) -> bool:
    return file.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _size_of(terminal: TextIO) -> tuple[int, int]:
    """Return rows and columns; a terminal that does not know its size reports 0."""
    try:
        size = os.get_terminal_size(terminal.fileno())
    except OSError:
        return 24, 80
    return size.lines or 24, size.columns or 80
