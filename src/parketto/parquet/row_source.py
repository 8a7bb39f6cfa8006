"""Sources of rows: the caller's memory, files, or a frame of an engine; each with its exact schema."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import pyarrow as pa

from parketto.errors import InvalidArgument
from parketto.parquet.clustering_metadata import without_record
from parketto.parquet.dataset_schema import unified
from parketto.parquet.decoded_types import decoded_type
from parketto.parquet.file_info import FileInfo
from parketto.parquet.logical_reader import LogicalReader
from parketto.parquet.partition_spec import PartitionSpec, partition_spec_of
from parketto.runtime.task import Worker
from parketto.storage.store import Store


@dataclass
class ArrowRows:
    """Batches in memory, or a stream of batches that can be read once."""

    schema: pa.Schema
    batches: Iterable[pa.RecordBatch]

    @property
    def repeatable(self) -> bool:
        """Whether the batches can be read more than once."""
        return isinstance(self.batches, Sequence)

    def read(self, worker: Worker) -> Iterator[pa.RecordBatch]:  # noqa: ARG002 - the same call for every source
        """The batches."""
        return iter(self.batches)


class Transform(Protocol):
    """A function over rows, which is shipped to the tasks."""

    @property
    def takes(self) -> pa.Schema:
        """The columns of its input."""

    def __call__(self, batches: Iterator[pa.RecordBatch], limit_bytes: int) -> Iterator[pa.RecordBatch]:
        """The new rows for those of one file, in decoded types, processed about `limit_bytes` at a time."""


@dataclass(frozen=True)
class FileRows:
    """The rows of Parquet files, with the partition columns that only their paths contain.

    With a `transform`, `schema` is that of its output; counts and sizes are those of the files.
    """

    schema: pa.Schema
    store: Store
    files: tuple[FileInfo, ...]
    spec: PartitionSpec = field(default_factory=PartitionSpec)
    transform: Transform | None = None
    repeatable = True

    @classmethod
    def of(cls, store: Store, files: Sequence[FileInfo]) -> FileRows:
        """The rows of files, in the schema of the dataset that they form."""
        files = unified(files).files
        spec = partition_spec_of(files)
        assert files[0].schema is not None, "files to read come from a snapshot"
        return cls(spec.row_schema(files[0].schema), store, files, spec)

    def selected(self, columns: Sequence[str]) -> FileRows:
        """The same files with only these columns, in this order."""
        return replace(self, schema=pa.schema([self.schema.field(name) for name in columns], self.schema.metadata))

    @property
    def size_bytes(self) -> int:
        """The total size of the files."""
        return sum(file.size_bytes for file in self.files)

    @property
    def num_rows(self) -> int:
        """The total number of rows."""
        return sum(file.num_rows for file in self.files)

    def read(self, worker: Worker) -> Iterator[pa.RecordBatch]:
        """All rows in decoded types, file by file."""
        read = self.reader(worker, use_threads=worker.use_threads)
        for file in self.files:
            yield from read(file)
            if worker.file_read is not None:
                worker.file_read(file)

    def reader(self, worker: Worker, *, use_threads: bool) -> Callable[[FileInfo], Iterator[pa.RecordBatch]]:
        """A function that returns the rows of a file in decoded types; each file refines the row width."""
        wanted = self.schema if self.transform is None else self.transform.takes
        reader = LogicalReader(
            self.store, wanted, worker.batch_bytes, self.spec, use_threads=use_threads, widths=worker.widths
        )
        if self.transform is None:
            return reader.read
        transform = self.transform
        return lambda file: transform(reader.read(file), worker.run_bytes)


@dataclass(frozen=True)
class FrameRows:
    """The rows of a frame that only its engine can read."""

    schema: pa.Schema
    frame: Any
    repeatable = True


RowSource = ArrowRows | FileRows | FrameRows


def arrow_rows(rows: Any) -> ArrowRows:
    """Rows from PyArrow, pandas, Polars, DuckDB and all other objects with an Arrow stream.

    >>> arrow_rows(pa.table({"a": [1]})).schema.names
    ['a']
    """
    if isinstance(rows, pa.RecordBatch):
        rows = pa.Table.from_batches([rows])
    if isinstance(rows, pa.RecordBatchReader):
        return ArrowRows(checked_columns(rows.schema), rows)
    if not isinstance(rows, pa.Table):
        rows = _from_library(rows)
    return ArrowRows(checked_columns(rows.schema), rows.to_batches())


def is_path(rows: object) -> bool:
    """Whether a source is a path."""
    return isinstance(rows, str | os.PathLike)


def _from_library(rows: Any) -> pa.Table:
    library = type(rows).__module__.partition(".")[0]
    if library == "pyspark":
        raise InvalidArgument("a Spark DataFrame needs the Spark engine: Dataset(path, engine='spark')")
    if library == "pandas" and hasattr(rows, "columns"):
        named = [name for name in rows.index.names if name is not None]
        # An unnamed index is a row number; a named one is a column.
        return pa.Table.from_pandas(rows.reset_index(named) if named else rows, preserve_index=False)
    if library == "polars" and hasattr(rows, "collect"):
        rows = rows.collect()
    if library == "polars" and hasattr(rows, "to_arrow"):
        found = rows.to_arrow()
        return found.cast(pa.schema([item.with_type(_without_views(item.type)) for item in found.schema]))
    if hasattr(rows, "__arrow_c_stream__"):
        return pa.table(rows)
    raise InvalidArgument(
        f"rows must be a PyArrow Table, RecordBatch or RecordBatchReader, a pandas or Polars frame, a path, or a "
        f"Spark DataFrame (with the Spark engine), not {type(rows).__name__}"
    )


def _without_views(kind: pa.DataType) -> pa.DataType:
    return kind if isinstance(kind, pa.DictionaryType) else decoded_type(kind)


def checked_columns(schema: pa.Schema) -> pa.Schema:
    """A schema that can be written: with columns, unique names, and no clustering record of earlier files."""
    if not schema.names:
        raise InvalidArgument("rows without any column cannot be written")
    if len(set(schema.names)) < len(schema.names):
        duplicates = sorted({name for name in schema.names if schema.names.count(name) > 1})
        raise InvalidArgument(f"column names must be distinct; several columns are named {duplicates}")
    return schema.with_metadata(without_record(schema.metadata) or None)
