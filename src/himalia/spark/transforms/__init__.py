"""The log as tables: one file per table, each a function from DataFrame to DataFrame.

``messages`` is made of Arrow's batches, all others by Spark's own expressions: ``iopub`` record by record; ``requests``
folds it into one row per request, of which ``executions`` and ``orphans`` are views. ``topic_activity``,
``kernel_health`` and ``errors`` are sums: a batch's ``partial`` rows, ``merged`` with those that the table has. Nothing
here looks at a clock or at how the log was cut into batches, so that a stream, a nightly batch and a re-run over a year
give the same tables.
"""
