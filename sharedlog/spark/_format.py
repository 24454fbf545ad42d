"""The format ``sharedlog``: the data source that Spark asks for readers and writers."""

from __future__ import annotations

from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from rifl.spark._freezing import freeze
from sharedlog.spark._options import SinkError, SinkOptions, SourceOptions
from sharedlog.spark._sink import LogBatchWriter, LogStreamWriter, Writing
from sharedlog.spark._source import BatchReader, FilteredReader, Planner, StreamReader, columns


class LogDataSource(DataSource):
    """Reads and writes the messages of a stream; see spark-log.md for the options."""

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self._travelled = False

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "sharedlog"

    def schema(self) -> StructType:
        """Return the columns of a message; a stream that is not there is an error here."""
        options = SourceOptions.read(dict(self.options))
        Planner(options)
        made: StructType = from_arrow_schema(columns(options).schema)
        return made

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of what is there when the query is planned."""
        options = SourceOptions.read(dict(self.options))
        kind = FilteredReader if options.filters else BatchReader
        return kind(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's
        """Return the reader of micro-batches."""
        return StreamReader(SourceOptions.read(dict(self.options)), schema)

    def writer(self, schema: StructType, overwrite: bool) -> LogBatchWriter:
        """Plan a batch write: on the driver, before any row is appended."""
        if overwrite:
            raise SinkError('a log is appended to, nothing is overwritten: use mode("append")')
        return LogBatchWriter(SinkOptions.read(dict(self.options)), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:  # noqa: N802 - Spark's name
        """Plan a micro-batch: once for its tasks, and again where it is committed."""
        if overwrite:
            raise SinkError(
                "complete mode would append every row again with each micro-batch: use append, or "
                "foreachBatch(sharedlog.spark.appending(...))"
            )
        options = SinkOptions.read(dict(self.options))
        if options.batch_id is not None:
            raise SinkError("batchId is for writes within foreachBatch: Spark tells a query's own")
        # Where Spark commits it has this object from elsewhere, and asks for a writer only to call
        # commit: no need to plan again.
        writing = None
        if not self._travelled:
            writing = Writing(options, schema, stream=True)
            freeze("plan")
        return LogStreamWriter(options, schema, writing)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_travelled": True}
