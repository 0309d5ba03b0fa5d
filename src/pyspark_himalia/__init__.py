"""How Spark finds the connector: it looks for packages named ``pyspark_*`` with a ``DefaultSource``."""

from himalia.spark.connector.source import HimaliaDataSource

DefaultSource = HimaliaDataSource
