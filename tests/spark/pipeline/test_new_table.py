"""A new table is a table like the others; ``tests/test_extension_points.py`` shows how to add one."""

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
from tests.spark.pipeline_runs import run_once, stored
from tests.toys import table as toy

SCHEMA = toy.TABLE.schema


@pytest.fixture(autouse=True)
def _registration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warehouse_module, "AGGREGATES", (*warehouse_module.AGGREGATES, toy.TABLE))
    monkeypatch.setattr(warehouse_module, "TABLES", warehouse_module.TABLES | {SCHEMA.name: SCHEMA})


def test_a_registered_table_is_a_table_like_the_others(
    spark: SparkSession, server: RunningServer, warehouse: Path, publish: Callable[..., None]
) -> None:
    """It is filled batch by batch, described, queried, shown, documented, published and erased."""
    publish("orders", "a", "b", "c")
    run_once(server, warehouse, topics=["orders"])
    publish("orders", "d")
    run_once(server, warehouse, topics=["orders"])

    tables = Tables(warehouse)
    rows = tables.read(SCHEMA.name).rows()
    assert sum(row["records"] for row in rows) == 4
    assert tables.sql(f"select distinct topic from {SCHEMA.name}").rows() == [{"topic": "orders"}]

    described = {table.name: table for table in tables.describe()}[SCHEMA.name]
    assert described.description == SCHEMA.description
    assert [tuple(column) for column in SCHEMA.columns] == [
        (column.name, column.type, column.description) for column in described.columns
    ]

    shown = CliRunner().invoke(
        app, ["pipeline", "show", SCHEMA.name, "--json", "--warehouse", str(warehouse)]
    )
    assert json.loads(shown.stdout) == rows
    assert "| `records` | bigint | the number of its records |" in make_section(SCHEMA)
    newest = stored(server, f"pipeline.{SCHEMA.name}")[-1]
    assert newest in [{"topic": row["topic"], "records": row["records"]} for row in rows]
    assert erase_rows(warehouse, "topic = 'orders'")[SCHEMA.name] == len(rows)
