"""The Python of docs/pipeline.md runs as it stands, and prints what the page says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from himalia.spark.pipeline.warehouse import TABLES
from himalia.tables.catalog import POSITIONS, REQUESTS
from tests.docs.markdown import DOCS, blocks, code_spans, rows, section
from tests.servers import RunningServer

GUIDE = (DOCS / "pipeline.md").read_text()


def test_the_python_runs(
    spark: SparkSession,
    server: RunningServer,
    publish: Callable[..., None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A reader who copies the example gets what the page shows."""
    publish("orders", 1, 2, 3)
    monkeypatch.chdir(tmp_path)
    found = blocks(section(GUIDE, "## From Python"))
    code, printed = found[0].text, found[1].text
    code = code.replace("http://127.0.0.1:8000", server.url).replace("the-token", server.token or "")
    exec(compile(code, "docs/pipeline.md", "exec"), {})
    assert capsys.readouterr().out.strip() == printed.strip()


def test_every_directory_of_a_warehouse_is_in_the_table() -> None:
    listed = {span for cells in rows(section(GUIDE, "## The warehouse")) for span in code_spans(cells[0])}
    assert listed == {*TABLES, REQUESTS, POSITIONS, "lock"}
