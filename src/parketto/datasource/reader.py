"""Reads a snapshot of a dataset in Spark tasks, in Spark's types."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from parketto.datasource.options import READ, STREAM_READ, SourceOptions
from parketto.engines.spark.reading import natural_batch, natural_schema
from parketto.engines.spark.shipping import dumps, loads
from parketto.engines.spark.types import spark_schema
from parketto.operations.read import RowQuery, Scan, planned_scan
from parketto.operations.scan_parts import scan_parts

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


def _options(options: Mapping[str, str]) -> SourceOptions:
    return SourceOptions(options, READ, "batch reads")


def spark_schema_of(options: Mapping[str, str]) -> StructType:
    """The schema of a dataset in Spark's types, limited to the requested columns."""
    found = SourceOptions(options, STREAM_READ, "reads")
    schema = found.dataset().scan(columns=found.get("columns"), limit=0).schema
    return spark_schema(natural_schema(schema))


class Reader(DataSourceReader):
    """Reads the files of one snapshot, pruned by `where`; each task reads some of them.

    There is no push-down of filters: Spark would share the filters of one query with another on the same frame.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options, self._schema = _options(options), schema

    def partitions(self) -> list[InputPartition]:
        """The files of each task."""
        query = RowQuery(self._schema.names, self._options.get("where"))
        scan = planned_scan(self._options.dataset()._context, query)
        return [InputPartition(dumps(part)) for part in scan_parts(scan)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a task, as Spark expects them: exactly the types and the nullability of the schema."""
        return read_part(partition.value, self._schema)


def read_part(content: bytes | None, schema: StructType) -> Iterator[pa.RecordBatch]:
    """The rows of a part; none if Spark passes an empty partition, because there are no parts."""
    from pyspark.sql.pandas.types import to_arrow_schema

    if content is None:
        return
    part: Scan = loads(content)
    expected = to_arrow_schema(schema, timezone="UTC")
    for batch in part.batches():
        yield natural_batch(batch.select(schema.names), expected)
