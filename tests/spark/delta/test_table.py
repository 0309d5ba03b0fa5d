"""A table that Spark fills and ``deltalake`` commits, with rows of the tests' own."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import duckdb
import polars
import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder
from pyarrow import parquet
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from himalia.errors import ConfigurationError
from himalia.spark.delta.maintenance import compact, vacuum
from himalia.spark.delta.staging import STAGING
from himalia.spark.delta.table import Table

COLUMNS = """
    topic string, offset bigint, ts timestamp, headers map<string,string>, types array<string>,
    is_running boolean, date date
"""
PARTITION_BY = ("is_running", "date")
ARROW = pa.schema(
    [
        ("topic", pa.string()),
        ("offset", pa.int64()),
        ("ts", pa.timestamp("us", "UTC")),
        ("headers", pa.map_(pa.string(), pa.string())),
        ("types", pa.list_(pa.string())),
        ("is_running", pa.bool_()),
        ("date", pa.date32()),
    ]
)


def rows(*offsets: int, is_running: bool = False, day: int = 16) -> pa.Table:
    ts = [datetime(2026, 11, day, 2, 0, 0, 10_000 * offset, UTC) for offset in offsets]
    columns = {
        "topic": [f"orders.{offset % 3}" for offset in offsets],
        "offset": offsets,
        "ts": ts,
        "headers": [[("publisher", str(offset))] for offset in offsets],
        "types": [["text/plain"] if offset % 2 else None for offset in offsets],
        "is_running": [is_running] * len(offsets),
        "date": [moment.date() for moment in ts],
    }
    return pa.table(columns, ARROW)


@pytest.fixture
def schema(spark: SparkSession) -> StructType:
    found = StructType.fromDDL(COLUMNS)
    assert isinstance(found, StructType)
    return found


@pytest.fixture
def table(tmp_path: Path, schema: StructType) -> Table:
    return Table(tmp_path / "table", schema, PARTITION_BY)


def add(table: Table, batch: int, *offsets: int, **options: Any) -> None:
    table.commit(batch, table.staging.write_rows(rows(*offsets, **options), batch))


def offsets(table: Table) -> list[int]:
    """What is in the table, as another program sees it that opens it now."""
    return sorted(DeltaTable(table.path).to_pyarrow_table()["offset"].to_pylist())


def in_order(frame: DataFrame) -> list[dict[str, Any]]:
    return [row.asDict() for row in sorted(frame.collect(), key=lambda row: row["offset"])]


def as_dicts(given: Sequence[pa.Table]) -> list[dict[str, Any]]:
    found = pa.concat_tables(given).to_pylist()
    return [{**row, "headers": dict(row["headers"]), "ts": row["ts"].replace(tzinfo=None)} for row in found]


def test_what_executors_wrote_is_there_after_the_commit(spark: SparkSession, table: Table) -> None:
    """Not before, all at once, and with the partition columns, which are not in the files."""
    given = [rows(1, 2), rows(3, is_running=True), rows(4, 5, day=17)]
    staged = table.staging.write_frame(spark.createDataFrame(pa.concat_tables(given)).coalesce(1), 1)
    assert (offsets(table), staged.rows) == ([], 5)
    table.commit(1, staged)
    assert offsets(table) == [1, 2, 3, 4, 5]
    assert in_order(table.rows(spark)) == as_dicts(given)
    assert {Path(file).parent.relative_to(table.path).as_posix() for file in table.files()} == {
        "is_running=false/date=2026-11-16",
        "is_running=true/date=2026-11-16",
        "is_running=false/date=2026-11-17",
    }
    assert not (table.path / STAGING).exists()


def test_a_file_that_nobody_names_is_not_taken(table: Table) -> None:
    """A task that failed half-way and was run again has left one."""

    def write(directory: Path) -> list[Path]:
        files = [directory / "is_running=false" / "date=2026-11-16" / f"part-{n}.parquet" for n in (1, 2)]
        files[0].parent.mkdir(parents=True)
        for number, file in enumerate(files):
            parquet.write_table(rows(number).drop_columns(["is_running", "date"]), file)
        return files[1:]

    table.commit(1, table.staging.write_files(write, 1))
    assert offsets(table) == [1]
    assert len(list(table.path.rglob("*.parquet"))) == 1


def test_what_the_driver_wrote_is_no_different(spark: SparkSession, table: Table) -> None:
    given = [rows(1, 2), rows(3, is_running=True), rows(4, 5, day=17)]
    table.commit(1, table.staging.write_rows(pa.concat_tables(given), 1))
    assert in_order(table.rows(spark)) == as_dicts(given)
    assert len(table.files()) == 3


def test_no_rows_are_no_files(spark: SparkSession, table: Table) -> None:
    nothing = table.staging.write_frame(table.rows(spark), 1)
    assert (list(nothing.files), nothing.rows) == ([], 0)
    table.commit(1, nothing)
    table.commit(2, table.staging.write_rows(rows(), 2))
    assert (table.batch, table.files(), table.rows(spark).count()) == (2, [], 0)


def test_partitions_are_replaced_and_others_added_in_one_step(table: Table) -> None:
    add(table, 1, 1, 2)
    add(table, 2, 3, 4, is_running=True)
    version = table.delta.version()
    staged = table.staging.write_rows(pa.concat_tables([rows(3), rows(5, is_running=True, day=17)]), 3)
    table.commit(3, staged, replacing=[("is_running", "=", "true")])
    assert offsets(table) == [1, 2, 3, 5]
    assert table.delta.version() == version + 1
    table.commit(4, table.staging.write_rows(rows(9), 4), replacing_all=True)
    assert offsets(table) == [9]


def test_the_batch_is_known_to_who_opens_the_table_later(table: Table, schema: StructType) -> None:
    """Also what its commit was given."""
    assert table.batch == 0
    table.commit(7, table.staging.write_rows(rows(1), 7), metadata={"plan": "[1, 2]"})
    again = Table(table.path, schema, PARTITION_BY)
    assert again.batch == 7
    assert again.id == table.id
    assert again.metadata_of(7)["plan"] == "[1, 2]"
    with pytest.raises(LookupError):
        again.metadata_of(6)


def test_a_batch_is_committed_once(table: Table, schema: StructType) -> None:
    """Two that both believe it is their turn cannot both succeed."""
    other = Table(table.path, schema, PARTITION_BY)
    staged = other.staging.write_rows(rows(1), 1)
    add(table, 1, 1)
    with pytest.raises(Exception, match="ransaction"):
        other.commit(1, staged)
    assert offsets(table) == [1]


def test_what_was_not_committed_is_cleared_away(
    spark: SparkSession, table: Table, schema: StructType
) -> None:
    """A run that was killed leaves files behind; the next one removes them, and only them."""
    add(table, 1, 1)
    table.staging.write_frame(spark.createDataFrame(rows(2)), 2)
    table.staging.write_rows(rows(3), 2)
    half_written = table.path / STAGING / "batch-000000002-x" / "_temporary" / "part-0.parquet"
    half_written.parent.mkdir(parents=True)
    half_written.touch()
    assert len(list(table.path.rglob("*.parquet"))) == 4
    again = Table(table.path, schema, PARTITION_BY)
    assert len(list(table.path.rglob("*.parquet"))) == 1
    assert offsets(again) == [1]


def test_upkeep_keeps_rows_and_batches(spark: SparkSession, table: Table, schema: StructType) -> None:
    """Compaction, checkpoints, vacuum and the end of old commits change no row, and no batch's number."""
    for batch in range(1, 6):
        add(table, batch, batch, 10 + batch)
    before = in_order(table.rows(spark))
    compact(table, 1_000_000)
    assert len(table.files()) == 1
    table.delta.create_checkpoint()
    vacuum(table, 0)
    for commit in (table.path / "_delta_log").glob("0*.json"):
        if int(commit.stem) < table.delta.version() - 2:
            commit.unlink()
    assert len([file for file in table.path.rglob("*.parquet") if "_delta_log" not in file.parts]) == 1
    again = Table(table.path, schema, PARTITION_BY)
    assert again.batch == 5
    assert in_order(again.rows(spark)) == before
    add(again, 6, 99)
    assert offsets(again) == sorted([row["offset"] for row in before] + [99])


