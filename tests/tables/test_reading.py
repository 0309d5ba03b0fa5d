"""Reading tables: which rows, in which order, in which form."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from himalia.errors import BadRequest, TableNotFound, WarehouseNotFound
from himalia.spark.pipeline.warehouse import TABLES
from himalia.tables import Tables
from himalia.tables.catalog import CATALOG
from tests.tables.sample import START, columns_of, execution, message, write_table


def test_the_catalog_is_that_of_the_pipeline() -> None:
    """Every table that the pipeline makes, and every column of it, has its meaning, in the same order."""
    assert list(CATALOG) == list(TABLES)
    for name, spec in CATALOG.items():
        assert list(spec.meanings) == list(columns_of(name))
        assert set(spec.shown) <= spec.meanings.keys()


def numbers(tables: Tables, **wanted: Any) -> list[int]:
    return [row["offset"] for row in tables.read("messages", **wanted).rows()]


def test_the_pipelines_tables_come_first_and_others_behind(tmp_path: Path) -> None:
    """Names are in the catalog's order; a user's own table may be next to them; other directories are ignored."""
    write_table(tmp_path, "orphans", [])
    write_table(tmp_path, "messages", [message(1)])
    write_deltalake(tmp_path / "mine", pa.table({"x": [1]}))
    (tmp_path / "state" / "requests").mkdir(parents=True)
    (tmp_path / "lock").touch()
    assert Tables(tmp_path).names() == ["messages", "orphans", "mine"]
    assert Tables(tmp_path).read("mine").rows() == [{"x": 1}]


def test_a_table_that_is_being_made_is_none_yet(tmp_path: Path) -> None:
    """A directory without a commit, or with one that is not whole, is passed over; the others can be read."""
    write_table(tmp_path, "messages", [message(1)])
    (tmp_path / "iopub" / "_delta_log").mkdir(parents=True)
    (tmp_path / "orphans" / "_delta_log").mkdir(parents=True)
    (tmp_path / "orphans" / "_delta_log" / "_commit_2f1c9a07.json.tmp").touch()
    tables = Tables(tmp_path)
    assert tables.names() == ["messages"]
    assert [table.name for table in tables.describe()] == ["messages"]
    assert tables.sql("select 1 as one").rows() == [{"one": 1}]
    with pytest.raises(TableNotFound, match="there is no table 'iopub'; there are messages"):
        tables.read("iopub")


def test_a_table_whose_first_commits_were_cleaned_up(tmp_path: Path) -> None:
    """A checkpoint is enough."""
    write_table(tmp_path, "messages", [message(1)])
    DeltaTable(tmp_path / "messages").create_checkpoint()
    for commit in (tmp_path / "messages" / "_delta_log").glob("*.json"):
        commit.unlink()
    assert numbers(Tables(tmp_path)) == [1]


def test_the_newest_come_first(tables: Tables) -> None:
    """Without an order, every table of the pipeline begins with its newest row."""
    assert numbers(tables, limit=3) == [29, 28, 27]
    assert [row["request_id"] for row in tables.read("executions", limit=2).rows()] == [
        "request-7",
        "request-6",
    ]
    for name in CATALOG:
        assert tables.read(name).rows()


def test_a_condition_an_order_columns_and_a_limit(tables: Tables) -> None:
    """Each does what it says, and all of them together."""
    assert numbers(tables, where="offset in (3, 5) or payload like '%17%'") == [17, 5, 3]
    assert numbers(tables, order="offset", limit=2) == [0, 1]
    assert numbers(tables, order='topic, "offset" DESC', limit=2) == [29, 28]
    wanted = tables.read(
        "executions", where="status = 'ok'", order="run_ms desc", columns=["run_ms", "code"], limit=1
    )
    assert wanted.rows() == [{"run_ms": 62.5, "code": "print(5)"}]


def test_unknown_values_come_last_whatever_the_order(tables: Tables) -> None:
    """A request that still runs has no time; it is neither the quickest nor the slowest."""
    for order in ("run_ms", "run_ms desc"):
        assert tables.read("executions", order=order).rows()[-1]["run_ms"] is None


def test_times_are_compared_as_people_write_them(tables: Tables) -> None:
    """ISO 8601, a date, and a span before now."""
    assert numbers(tables, where="ts >= '2026-11-16T02:03:32.123456Z'") == [29, 28]
    assert numbers(tables, where="ts > '2026-11-17'") == []
    assert len(numbers(tables, where="date = '2026-11-16' and ts < now() + interval '100 years'")) == 30


def test_another_table_in_a_condition(tables: Tables) -> None:
    """A condition may ask other tables too."""
    assert numbers(tables, where="offset in (select execution_count from executions)", limit=1) == [7]


def test_rows_are_as_json_has_them(tables: Tables) -> None:
    """Times in ISO 8601 and UTC to the microsecond, dates, maps as objects, arrays as lists, null."""
    [row] = tables.read("messages", limit=1).rows()
    assert row["ts"] == "2026-11-16T02:03:33.123456Z"
    assert row["date"] == "2026-11-16"
    assert row["headers"] == {"publisher": "shop", "n": "29"}
    [row] = tables.read("kernel_health").rows()
    assert row["window_start"] == "2026-11-16T02:00:00.000000Z"
    assert row["histogram"] == {"29": 1, "37": 5}
    [row] = tables.read("executions", limit=1).rows()
    assert (row["is_running"], row["finished"], row["result_types"]) == (True, None, [])


def test_whatever_sql_can_make_has_a_form(tables: Tables) -> None:
    """Values that no table has, but a query may: other zones, durations, decimals, no number, nothing."""
    [row] = tables.sql(
        """select 'NaN'::double as nan, 1.5::decimal(5, 2) as amount, now() - now() as span, x'ff' as raw,
        to_timestamp('2026-11-16T02:00:00') as moment, [1, null] as list, {'a': [date '2026-11-16']} as object,
        arrow_cast(timestamp '2026-11-16T02:00:00Z', 'Timestamp(Microsecond, Some("+05:00"))') as zoned,
        map(['k'], [1]) as map, null as nothing, time '02:03:04' as clock"""
    ).rows()
    assert row["nan"] is None
    assert row["amount"] == 1.5
    assert row["span"] == 0
    assert row["raw"] == "ff"
    assert row["moment"] == "2026-11-16T02:00:00.000000Z"
    assert row["zoned"] == "2026-11-15T21:00:00.000000Z"
    assert (row["list"], row["object"], row["map"]) == ([1, None], {"a": ["2026-11-16"]}, {"k": 1})
    assert (row["nothing"], row["clock"]) == (None, "02:03:04")


def test_an_arrow_library_takes_a_result(tables: Tables) -> None:
    """Nothing has to go through Python's own values."""
    assert pa.table(tables.read("messages", columns=["offset"], limit=2))["offset"].to_pylist() == [29, 28]
    assert pl.DataFrame(tables.sql("select count(*) as n from messages")).to_dicts() == [{"n": 30}]


