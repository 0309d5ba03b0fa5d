"""docs/security.md: every guarantee names tests that exist."""

from __future__ import annotations

import ast
import re

import pytest

from tests.docs.markdown import DOCS, ROOT, code_spans, rows, section

PROMISES = section((DOCS / "security.md").read_text(), "## Guarantees and their tests")


def names_in(path: str) -> set[str]:
    """The tests and classes of a file."""
    tree = ast.parse((ROOT / path).read_text())
    return {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    }


def named_tests(cells: list[str]) -> list[tuple[str, str]]:
    """The tests in the last column: ``file::name``, or ``::name`` for one more of the same file."""
    found, path = [], ""
    for span in code_spans(cells[-1]):
        file, _, name = span.partition("::")
        path = file or path
        found.append((path, name))
    return found


@pytest.mark.parametrize("cells", rows(PROMISES), ids=lambda cells: re.sub(r"\W+", " ", cells[0])[:60])
def test_a_promise_has_tests_that_exist(cells: list[str]) -> None:
    """A promise whose test was renamed or removed is found here."""
    named = named_tests(cells)
    assert named
    for path, name in named:
        assert (ROOT / path).exists(), path
        for part in filter(None, name.split("::")):
            assert part in names_in(path), f"{path}::{part}"


def test_make_fuzz_is_the_run_that_the_document_tells_of() -> None:
    """The same frames: with another seed the figures would be of another run."""
    told = section((DOCS / "security.md").read_text(), "### Differential fuzzing")
    (command,) = re.findall(r".*websocket_fuzz --frames.*", (ROOT / "Makefile").read_text())
    (seed,) = re.findall(r"--seed \d+", told)
    assert seed in command
