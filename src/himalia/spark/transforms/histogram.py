"""Histograms of durations with fixed logarithmic buckets, which add up exactly, and percentiles from them.

Bucket *i* has durations above 2^((i-1)/8) ms and up to 2^(i/8) ms. docs/tables.md defines the percentiles, for the page
too. Durations are whole microseconds; 0 counts as 1.
"""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F

HISTOGRAM = "map<int, bigint>"
PER_DOUBLING = 8
SHORTEST_MS = 0.001


def bucket_of(ms: Column) -> Column:
    """Return the bucket of a duration; null for null."""
    # Spark's ``greatest`` ignores nulls.
    at_least = F.when(ms.isNotNull(), F.greatest(ms, F.lit(SHORTEST_MS)))
    return F.ceil(F.log2(at_least) * PER_DOUBLING).cast("int")


def percentile(histogram: Column, share: float) -> Column:
    """Return the duration in ms that this share of the counted durations does not exceed; null if there are none."""
    buckets = F.sort_array(F.map_keys(histogram))
    rank = F.ceil(_total(histogram) * share)

    def reaches_rank(bucket: Column) -> Column:
        up_to_bucket = F.map_filter(histogram, lambda key, _: key <= bucket)
        return _total(up_to_bucket) >= rank

    found = F.get(F.filter(buckets, reaches_rank), F.lit(0))
    return F.pow(F.lit(2.0), (found - 0.5) / PER_DOUBLING)


def _total(histogram: Column) -> Column:
    return F.aggregate(F.map_values(histogram), F.lit(0).cast("bigint"), lambda upto, count: upto + count)
