"""Durations counted in fixed buckets on a logarithmic scale: counts add up exactly, and percentiles come from them.

Bucket *i* is for durations above 2^((i-1)/8) ms and up to 2^(i/8) ms. docs/tables.md defines their percentiles, for the
page too. Durations are whole microseconds; 0 counts as 1.
"""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F

HISTOGRAM = "map<int, bigint>"
PER_DOUBLING = 8
SHORTEST_MS = 0.001


def bucket_of(ms: Column) -> Column:
    """The bucket of a duration; null for null."""
    # Spark's ``greatest`` passes over null.
    at_least = F.when(ms.isNotNull(), F.greatest(ms, F.lit(SHORTEST_MS)))
    return F.ceil(F.log2(at_least) * PER_DOUBLING).cast("int")


def percentile(histogram: Column, share: float) -> Column:
    """The duration in ms that this share of those counted do not exceed; null if none was counted."""
    buckets = F.sort_array(F.map_keys(histogram))
    wanted = F.ceil(_total(histogram) * share)

    def reached(bucket: Column) -> Column:
        upto = F.map_filter(histogram, lambda key, _: key <= bucket)
        return _total(upto) >= wanted

    found = F.get(F.filter(buckets, reached), F.lit(0))
    return F.pow(F.lit(2.0), (found - 0.5) / PER_DOUBLING)


def _total(histogram: Column) -> Column:
    return F.aggregate(F.map_values(histogram), F.lit(0).cast("bigint"), lambda upto, count: upto + count)
