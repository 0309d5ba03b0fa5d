"""The pipeline: reads the log batch by batch into Delta tables, each record exactly once."""
