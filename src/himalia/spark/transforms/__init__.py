"""The tables as functions from DataFrame to DataFrame, one module per table.

``messages`` is built from Arrow batches, all others by Spark's own expressions: ``iopub`` record by record;
``requests`` folds it into one row per request; ``executions`` and ``orphans`` are views of these. ``topic_activity``,
``kernel_health`` and ``errors`` are sums (``aggregate``). No function reads a clock or depends on where the log was cut
into batches, so a stream, a nightly batch and a run over a whole year give the same tables.
"""
