"""Only questions can be asked: whatever a condition or a query says, nothing is written and nothing else is read."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable

from himalia.errors import BadQuery, BadRequest, HimaliaError, QueryTooLarge, TableNotFound
from himalia.tables import Tables, query
from tests.tables.sample import message, write_table


@pytest.fixture
def warehouse(tmp_path: Path) -> Path:
    path = tmp_path / "warehouse"
    write_table(path, "messages", [message(number) for number in range(10)])
    (tmp_path / "secret.csv").write_text("a,b\nsecret,1\n")
    return path


def files(directory: Path) -> set[tuple[str, int]]:
    return {
        (str(path), path.stat().st_size)
        for path in directory.rglob("*")
        if path.is_file() and path.name != "lock"
    }


STATEMENTS = [
    "copy messages to '{out}' stored as json",
    "COPY (select 1) TO '{out}' STORED AS CSV",
    "create external table t stored as csv location '{secret}'",
    "CREATE OR REPLACE EXTERNAL TABLE messages STORED AS CSV LOCATION '{secret}'",
    "create table t as select * from messages",
    "create view v as select 1",
    "insert into messages select * from messages",
    "delete from messages",
    "update messages set topic = 'x'",
    "truncate table messages",
    "drop table messages",
    "alter table messages add column x int",
    "set datafusion.execution.batch_size = 1",
    "prepare p as delete from messages",
    "explain analyze copy (select 1) to '{out}' stored as csv",
    "explain analyze verbose copy (select 1) to '{out}' stored as csv",
    "EXPLAIN /* */ ANALYZE COPY (select 1) TO '{out}' STORED AS CSV",
    "explain (analyze) copy (select 1) to '{out}' stored as csv",
    "explain analyze insert into messages select * from messages",
    "describe analyze copy (select 1) to '{out}' stored as csv",
    "desc analyze delete from messages",
    "describe copy (select 1) to '{out}' stored as csv",
    "with x as (select 1) insert into messages select * from messages",
    "with x as (select 1) delete from messages",
    "with x as (select 1) update messages set topic = 'x'",
    "select 1; copy (select 1) to '{out}' stored as csv",
    "select 1; drop table messages; --",
    "-- select\ncopy (select 1) to '{out}' stored as csv",
    "/* select 1 */ delete from messages",
    "/* a */ -- b\n drop table messages",
    "(delete from messages)",
    "((copy (select 1) to '{out}' stored as csv))",
    "begin; delete from messages; commit",
    "call x()",
    "attach '{secret}' as other",
    "load '{secret}'",
    "selec 1",
    "",
    "  ;  ",
    "-- nothing",
    "/* never ends",
    # Comments nest in the engine: to it, each of these begins with COPY or SET.
    "/* /* */ select 1 */ copy (select 1) to '{out}' stored as csv",
    "/* /* */ */ copy (select 1) to '{out}' stored as csv",
    "/*/*/ select 1 */*/ copy (select 1) to '{out}' stored as csv",
    "/* -- */ copy (select 1) to '{out}' stored as csv -- */ select 1",
    "explain /* /* */ select 1 */ analyze copy (select 1) to '{out}' stored as csv",
    "explain analyze /* /* */ select 1 */ copy (select 1) to '{out}' stored as csv",
    "explain verbose analyze copy (select 1) to '{out}' stored as csv",
    "explain format indent analyze copy (select 1) to '{out}' stored as csv",
    "explain explain analyze copy (select 1) to '{out}' stored as csv",
    "/* /* */ values */ set datafusion.execution.batch_size = 1",
    "analyze copy (select 1) to '{out}' stored as csv",
    "format tree copy (select 1) to '{out}' stored as csv",
    "--\rselect 1\ncopy (select 1) to '{out}' stored as csv",
    "\u00a0copy (select 1) to '{out}' stored as csv",
    "\ufeffcopy (select 1) to '{out}' stored as csv",
    "\u200bselect 1; copy (select 1) to '{out}' stored as csv",
    "$$select 1$$ copy (select 1) to '{out}' stored as csv",
    "$a$;$a$; copy (select 1) to '{out}' stored as csv",
    "select $$'$$; copy (select 1) to '{out}' stored as csv; select $$'$$",
    "select '\\'; copy (select 1) to '{out}' stored as csv; select '",
    "select E'\\''; copy (select 1) to '{out}' stored as csv; --'",
    "select U&'\\0027; copy (select 1) to ''{out}'' stored as csv; --",
    "U&'select' copy (select 1) to '{out}' stored as csv",
    "\"select\" 1; copy (select 1) to '{out}' stored as csv",
    "select 1\\; copy (select 1) to '{out}' stored as csv",
    "select 1 as x into t",
    "select * into '{out}' from messages",
    "with x as (copy (select 1) to '{out}' stored as csv) select 1",
    "select * from (copy (select 1) to '{out}' stored as csv)",
    "show tables; copy (select 1) to '{out}' stored as csv",
    "deallocate p",
    "reset all",
    "create schema s",
    "create function f() returns int return 1",
    "use other",
]


class Anything:
    """Contains everything."""

    def __contains__(self, item: object) -> bool:
        return True


@pytest.mark.parametrize("decides", ["both", "the engine's plan"])
@pytest.mark.parametrize("statement", STATEMENTS)
def test_what_is_not_a_query_is_refused(
    warehouse: Path, statement: str, decides: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is an error with a sentence, and no file is changed or created; by the plan alone as by the first word."""
    if decides != "both":
        monkeypatch.setattr(query, "_BEGINNINGS", Anything())
    out, secret = warehouse.parent / "out", warehouse.parent / "secret.csv"
    before = files(warehouse.parent)
    with pytest.raises((BadQuery, TableNotFound)):
        Tables(warehouse).sql(statement.format(out=out, secret=secret)).rows()
    assert files(warehouse.parent) == before
    assert DeltaTable(warehouse / "messages").version() == 0


