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

from himalia.spark.connector.errors import in_one_sentence
from himalia.spark.connector.options import read_options
from himalia.spark.connector.read import READ_SCHEMA, batch_reader, check_schema
from himalia.spark.connector.stream import StreamReader
from himalia.spark.connector.write import BatchWriter, StreamWriter


class HimaliaDataSource(DataSource):
    """Topics of a Himalia server. Made anew, from its options alone, by every process that needs it."""

    @classmethod
    def name(cls) -> str:
        return "himalia"

    @in_one_sentence()
    def schema(self) -> str:
        # Called when a query is begun, not when it is run: the earliest moment at which a slip can be told.
        read_options(self.options)
        return READ_SCHEMA

    @in_one_sentence()
    def reader(self, schema: StructType) -> DataSourceReader:
        check_schema(schema)
        return batch_reader(self.options)

    @in_one_sentence()
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        check_schema(schema)
        return StreamReader(self.options)

    @in_one_sentence()
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return BatchWriter(self.options, schema, overwrite=overwrite)

    @in_one_sentence()
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return StreamWriter(self.options, schema)
