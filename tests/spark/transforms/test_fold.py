"""The fold against a plain reading of the same records, however they are cut into batches."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from tests.spark.traffic import Row
from tests.spark.transforms.fold_checks import fold, interpreted
from tests.spark.transforms.random_traffic import random_records
from tests.spark.transforms.reference_model import ReferenceTables, reference_tables


def cut(random: Random, rows: Sequence[Row], batches: int) -> list[list[Row]]:
    """A topic's records in batches, some of which may be empty: anywhere, by equal parts, or all in one."""
    places = sorted(random.choice((0, len(rows), random.randint(0, len(rows)))) for _ in range(batches - 1))
    return [list(rows[start:end]) for start, end in zip([0, *places], [*places, len(rows)], strict=True)]


def same(told_rows: list[dict[str, Any]], folded_rows: list[dict[str, Any]], *key: str) -> list[str]:
    """Where two tables differ, one line for each row."""

    def keyed(rows: list[dict[str, Any]]) -> dict[tuple[Any, ...], dict[str, Any]]:
        found = {tuple(row[name] for name in key): row for row in rows}
        assert len(found) == len(rows), "a row came twice"
        return found

    wanted, got = keyed(told_rows), keyed(folded_rows)
    wrong = [f"missing {one}: {wanted[one]}" for one in wanted.keys() - got.keys()]
    wrong += [f"too much {one}: {got[one]}" for one in got.keys() - wanted.keys()]
    for one in wanted.keys() & got.keys():
        for name, value in wanted[one].items():
            if got[one][name] != value:
                wrong.append(f"{one} {name}: {str(got[one][name])[:80]!r} instead of {str(value)[:80]!r}")
    return wrong


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("examples", [1, pytest.param(3, marks=pytest.mark.soak)])
def test_any_cut_gives_the_same_tables(spark: SparkSession, examples: int) -> None:
    """However each topic is cut into batches, the fold has the rows that a plain reading of all its records gives."""

    @settings(
        max_examples=examples,
        phases=[Phase.generate],
        suppress_health_check=[HealthCheck.too_slow],
    )
    @given(seed=st.integers(0, 2**32))
    def compare(seed: int) -> None:
        with interpreted(spark):
            check(spark, seed, batch_count=4)

    compare()


@pytest.mark.slow
def test_compiled_it_says_the_same(spark: SparkSession) -> None:
    """Large batches run as code that Spark generates."""
    check(spark, seed=20261116, batch_count=2)


def check(spark: SparkSession, seed: int, *, batch_count: int) -> None:
    random = Random(seed)
    topics = [random_records(random, f"k{number}") for number in range(150)]
    batches: list[list[Row]] = [[] for _ in range(batch_count)]
    for rows in topics:
        for batch, part in zip(batches, cut(random, rows, batch_count), strict=True):
            batch += part
    folded = fold(spark, batches)
    expected = ReferenceTables()
    for rows in topics:
        one = reference_tables(rows)
        expected.closed += one.closed
        expected.running += one.running
        expected.orphans += one.orphans
        expected.waiting += one.waiting
        expected.lingering += one.lingering
    identity = ("topic", "epoch", "request_id", "first_offset")
    wrong = same(expected.closed, folded.closed, *identity)
    wrong += same(expected.running, folded.running, *identity)
    for orphan in folded.orphans:
        orphan["us"] = orphan["ts"]
    wrong += same(expected.orphans, folded.orphans, "topic", "epoch", "offset")
    assert not wrong, "\n".join(wrong[:20])
    assert folded.outcomes.count("waiting") == expected.waiting
    state = folded.state.selectExpr("count_if(life.closed_us is not null) as lingering").first()
    assert state is not None and state.lingering == expected.lingering