@pytest.mark.parametrize(
    "query",
    [
        "select * from '{secret}'",
        'select * from "{secret}"',
        "select * from read_csv('{secret}')",
        "select * from csv_scan('{secret}')",
        "select * from parquet_scan('{other}')",
        'with x as (table "{secret}") select * from x',
        "select * from delta_scan('{other}')",
        "select * from '{other}'",
    ],
)
def test_nothing_else_is_read(warehouse: Path, query: str) -> None:
    """A file, or a table that lies elsewhere, cannot be named."""
    other = warehouse.parent / "other"
    write_table(other, "orphans", [])
    with pytest.raises((BadQuery, TableNotFound)):
        Tables(warehouse).sql(
            query.format(secret=warehouse.parent / "secret.csv", other=other / "orphans")
        ).rows()


@pytest.mark.parametrize(
    "query",
    [
        "select 1 as x",
        "SELECT count(*) FROM messages;",
        "(select 1)",
        "with n as (select count(*) as x from messages) select * from n",
        "values (1), (2)",
        "show tables",
        "describe messages",
        'desc "messages"',
        "explain select 1",
        "explain analyze select count(*) from messages",
        "explain /* plan */ verbose select 1",
        "EXPLAIN FORMAT tree SELECT 1",
        "explain analyze verbose with x as (select 1) select * from x",
        "/* /* nested */ */ select 1",
        "show columns from messages",
        "select distinct topic from messages order by topic limit 1",
        "select topic from messages union all select id from messages",
        "select topic from messages union select id from messages",
        "select offset from messages except select 100",
        "select topic from messages intersect select topic from messages",
        "select topic, count(*) from messages group by topic having count(*) > 1",
        "select topic, row_number() over (order by ts) from messages",
        "select a.id from messages a left join messages b on a.id = b.id where b.id is not null",
        "select * from messages a, messages b limit 1",
        "with recursive n(i) as (select 1 union all select i + 1 from n where i < 3) select * from n",
        "select unnest([1, 2, 3])",
        "select 'CopyTo: ' as \"Dml: op\"",
        "select $$ text; with 'quotes' $$ as x",
        "-- how many\nselect count(*) from messages -- all of them",
        "/* many\nlines */ select 1",
        "\n\tselect 'delete from messages; drop table messages' as harmless",
    ],
)
def test_queries_are_answered(warehouse: Path, query: str) -> None:
    assert Tables(warehouse).sql(query).rows()


CONDITIONS = [
    "true) limit 100 --",
    "true) limit 100 /*",
    "true) limit 100 # ",
    "true) union all select * from messages --",
    "true); copy (select 1) to '{out}' stored as csv; --",
    "true; drop table messages",
    "true) ; select (1",
    "true) into outfile '{out}",
    "exists (copy messages to '{out}' stored as csv)",
    "exists (delete from messages)",
    "exists (insert into messages select * from messages)",
    "exists (select * from '{secret}')",
    'exists (select * from "{secret}")',
    "exists (select * from read_csv('{secret}'))",
    "topic = 'a",
    "topic = 'orders' limit 100",
    "true order by offset",
    "true)",
    "(true",
    "-- true",
    "/* true",
]


