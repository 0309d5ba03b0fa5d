"""The data source that Spark knows as ``himalia``."""

from __future__ import annotations

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from himalia.spark.connector.errors import hide_traceback
from himalia.spark.connector.options import parse_read_options
from himalia.spark.connector.read import READ_SCHEMA, check_schema, make_batch_reader
from himalia.spark.connector.stream import StreamReader
from himalia.spark.connector.write import BatchWriter, StreamWriter


class HimaliaDataSource(DataSource):
    """Topics of a Himalia server. Every process that needs it creates one from the options."""

    @classmethod
    def name(cls) -> str:
        return "himalia"

    @hide_traceback()
    def schema(self) -> str:
        # Called when a query is defined, before it runs: the earliest moment to report a wrong option.
        parse_read_options(self.options)
        return READ_SCHEMA

    @hide_traceback()
    def reader(self, schema: StructType) -> DataSourceReader:
        check_schema(schema)
        return make_batch_reader(self.options)

    @hide_traceback()
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        check_schema(schema)
        return StreamReader(self.options)

    @hide_traceback()
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return BatchWriter(self.options, schema, overwrite=overwrite)

    @hide_traceback()
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return StreamWriter(self.options, schema)
