"""Delta tables: Parquet files that Spark writes, committed by ``deltalake``."""
