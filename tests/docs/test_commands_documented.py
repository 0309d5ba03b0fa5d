"""Every command is in the documents, and its help has an example that works."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from himalia.cli import app
from himalia.pubsub.filters import compile_filter
from tests.docs.markdown import DOCS, ROOT, code_spans, rows, section


def commands() -> Iterator[tuple[str, ...]]:
    """Every command by its words, groups left out."""
    root: Any = get_command(app)

    def walk(command: Any, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        if not hasattr(command, "list_commands"):
            yield path
            return
        for name in command.list_commands(None):
            yield from walk(command.get_command(None, name), (*path, name))

    yield from walk(root, ())


COMMANDS = sorted(commands())


def help_of(path: tuple[str, ...]) -> str:
    result = CliRunner().invoke(app, [*path, "--help"], prog_name="himalia", env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_a_command_is_documented(path: tuple[str, ...]) -> None:
    """Who reads the documents learns of every command."""
    documents = (DOCS / "operations.md").read_text() + (ROOT / "README.md").read_text()
    assert f"himalia {' '.join(path)}" in documents


@pytest.mark.parametrize("path", [(), *COMMANDS], ids=lambda path: " ".join(path) or "himalia")
def test_the_help_has_an_example(path: tuple[str, ...]) -> None:
    """``--help`` shows the command at work, as one would type it."""
    text = help_of(path)
    assert re.search(r"Examples?\b", text)
    examples = re.findall(r"^ +.*\bhimalia .*$", text.partition("Example")[2], flags=re.MULTILINE)
    assert any(f"himalia {' '.join(path)}" in example for example in examples)


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_flags_in_examples_exist(path: tuple[str, ...]) -> None:
    """An example does not use a flag that the command does not have."""
    text = help_of(path)
    known = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", text.partition("Options:")[2]))
    examples = text.partition("Example")[2].partition("Options:")[0]
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", examples)) <= known


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_filters_in_examples_are_filters(path: tuple[str, ...]) -> None:
    """A content filter in an example is one that the server takes."""
    for text in re.findall(r"--filter '([^']+)'", help_of(path)):
        compile_filter(text)


def test_the_targets_of_make_are_those_of_the_document() -> None:
    """CONTRIBUTING.md lists every target, and none that is not there."""
    makefile, document = (ROOT / "Makefile").read_text(), (ROOT / "CONTRIBUTING.md").read_text()
    [phony] = re.findall(r"^\.PHONY: (.+)$", makefile, flags=re.MULTILINE)
    table = {code_spans(cells[0])[0] for cells in rows(section(document, "## Set-up"))}
    assert table == {f"make {target}" for target in phony.split()}


def test_every_folder_of_tests_is_documented() -> None:
    """CONTRIBUTING.md says what is tested where."""
    document = (ROOT / "CONTRIBUTING.md").read_text()
    table = {code_spans(cells[0])[0] for cells in rows(section(document, "## Tests"))}
    folders = {f"tests/{path.parent.name}" for path in (ROOT / "tests").glob("*/__init__.py")}
    assert table == folders | {f"tests/{path.name}" for path in (ROOT / "tests").glob("test_*.py")}
