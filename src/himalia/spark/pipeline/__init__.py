"""The warehouse: Delta tables that Spark fills batch by batch, each row exactly once."""
