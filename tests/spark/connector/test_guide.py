"""docs/spark.md: its examples run and print what the page says, and its tables have every option."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from himalia.spark.connector.options import COMMON_OPTIONS, READ_OPTIONS, WRITE_OPTIONS
from himalia.spark.connector.read import READ_SCHEMA
from himalia.spark.connector.write import MESSAGE_COLUMNS
from tests.docs.markdown import DOCS, Block, blocks, code_spans, rows, section
from tests.servers import RunningServer

GUIDE = (DOCS / "spark.md").read_text()


def first_cells(heading: str, kind: str) -> set[str]:
    """The names in the first column of a section's table of columns or options."""
    text = section(GUIDE, heading)
    tables = text.split(f"| {kind} |")[1:]
    return {
        span for cells in rows("| x |\n" + tables[0].partition("\n\n")[0]) for span in code_spans(cells[0])
    }


def test_every_option_and_column_has_a_row() -> None:
    """A name that is not there is documented nowhere, and one that is there exists."""
    assert first_cells("## Reading", "option") == {*COMMON_OPTIONS, *READ_OPTIONS}
    assert first_cells("## Writing", "option") == {*COMMON_OPTIONS, *WRITE_OPTIONS}
    assert first_cells("## Reading", "column") == {column.split()[0] for column in READ_SCHEMA.split(", ")}
    assert first_cells("## Writing", "column") == set(MESSAGE_COLUMNS)


def examples() -> list[tuple[Block, str]]:
    """Each piece of Python that prints something, and what that is."""
    found = blocks(GUIDE)
    return [(block, found[at + 1].text) for at, block in enumerate(found) if block.kind == "python"]


@pytest.mark.slow
def test_the_examples_run(
    spark: SparkSession,
    server: RunningServer,
    publish: Callable[..., None],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One after the other, as a reader would type them."""
    publish("orders", {"sku": "A-17", "count": 2}, {"sku": "B-02", "count": 1}, {"sku": "A-17", "count": 5})
    publish("shop.a", 1, 2, 3)
    publish("shop.b", 4)
    server.create("totals", "daily")
    names = {"spark": spark, "directory": str(tmp_path)}
    for block, printed in examples():
        code = block.text.replace("http://127.0.0.1:8000", server.url).replace(
            "the-token", server.token or ""
        )
        exec(compile(code, f"docs/spark.md:{block.line}", "exec"), names)
        assert capsys.readouterr().out.strip() == printed.strip(), f"line {block.line}"


def test_there_are_six() -> None:
    """No example escapes by being called something else."""
    assert len(examples()) == 6
