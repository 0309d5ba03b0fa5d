"""Erasing rows. Needs no Spark: the tables of these tests are made without it."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from himalia.errors import BadQuery, WarehouseLocked, WarehouseNotFound
from himalia.spark.delta.lock import warehouse_lock
from himalia.spark.delta.table import APPLICATION
from himalia.spark.pipeline.erase import erase_rows

SECRET = "my-secret-payload"
REQUEST = {"topic": ["kernels.k1"], "epoch": ["e1"]}


@pytest.fixture
def filled(warehouse: Path) -> Path:
    """A warehouse with some tables: ``messages`` has topics, ``errors`` has none, and the state has both."""
    topics = ["orders", "kernels.k1"]
    batch = CommitProperties(app_transactions=[Transaction(APPLICATION, 7)])
    tables = {
        "messages": {"topic": topics, "payload": ["1", SECRET]},
        "executions": {
            "kernel_id": ["k1", "k1"],
            **{name: column * 2 for name, column in REQUEST.items()},
            "request_id": ["it's open", "done"],
            "code": [SECRET, "harmless"],
            "is_running": [True, False],
        },
        "errors": {"ename": ["ValueError"]},
        "state/requests": {**REQUEST, "request_id": ["it's open"], "sums": [{"code": SECRET}]},
    }
    for name, columns in tables.items():
        write_deltalake(warehouse / name, pa.table(columns), commit_properties=batch)
    return warehouse


def values(warehouse: Path, table: str, column: str) -> list[str]:
    return DeltaTable(warehouse / table).to_pyarrow_table()[column].to_pylist()


def test_rows_go_from_every_table_with_these_columns(filled: Path) -> None:
    """Tables without such a column stay as they are, and are not in the answer."""
    assert erase_rows(filled, "topic = 'kernels.k1'") == {"messages": 1, "executions": 2, "state/requests": 1}
    assert values(filled, "messages", "topic") == ["orders"]
    assert values(filled, "errors", "ename") == ["ValueError"]


def test_rows_go_from_the_disk(filled: Path) -> None:
    """No file that is left has them, also none that only an older version of the table would read."""
    erase_rows(filled, "topic = 'kernels.k1'")
    left = [parquet.read_table(file) for file in filled.rglob("*.parquet") if "_delta_log" not in file.parts]
    assert left
    assert not [table for table in left if SECRET in str(table.to_pylist())]


def test_the_number_of_the_batch_stays(filled: Path) -> None:
    """The next run continues where the last one ended."""
    erase_rows(filled, "topic = 'kernels.k1'")
    assert DeltaTable(filled / "messages").transaction_version(APPLICATION) == 7


def test_forgetting_again_finds_nothing(filled: Path) -> None:
    erase_rows(filled, "kernel_id = 'k1'")
    assert erase_rows(filled, "kernel_id = 'k1'") == {"executions": 0, "state/requests": 0}


@pytest.mark.parametrize("where", ["kernel_id = 'k1'", f"code = '{SECRET}'", "is_running -- all that run"])
def test_what_runs_does_not_come_back(filled: Path, where: str) -> None:
    """The state has other columns than ``executions``, and would have the next batch write the row again."""
    assert erase_rows(filled, where)["state/requests"] == 1
    assert values(filled, "state/requests", "request_id") == []


def test_what_has_ended_leaves_the_state_alone(filled: Path) -> None:
    assert erase_rows(filled, "code = 'harmless'") == {"executions": 1}
    assert values(filled, "state/requests", "request_id") == ["it's open"]


@pytest.mark.parametrize(
    ("where", "told"),
    [
        ("topic = ", "Expected: an expression"),
        ("colour = 'red'", "no table has all the columns"),
        ("topic = 'a'; drop table t", "Expected: "),
        ("topic = 'a') or (topic = 'orders'", "more than one condition"),
        ("true) limit 1 --", "in: true"),
        ("topic", "non-boolean"),
        ("nonsense(topic)", "Invalid function 'nonsense'"),
    ],
)
def test_a_wrong_condition_is_told_and_erases_nothing(filled: Path, where: str, told: str) -> None:
    with pytest.raises(BadQuery, match=told):
        erase_rows(filled, where)
    assert values(filled, "messages", "topic") == ["orders", "kernels.k1"]


def test_not_while_the_pipeline_runs(filled: Path) -> None:
    with warehouse_lock(filled), pytest.raises(WarehouseLocked):
        erase_rows(filled, "topic = 'orders'")


def test_a_place_without_tables_is_told(warehouse: Path) -> None:
    with pytest.raises(WarehouseNotFound):
        erase_rows(warehouse, "topic = 'orders'")
