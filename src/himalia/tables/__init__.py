"""Read the pipeline's tables with SQL, without Spark and without a JVM."""

from himalia.tables.delta_tables import Tables
from himalia.tables.result import Result

__all__ = ["Result", "Tables"]
