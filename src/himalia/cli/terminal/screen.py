"""Standard output and error: terminals, pipes, or one of each; escape sequences that may pass."""

from __future__ import annotations

import os
import re
from enum import StrEnum
from typing import NamedTuple, TextIO

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


_STEP = re.compile(r"\n|\r|\x08|\x1b\[[\d;:]*[A-Za-z]|[^\n\r\x08\x1b]+|\x1b")
ERASE_TO_END_OF_LINE, ERASE_BELOW = "\x1b[K", "\x1b[J"


class Stream(StrEnum):
    OUT = "stdout"
    ERR = "stderr"


class Mark(NamedTuple):
    """A place on the screen, by where the cursor was."""

    row: int
    column: int


class Cursor:
    """Where the cursor is, as far as it can be known from what was written: rows from where we began."""

    def __init__(self, width: int | None) -> None:
        self.row = 0
        self.column = 0
        self._width = width

    def advance(self, text: str) -> None:
        if self._width is None:
            # Of a pipe only whether a line has been begun matters.
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
            # A terminal goes to the next row only when there is something to write there.
            rows = max(reached - 1, 0) // width
            self.row, self.column = self.row + rows, reached - rows * width


class Screen:
    """Writes text of a program to stdout and stderr, and can take back what it wrote to a terminal.

    Where both are terminals they are taken for the same one, with one cursor. ``status`` is a line that stays below
    everything else, on stderr, if that is a terminal.
    """

    def __init__(self, out: TextIO, err: TextIO) -> None:
        self._files = {Stream.OUT: out, Stream.ERR: err}
        self._escapes = {name: _escapes_for(file) for name, file in self._files.items()}
        self._terminal = next((file for file in (out, err) if file.isatty()), None)
        self._height, width = _size_of(self._terminal) if self._terminal else (0, None)
        shared = Cursor(width)
        self._cursors = {
            name: shared if file.isatty() else Cursor(None) for name, file in self._files.items()
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
        """Text from outside: what is no colour is kept from a terminal."""
        self._put(self._escapes[stream].feed(text), stream)

    def write_own(self, text: str, style: str = "", stream: Stream = Stream.OUT) -> None:
        """Text of ours, on a line of its own, in a style (``2`` dim, ``31`` red) where there are colours."""
        self.begin_line(stream)
        self._put(self.styled(text, style, stream) + "\n", stream)

    def styled(self, text: str, style: str, stream: Stream = Stream.OUT) -> str:
        return f"\x1b[{style}m{text}\x1b[0m" if style and self.has_colours(stream) else text

    def begin_line(self, stream: Stream = Stream.OUT) -> None:
        """End a line that something else has begun."""
        if self._cursors[stream].column:
            self._put("\n", stream)

    def line_was_typed(self) -> None:
        """Somebody at the terminal pressed Enter, and the terminal echoed it."""
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

    # Taking back

    def mark(self) -> Mark:
        return Mark(self._cursor.row, self._cursor.column)

    def erase_to(self, mark: Mark) -> None:
        """Take back what was written to the terminal since, as far as it has not left the screen."""
        if self._terminal is None:
            return
        self._hide_status()
        up = min(self._cursor.row - mark.row, self._height - 1)
        # What was written upwards of the mark is not ours to take back.
        move = f"\x1b[{up}A" if up > 0 else ""
        self._terminal.write(f"{move}\r" + (f"\x1b[{mark.column}C" if mark.column else "") + ERASE_BELOW)
        self._terminal.flush()
        self._cursor.row, self._cursor.column = mark

    # The line below

    def show_status(self, text: str) -> None:
        """Show this below everything, or nothing; while another line is unfinished it waits for its end."""
        self._status = text
        err = self._files[Stream.ERR]
        if not err.isatty() or self._cursor.column or not (text or self._is_status_shown):
            return
        # The cursor goes back to the beginning of the line, so that whatever is written next is in its place.
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
        # A program may print what is no character of this terminal, or of any.
        file.reconfigure(errors="backslashreplace")
    return Escapes(terminal=file.isatty(), colours=_has_colours(file))


def _has_colours(file: TextIO) -> bool:
    return file.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _size_of(terminal: TextIO) -> tuple[int, int]:
    """Rows and columns; a terminal that does not know its size says 0."""
    try:
        size = os.get_terminal_size(terminal.fileno())
    except OSError:
        return 24, 80
    return size.lines or 24, size.columns or 80
