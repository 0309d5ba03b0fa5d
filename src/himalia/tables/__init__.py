"""The tables that the pipeline makes, read with SQL, without Spark and without a JVM."""

from himalia.tables.result import Result
from himalia.tables.tables import Tables

__all__ = ["Result", "Tables"]
