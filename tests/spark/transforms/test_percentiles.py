"""The percentiles of the tables and those of the page are the same figures."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from urllib.parse import quote

import pytest
from playwright.sync_api import Page
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from himalia.server.rest.page import FOLDER
from himalia.spark.transforms.histogram import HISTOGRAM, percentile
from tests.page.browser import running_browser

SHARES = (0.5, 0.95, 0.99)


@pytest.fixture
def page() -> Iterator[Page]:
    with running_browser() as browser:
        yield browser.new_page()


def histograms() -> list[dict[int, int]]:
    """Of one duration, of equal ones, of a hundred where each share falls on a boundary, and many random ones."""
    chance = random.Random(5)
    drawn = [
        {chance.randint(-80, 160): chance.randint(1, 500) for _ in range(chance.randint(1, 12))}
        for _ in range(200)
    ]
    return [{7: 1}, {-79: 40}, dict.fromkeys(range(100), 1), {3: 19, 4: 1}, {3: 99, 90: 1}, *drawn]


@pytest.mark.slow
def test_the_pages_percentiles_are_the_tables(spark: SparkSession, page: Page) -> None:
    """For the same counts both give the same p50, p95 and p99."""
    counted = histograms()
    rows = spark.createDataFrame([(one,) for one in counted], f"histogram {HISTOGRAM}")
    answer = rows.select(*(percentile(F.col("histogram"), share) for share in SHARES)).collect()
    source = (FOLDER / "live" / "histogram.js").read_text()
    found = page.evaluate(
        """async ([address, histograms, shares]) => {
            const { merged, percentile } = await import(address);
            return histograms.map((one) => shares.map((share) => percentile(merged([one]), share)));
        }""",
        [f"data:text/javascript,{quote(source)}", json.loads(json.dumps(counted)), list(SHARES)],
    )
    for ours, shown in zip(answer, found, strict=True):
        assert shown == pytest.approx(list(ours), rel=1e-12)