def test_the_files_of_a_batch_are_found_after_they_were_written_again(table: Table) -> None:
    """``forget`` writes files again without some rows; what is left of the batch is in one of those named."""
    add(table, 1, 1, 2)
    add(table, 2, 3, 4, 5)
    assert [Path(file).name[:15] for file in table.files_of(2)] == ["batch-000000002"]
    table.delta.delete("offset = 4")
    found = [pa.parquet.read_table(file)["offset"].to_pylist() for file in table.files_of(2)]
    assert found == [[3, 5]]


def test_readers_can_pass_over_files(table: Table) -> None:
    """By the bounds that stand in the commit; at the bounds themselves nothing is missed."""
    add(table, 1, 1, 2)
    add(table, 2, 3, 4)
    for where, expected in (
        ("offset = 4", 1),
        ("offset >= 2", 2),
        ("ts > '2026-11-16T02:00:00.025Z'", 1),
        ("ts >= '2026-11-16T02:00:00.020Z'", 2),
        ("topic = 'zzz'", 0),
        ("date = '2026-11-16'", 2),
    ):
        assert len(table.delta.file_uris(file_pruning_predicate=where)) == expected, where
    query = "select offset from t where ts >= '2026-11-16T02:00:00.020Z' and topic <= 'orders.1' order by 1"
    found = pa.table(QueryBuilder().register("t", table.delta).execute(query).read_all())
    assert found["offset"].to_pylist() == [3, 4]


