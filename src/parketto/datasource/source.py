"""The data source that Spark creates for `format("parketto")`.

Spark calls it in short-lived Python processes beside the driver: one finds the schema, one plans, one commits.
None of them has a Spark session.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from parketto.datasource.reader import Reader
    from parketto.datasource.stream_reader import StreamReader
    from parketto.datasource.writers import BatchWriter, StreamWriter


class DefaultSource(DataSource):
    """Reads and writes datasets of Parquet files, in batches and streams."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "parketto"

    def schema(self) -> StructType:
        """The schema of the dataset, with the columns that only paths contain, in Spark's types."""
        from parketto.datasource.reader import spark_schema_of

        return spark_schema_of(self.options)

    def reader(self, schema: StructType) -> Reader:
        """A reader of one snapshot."""
        from parketto.datasource.reader import Reader

        return Reader(self.options, schema)

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802 - Spark's name
        """A reader of the rows that are added."""
        from parketto.datasource.stream_reader import StreamReader

        return StreamReader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """A writer of one batch."""
        from parketto.datasource.writers import BatchWriter

        return BatchWriter(self.options, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802 - Spark's name
        """A writer of micro-batches."""
        from parketto.datasource.writers import StreamWriter

        return StreamWriter(self.options, schema, overwrite=overwrite)
