"""Rows of ``messages``, made of what the server sends."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from himalia.record import size_bytes
from himalia.spark.connector.read import ARROW_SCHEMA
from himalia.spark.delta import parquet_files
from himalia.spark.delta.parquet_files import DailyFiles
from himalia.spark.transforms.messages import messages, rows_of

DAY_US = 86_400_000_000
TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=12)


def batch(records: list[dict[str, Any]]) -> pa.RecordBatch:
    """Records as the connector gives them."""
    columns = [
        ["kernels.k"] * len(records),
        range(len(records)),
        [record.get("us", 0) for record in records],
        [record.get("id", "id") for record in records],
        [list(record.get("headers", {}).items()) for record in records],
        [record.get("value", "{}") for record in records],
    ]
    arrays = [pa.array(column, kind) for column, kind in zip(columns, ARROW_SCHEMA.types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=ARROW_SCHEMA)


def made(records: pa.RecordBatch) -> pa.RecordBatch:
    return rows_of(records, pa.repeat("e", records.num_rows))


@given(st.lists(st.fixed_dictionaries({"id": TEXT, "headers": st.dictionaries(TEXT, TEXT), "value": TEXT})))
def test_a_record_counts_for_as_many_bytes_as_in_the_log(records: list[dict[str, Any]]) -> None:
    expected = [
        size_bytes(
            record["id"],
            json.dumps(record["headers"], separators=(",", ":"), ensure_ascii=False).encode(),
            record["value"].encode(),
        )
        for record in records
    ]
    assert made(batch(records)).column("bytes").to_pylist() == expected


def test_of_a_part_of_a_batch() -> None:
    """The requested records may be a slice of a batch; the slice's columns begin in the middle of the batch's."""
    records = [{"id": f"id-{n}", "headers": {"publisher": "p" * n, "n": str(n)}} for n in range(9)]
    whole = made(batch(records)).to_pylist()
    assert made(batch(records).slice(4, 3)).to_pylist() == whole[4:7]


def test_the_columns() -> None:
    record = {"us": DAY_US + 1, "id": "a", "headers": {"publisher": "alice", "x": "y"}, "value": "[1]"}
    [row] = made(batch([record])).to_pylist()
    assert (row["topic"], row["epoch"], row["offset"], row["id"]) == ("kernels.k", "e", 0, "a")
    assert (row["publisher"], row["payload"], row["date"]) == ("alice", "[1]", date(1970, 1, 2))
    assert dict(row["headers"]) == record["headers"]
    [other] = made(batch([{}])).to_pylist()
    assert other["publisher"] is None


def test_of_a_dataframe(spark: SparkSession) -> None:
    """Records from anywhere, by the same rules."""
    records = batch([{"id": str(n), "headers": {"publisher": f"p{n}"}} for n in range(5)])
    frame = spark.createDataFrame(pa.Table.from_batches([records]))
    found = messages(frame.withColumn("epoch", F.lit("e"))).orderBy("offset").toArrow()
    assert found.to_pylist() == made(records).to_pylist()


@pytest.mark.parametrize("group_bytes", [1, 1 << 20])
def test_each_day_has_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group_bytes: int) -> None:
    """However the rows come, and whether they are written at once or gathered before."""
    monkeypatch.setattr(parquet_files, "GROUP_BYTES", group_bytes)
    rows = made(batch([{"us": n * DAY_US // 3, "id": str(n)} for n in range(10)]))
    with DailyFiles(tmp_path, ["topic"]) as files:
        for start in range(0, 10, 2):
            files.write(rows.slice(start, 2))
    assert [Path(name).parent.name for name in files.names] == [f"date=1970-01-0{n}" for n in range(1, 5)]
    written = pa.concat_tables(parquet.ParquetFile(tmp_path / name).read() for name in files.names)
    assert written.to_pylist() == rows.drop_columns(["date"]).to_pylist()


def test_a_file_of_a_task_that_fails_is_named_by_nobody(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="gone"), DailyFiles(tmp_path, []) as files:  # noqa: PT012
        files.write(made(batch([{}])))
        raise OSError("gone")
    assert files.names == []