def test_each_call_sees_the_table_as_it_is(tmp_path: Path) -> None:
    """What was written after a call began is seen by the next."""
    write_table(tmp_path, "messages", [message(1)])
    tables = Tables(tmp_path)
    before = tables.read("messages")
    write_table(tmp_path, "messages", [message(2)])
    assert [row["offset"] for row in before.rows()] == [1]
    assert numbers(tables) == [2, 1]


def test_a_table_that_is_rewritten_is_read_again(tmp_path: Path) -> None:
    """Files that were removed between asking and reading are no failure: the rows come as they are now."""
    write_table(tmp_path, "messages", [message(1), message(2)])
    asked = Tables(tmp_path).read("messages")
    table = DeltaTable(tmp_path / "messages")
    table.delete('"offset" = 1')
    table.vacuum(0, dry_run=False, enforce_retention_duration=False)
    assert [row["offset"] for row in asked.rows()] == [2]


def test_describing(tables: Tables) -> None:
    """Size, columns and what they mean, without reading a row."""
    described = {table.name: table for table in tables.describe()}
    assert list(described) == list(CATALOG)
    messages = described["messages"]
    assert messages.rows == 30
    assert messages.bytes > 1000
    assert messages.updated.endswith("Z")
    types = {column.name: column.type for column in messages.columns}
    assert (types["offset"], types["headers"], types["ts"]) == ("bigint", "map<string,string>", "timestamp")
    assert all(column.description for table in described.values() for column in table.columns)


