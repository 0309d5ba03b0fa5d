"""The tree in docs/architecture.md is the tree of folders in src."""

from __future__ import annotations

import re

from tests.docs.markdown import ROOT, blocks, code_spans

SOURCE = ROOT / "src" / "himalia"


def listed(tree: list[str]) -> set[str]:
    """The folders of an indented tree, as paths; each has something said of it."""
    found: set[str] = set()
    folders: list[tuple[int, str]] = []
    for line in filter(str.strip, tree):
        indent = len(line) - len(line.lstrip())
        while folders and folders[-1][0] >= indent:
            folders.pop()
        described = re.fullmatch(r"(\S+/)\s+(\S.*)", line.strip())
        assert described is not None, line
        folders.append((indent, described[1]))
        found.add("".join(name for _, name in folders))
    return found


def test_every_folder_is_in_the_tree(architecture: str) -> None:
    """A newcomer finds every folder in the tree, and no folder that is not there."""
    [tree] = [block for block in blocks(architecture) if block.text.startswith("src/himalia/")]
    files = [path for pattern in ("*.py", "*.js") for path in SOURCE.rglob(pattern)]
    folders = {f"{path.parent.relative_to(ROOT)}/" for path in files}
    assert listed(tree.lines) == folders


def test_names_in_the_text_exist(architecture: str) -> None:
    """Where the text speaks of a class and its method or attribute, the source has both."""
    source = "\n".join(path.read_text() for path in SOURCE.rglob("*.py"))
    named = [re.fullmatch(r"([A-Z]\w+)\.(\w+)", span) for span in code_spans(architecture)]
    found = [match for match in named if match and match[2] != "md"]
    assert found
    for match in found:
        assert re.search(rf"^class {match[1]}\b", source, flags=re.MULTILINE), match[0]
        assert re.search(rf"def {match[2]}\b|self\.{match[2]}\b", source), match[0]
