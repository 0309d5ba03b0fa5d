"""The tree in docs/architecture.md is the tree in src."""

from __future__ import annotations

import re

from tests.docs.markdown import ROOT, blocks, code_spans


def listed(tree: list[str]) -> set[str]:
    """The files of an indented tree, as paths."""
    found: set[str] = set()
    folders: list[tuple[int, str]] = []
    for line in filter(str.strip, tree):
        indent = len(line) - len(line.lstrip())
        while folders and folders[-1][0] >= indent:
            folders.pop()
        names = re.match(r"[^\s,]+(?:, [^\s,]+)*", line.strip())
        assert names is not None
        if names[0].endswith("/"):
            folders.append((indent, names[0]))
        else:
            found |= {"".join(name for _, name in folders) + file for file in names[0].split(", ")}
    return found


def test_every_module_is_in_the_tree(architecture: str) -> None:
    """A newcomer finds every file in the tree, and no file that is not there."""
    [tree] = [block for block in blocks(architecture) if block.text.startswith("src/himalia/")]
    files = {str(path.relative_to(ROOT)) for path in (ROOT / "src" / "himalia").rglob("*.py")}
    assert listed(tree.lines) == files


def test_names_in_the_text_exist(architecture: str) -> None:
    """Where the text speaks of a class and its method or attribute, the source has both."""
    source = "\n".join(path.read_text() for path in (ROOT / "src" / "himalia").rglob("*.py"))
    named = [re.fullmatch(r"([A-Z]\w+)\.(\w+)", span) for span in code_spans(architecture)]
    found = [match for match in named if match and match[2] != "md"]
    assert found
    for match in found:
        assert re.search(rf"^class {match[1]}\b", source, flags=re.MULTILINE), match[0]
        assert re.search(rf"def {match[2]}\b|self\.{match[2]}\b", source), match[0]