@pytest.mark.parametrize("condition", CONDITIONS)
def test_a_condition_stays_a_condition(warehouse: Path, condition: str) -> None:
    """What would end it early, add to it, or do something else is refused, and no file has changed or come."""
    before = files(warehouse.parent)
    where = condition.format(out=warehouse.parent / "out", secret=warehouse.parent / "secret.csv")
    with pytest.raises(HimaliaError):
        Tables(warehouse).read("messages", where=where, limit=2).rows()
    assert files(warehouse.parent) == before
    assert DeltaTable(warehouse / "messages").version() == 0


@pytest.mark.parametrize(
    "where",
    [
        "true) or (true",
        "true) union all select * from messages where (true",
        "true) union all (select * from messages) union all select * from messages where (true",
        "true) limit 7 union all select * from messages where (true",
        "true -- a remark",
        "true /* a remark */",
        "topic = ') limit 100 --' or true",
        "true and 'x' <> $$) limit 100 --$$",
    ],
)
def test_the_limit_holds(warehouse: Path, where: str) -> None:
    """Parentheses that balance, quotes and remarks do not get around it: it is the end of the statement."""
    try:
        rows = Tables(warehouse).read("messages", where=where, limit=2).rows()
    except BadRequest:
        return
    assert len(rows) == 2


def test_columns_and_tables_are_names(tmp_path: Path) -> None:
    """A column or a table called by something that looks like SQL is still only a name."""
    import pyarrow as pa
    from deltalake import write_deltalake

    name = 'x" limit 1 --'
    write_deltalake(tmp_path / 'odd "table"', pa.table({name: [1, 2], "select": [3, 4]}))
    tables = Tables(tmp_path)
    assert tables.read('odd "table"', columns=[name, "select"]).rows() == [
        {name: 1, "select": 3},
        {name: 2, "select": 4},
    ]
    assert tables.read('odd "table"', order="select desc", limit=1).rows() == [{name: 2, "select": 4}]


def test_a_query_that_needs_too_much_memory(warehouse: Path) -> None:
    """It is an error, and the memory is not used."""
    tables = Tables(warehouse, memory_bytes_max=8 << 20)
    with pytest.raises(QueryTooLarge, match="more memory than it may have"):
        tables.sql(
            "select array_agg(value order by value desc) from generate_series(1, 3000000) t(value)"
        ).rows()


@pytest.mark.parametrize(
    ("where", "says"),
    [
        (
            "nope = 1",
            "there is no column 'nope' (text goes in 'single quotes'); there are topic, epoch, offset",
        ),
        ('topic = "orders"', "there is no column 'orders' (text goes in 'single quotes')"),
        ("topic = 'a", "this is not SQL: unterminated string literal, at character 9"),
        ("topic =", "the condition ends too early"),
        ("topic = 'a')", "closes a parenthesis that it did not open"),
        ("topic in ('a'\nand", "the condition ends too early"),
        ("topic is\nnot not null", "this is not SQL: expected"),
        ("topic is\nnot not null", "at character 5 of line 2"),
        ("topic", "the query failed: cannot create filter with non-boolean predicate"),
        ("ts > 5", "the query failed: cannot infer common argument type"),
        ("ts > 'yesterday'", "error parsing timestamp from 'yesterday'"),
        ("frobnicate(ts)", "invalid function 'frobnicate'"),
        ("regexp_like(payload, '(')", "unclosed group"),
        ("true; true", "this is not SQL: expected"),
    ],
)
def test_a_wrong_condition_is_told_in_words(warehouse: Path, where: str, says: str) -> None:
    """The engine's own sentence, with the place in what was written; one line."""
    with pytest.raises(BadQuery) as caught:
        Tables(warehouse).read("messages", where=where, limit=1).rows()
    assert says in caught.value.message
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("select * from execution", "there is no table 'execution'; there are messages"),
        ("select topic, offset from messages", '"offset" must be in double quotes'),
        ("select nope from messages", "there is no column 'nope'"),
        ("select 1; select 2", "several statements; send one query at a time"),
        ("select topic, count(*) from messages", "must appear in the GROUP BY clause"),
        ("select interval '1 hour' as pause", "the column 'pause' is an interval"),
        (
            "copy x to y",
            "'copy x to y' is not a query; tables are read-only: begin with SELECT, WITH",
        ),
        ("", "the query is empty; write one such as: select"),
    ],
)
def test_a_wrong_query_is_told_in_words(warehouse: Path, query: str, says: str) -> None:
    with pytest.raises((BadQuery, TableNotFound)) as caught:
        Tables(warehouse).sql(query).rows()
    assert says in caught.value.message
    assert "\n" not in caught.value.message
