"""What docs/tables.md shows is what one gets."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from himalia.spark.pipeline.warehouse import TABLES
from himalia.tables import Tables
from tests.docs.markdown import DOCS, Block, blocks, code_spans, rows, section
from tests.docs.table_columns import with_columns
from tests.servers import RunningServer
from tests.tables.sample import write_sample

GUIDE = (DOCS / "tables.md").read_text()
TIMEOUT_S = 60


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A directory with a warehouse in it, where the commands and programs of the guide run."""
    write_sample(tmp_path / "warehouse")
    return tmp_path


def environment() -> dict[str, str]:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "TZ": "UTC", "HIMALIA_WAREHOUSE": "warehouse"}


def programs() -> list[tuple[Block, Block]]:
    """Each piece of Python and the block behind it, which is what it prints."""
    found = blocks(GUIDE)
    return [(block, found[at + 1]) for at, block in enumerate(found) if block.kind == "python"]


def stripped(text: str) -> list[str]:
    return [line.rstrip() for line in text.splitlines() if line.strip()]


@pytest.mark.slow
def test_the_commands_print_what_the_guide_shows(here: Path) -> None:
    """Each command of the first screen, with its real output."""
    [console] = [block for block in blocks(GUIDE) if block.kind == "console"]
    steps = re.split(r"^\$ ", console.text, flags=re.MULTILINE)[1:]
    assert len(steps) == 3
    for command, _, output in (step.partition("\n") for step in steps):
        done = subprocess.run(
            command,
            shell=True,
            cwd=here,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
        assert (stripped(done.stdout), done.returncode) == (stripped(output), 0), done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("number", range(4))
def test_the_programs_run(here: Path, serve: Callable[..., RunningServer], number: int) -> None:
    """A reader who copies an example, for DuckDB, Polars or ourselves, gets what the page shows."""
    code, printed = programs()[number]
    if "server" in code.info:
        serve(auth=False, kernels=False, warehouse=here / "warehouse")
    done = subprocess.run(
        [sys.executable, "-c", code.text],
        cwd=here,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.stdout.strip() == printed.text.strip(), done.stderr


def test_there_are_four_programs() -> None:
    """No example escapes by being called something else."""
    assert len(programs()) == 4
    assert {block.kind for block in blocks(GUIDE)} == {"sh", "console", "python", "text"}


def test_every_table_and_column_is_documented(here: Path) -> None:
    """Names, types and meanings are those of the catalog, which the server tells too, in the same order."""
    for table in Tables(here / "warehouse").describe():
        documented = rows(section(GUIDE, f"### {table.name}"))
        assert documented == [[f"`{one.name}`", one.type, one.description] for one in table.columns]
    assert list(TABLES) == re.findall(r"^### (.+)$", GUIDE, flags=re.MULTILINE)


def test_the_column_tables_are_generated() -> None:
    """The guide has what ``python -m tests.docs.table_columns`` writes into it."""
    assert with_columns(GUIDE) == GUIDE, "run `python -m tests.docs.table_columns`"


def test_the_sql_of_the_guide_is_sql(here: Path) -> None:
    """Each condition and query of the table can be asked."""
    tables = Tables(here / "warehouse")
    asked = [code_spans(cells[1])[0] for cells in rows(section(GUIDE, "## SQL"))]
    assert len(asked) == 10
    for text in asked:
        if text.startswith(("select", "describe")):
            tables.sql(text).rows()
        else:
            is_value = text.startswith(("regexp", '"'))
            name = "executions" if "result_types" in text else "messages"
            tables.read(name, where=f"{text} is null" if is_value else text).rows()