def test_duckdb_and_polars_read_what_spark_reads(spark: SparkSession, table: Table) -> None:
    """After a compaction too, in which the engine rewrites some of the files."""
    for batch, day in enumerate((16, 16, 17), start=1):
        add(table, batch, 2 * batch, 2 * batch + 1, day=day)
    table.commit(4, table.staging.write_frame(spark.createDataFrame(rows(9, is_running=True)), 4))
    compact(table, 1_000_000)
    columns = ["topic", "offset", "ts", "types", "is_running", "date"]
    expected = [
        {**row, "ts": row["ts"].replace(tzinfo=UTC)} for row in in_order(table.rows(spark).select(columns))
    ]
    dataset = DeltaTable(table.path).to_pyarrow_dataset()
    query = f"select {', '.join(map(repr, columns))} from dataset order by all".replace("'", '"')
    found = duckdb.connect().register("dataset", dataset).sql(query).to_arrow_table().to_pylist()
    assert sorted(found, key=lambda row: row["offset"]) == expected
    read = polars.read_delta(str(table.path)).select(columns).sort("offset")
    assert read.to_dicts() == expected
    assert expected[-1]["date"] == date(2026, 11, 16)


def test_a_column_that_is_new_is_added(spark: SparkSession, tmp_path: Path, schema: StructType) -> None:
    """A newer Himalia may write more; the rows before have nothing there."""
    old = Table(
        tmp_path / "table", StructType([field for field in schema if field.name != "types"]), PARTITION_BY
    )
    old.commit(1, old.staging.write_rows(rows(1).drop_columns(["types"]), 1))
    new = Table(old.path, schema, PARTITION_BY)
    add(new, 2, 3)
    assert [row["types"] for row in in_order(new.rows(spark))] == [None, ["text/plain"]]


def test_other_columns_are_refused(tmp_path: Path, schema: StructType) -> None:
    """An older Himalia would write rows with something missing."""
    Table(tmp_path / "table", schema, PARTITION_BY)
    fewer = StructType([field for field in schema if field.name != "types"])
    with pytest.raises(ConfigurationError, match=r"does not write: types\. Use the Himalia"):
        Table(tmp_path / "table", fewer, PARTITION_BY)
