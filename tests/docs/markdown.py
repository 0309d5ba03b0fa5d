"""Reading our own Markdown: fenced blocks with their line numbers, sections, tables, code spans."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"

_CODE_SPAN = re.compile(r"`([^`]+)`")
_CELL_END = re.compile(r"(?<!\\)\|")


class Block(NamedTuple):
    """What stands between two fences. ``line`` is the number of its first line in the file."""

    info: str
    lines: list[str]
    line: int

    @property
    def kind(self) -> str:
        return self.info.partition(" ")[0]

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


def blocks(text: str) -> list[Block]:
    """The fenced blocks of a document, in order."""
    found: list[Block] = []
    is_open = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("```"):
            if not is_open:
                found.append(Block(line[3:].strip(), [], number + 1))
            is_open = not is_open
        elif is_open:
            found[-1].lines.append(line)
    assert not is_open, "a fenced block is not closed"
    return found


def without_blocks(text: str) -> str:
    """The prose, every fenced block replaced by nothing."""
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


def section(text: str, heading: str) -> str:
    """From a heading such as ``## Settings`` to the next one of its level or above."""
    level = len(heading) - len(heading.lstrip("#"))
    lines = text.splitlines()
    start = lines.index(heading) + 1
    end = start
    fenced = False
    while end < len(lines):
        fenced ^= lines[end].startswith("```")
        if not fenced and re.match(rf"#{{1,{level}}} ", lines[end]):
            break
        end += 1
    return "\n".join(lines[start:end])


def rows(text: str) -> list[list[str]]:
    """The cells of every table row, without heads and rulers."""
    found: list[list[str]] = []
    lines = without_blocks(text).splitlines()
    for line, below in zip(lines, [*lines[1:], ""], strict=True):
        is_ruler = re.fullmatch(r"\|[-| :]+\|", line)
        is_head = re.fullmatch(r"\|[-| :]+\|", below)
        if line.startswith("|") and not is_ruler and not is_head:
            found.append([cell.strip() for cell in _CELL_END.split(line)[1:-1]])
    return found


def code_spans(text: str) -> list[str]:
    return _CODE_SPAN.findall(without_blocks(text))


def anchors(text: str) -> set[str]:
    """What links may point to: the headings, as GitHub names them."""
    headings = re.findall(r"^#+ (.+)$", without_blocks(text), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
