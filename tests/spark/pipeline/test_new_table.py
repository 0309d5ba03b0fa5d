"""A new table is one file, here ``largest_messages.py``, and one line in ``himalia.spark.pipeline.warehouse``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from himalia.cli import app
from himalia.spark.pipeline import warehouse as warehouse_module
from himalia.spark.pipeline.erase import erase_rows
from himalia.tables import Tables
from tests.docs.table_columns import make_section
from tests.servers import RunningServer
from tests.spark.pipeline import largest_messages
from tests.spark.pipeline_runs import run_once, stored

SCHEMA = largest_messages.SCHEMA


@pytest.fixture(autouse=True)
def _registration(monkeypatch: pytest.MonkeyPatch) -> None:
    registered = (*warehouse_module.AGGREGATES, largest_messages.TABLE)
    monkeypatch.setattr(warehouse_module, "AGGREGATES", registered)


def test_a_registered_table_is_a_table_like_the_others(
    spark: SparkSession, server: RunningServer, warehouse: Path, publish: Callable[..., None]
) -> None:
    """It is filled batch by batch, described, queried, shown, documented, published and erased."""
    publish("toy", "a", "four", "b")
    run_once(server, warehouse, topics=["toy"])
    publish("toy", "a longer message", "c")
    run_once(server, warehouse, topics=["toy"])

    tables = Tables(warehouse)
    [row] = tables.read(SCHEMA.name).rows()
    assert row["bytes"] == max(each["bytes"] for each in tables.read("messages").rows())
    assert tables.sql(f"select topic from {SCHEMA.name}").rows() == [{"topic": "toy"}]

    described = {table.name: table for table in tables.describe()}[SCHEMA.name]
    assert described.description == SCHEMA.description
    assert [tuple(column) for column in SCHEMA.columns] == [
        (column.name, column.type, column.description) for column in described.columns
    ]

    shown = CliRunner().invoke(
        app, ["pipeline", "show", SCHEMA.name, "--json", "--warehouse", str(warehouse)]
    )
    assert json.loads(shown.stdout) == [row]
    assert "| `bytes` | bigint | the size of its largest message |" in make_section(SCHEMA)
    assert stored(server, f"pipeline.{SCHEMA.name}")[-1]["bytes"] == row["bytes"]
    assert erase_rows(warehouse, "topic = 'toy'")[SCHEMA.name] == 1