def test_no_warehouse_yet(tmp_path: Path) -> None:
    """Where nothing was written, there are no tables, and the error says what to do."""
    tables = Tables(tmp_path / "warehouse")
    assert tables.names() == []
    assert tables.describe() == []
    for ask in (lambda: tables.read("executions"), lambda: tables.sql("select 1"), lambda: tables.count("x")):
        with pytest.raises(
            WarehouseNotFound, match=r"warehouse yet; run `himalia pipeline run --once` first"
        ):
            ask()


@pytest.mark.parametrize(
    "name", ["execution", "../warehouse/messages", "", "messages; drop", "state/requests"]
)
def test_a_table_that_is_not_there(tables: Tables, name: str) -> None:
    """The error names those that are, and no name leads out of the warehouse."""
    for ask in (tables.read, tables.count):
        with pytest.raises(
            TableNotFound, match=r"there is no table .*; there are messages, iopub, executions"
        ):
            ask(name)


def test_a_table_that_cannot_be_read(tmp_path: Path) -> None:
    """A directory that looks like a table and is none is named."""
    write_table(tmp_path, "messages", [message(1)])
    (tmp_path / "broken" / "_delta_log").mkdir(parents=True)
    (tmp_path / "broken" / "_delta_log" / f"{0:020}.json").write_text("{")
    with pytest.raises(TableNotFound, match=r"'broken' .* cannot be read"):
        Tables(tmp_path).read("broken")


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        ({"columns": ["offst"]}, "messages has no column 'offst'; did you mean 'offset'?"),
        ({"columns": ["x"]}, "messages has no column 'x'; it has topic, epoch, offset"),
        ({"order": "ts sideways"}, "'ts sideways' is not an order"),
        ({"order": "ts, (select 1)"}, "'(select 1)' is not an order"),
        ({"order": "ts desc limit 5"}, "is not an order"),
        ({"order": "nope"}, "has no column 'nope'"),
    ],
)
def test_columns_and_orders_that_are_not_there(tables: Tables, wanted: dict[str, Any], says: str) -> None:
    with pytest.raises(BadRequest) as caught:
        tables.read("messages", **wanted)
    assert says in caught.value.message


def test_counting(tables: Tables) -> None:
    assert tables.count("messages") == 30
    assert tables.count("executions", "status = 'error'") == 1


def test_executions_of_which_times_are_unknown(tmp_path: Path) -> None:
    """The newest is found by whichever time there is; one without any comes last."""
    unknown = execution(9, queued=None, started=None, finished=START + timedelta(hours=1))
    write_table(
        tmp_path,
        "executions",
        [execution(1), unknown, execution(2, queued=None, started=None, finished=None)],
    )
    found = [row["request_id"] for row in Tables(tmp_path).read("executions").rows()]
    assert found == ["request-9", "request-1", "request-2"]


def test_nothing_heavy_is_imported(sample: Path) -> None:
    """A query loads neither Spark, pandas, pyarrow nor numpy: that is why it is there at once."""
    heavy = ("pyspark", "pandas", "pyarrow", "numpy", "py4j")
    code = (
        "import sys; from himalia.tables import Tables\n"
        "print(len(Tables(sys.argv[1]).read('messages').rows()))\n"
        f"print([name for name in {heavy!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code, sample], capture_output=True, text=True, timeout=30)
    assert done.stdout == "30\n[]\n", done.stderr


def test_deltalake_that_is_not_installed(sample: Path) -> None:
    """Without the extra the error says which to install."""
    code = (
        "import sys; sys.modules['deltalake'] = None\n"
        "from himalia.errors import ConfigurationError\n"
        "from himalia.tables import Tables\n"
        "try: Tables(sys.argv[1]).read('messages')\n"
        "except ConfigurationError as error: print(error.message)"
    )
    done = subprocess.run([sys.executable, "-c", code, sample], capture_output=True, text=True, timeout=30)
    assert done.stdout == "reading tables needs the package deltalake: pip install 'himalia[tables]'\n", (
        done.stderr
    )
