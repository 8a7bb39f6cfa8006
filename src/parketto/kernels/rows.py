"""Where rows come from: the caller's memory, files, or a frame of an engine; each with its exact schema."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import pyarrow as pa

from parketto.errors import InvalidArgument
from parketto.kernels.carrier import carrier_type
from parketto.kernels.reader import LogicalReader, other_types
from parketto.kernels.work import Worker
from parketto.plan.form import Form, form_of
from parketto.rowgroups.spark_note import unnamed_types
from parketto.storage.clustering import without_record
from parketto.storage.footers import FileInfo
from parketto.storage.store import Store
from parketto.storage.variant_types import whole


@dataclass
class ArrowRows:
    """Batches that are in this process, or come into it one after the other; they can be used once."""

    schema: pa.Schema
    batches: Iterable[pa.RecordBatch]

    @property
    def repeatable(self) -> bool:
        """Whether they can be read again after all."""
        return isinstance(self.batches, Sequence)

    def read(self, worker: Worker) -> Iterator[pa.RecordBatch]:  # noqa: ARG002 - the same call for every source
        """The batches."""
        return iter(self.batches)


class Transform(Protocol):
    """A function over rows that travels to the tasks with them."""

    @property
    def takes(self) -> pa.Schema:
        """The columns that it is given."""

    def __call__(self, batches: Iterator[pa.RecordBatch], limit_bytes: int) -> Iterator[pa.RecordBatch]:
        """Other rows for the rows of one file, in carrier types, taken together up to about so many bytes."""


@dataclass(frozen=True)
class FileRows:
    """The rows of Parquet files, with the partition columns that stand only in their paths.

    With a `transform`, `schema` is that of the rows which come out of it; counts and sizes are those of the files.
    """

    schema: pa.Schema
    store: Store
    files: tuple[FileInfo, ...]
    form: Form = field(default_factory=Form)
    transform: Transform | None = None
    repeatable = True

    @classmethod
    def of(cls, store: Store, files: Sequence[FileInfo]) -> FileRows:
        """The rows of files that have the same columns."""
        form = form_of(files)
        schema = form.row_schema(common_schema(files))
        return cls(schema, store, tuple(files), form)

    def selected(self, columns: Sequence[str]) -> FileRows:
        """The same files with fewer columns, in the order given."""
        return replace(self, schema=pa.schema([self.schema.field(name) for name in columns], self.schema.metadata))

    @property
    def size_bytes(self) -> int:
        """The size of all files."""
        return sum(file.size_bytes for file in self.files)

    @property
    def num_rows(self) -> int:
        """The rows of all files."""
        return sum(file.num_rows for file in self.files)

    def read(self, worker: Worker) -> Iterator[pa.RecordBatch]:
        """All rows in carrier types, one file after the other."""
        read = self.reader(worker, use_threads=worker.use_threads)
        for file in self.files:
            yield from read(file)
            if worker.file_read is not None:
                worker.file_read(file)

    def reader(self, worker: Worker, *, use_threads: bool) -> Callable[[FileInfo], Iterator[pa.RecordBatch]]:
        """A function that gives the rows of a file in carrier types; it learns from each how wide rows are."""
        wanted = self.schema if self.transform is None else self.transform.takes
        reader = LogicalReader(
            self.store, wanted, worker.batch_bytes, self.form, use_threads=use_threads, widths=worker.widths
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
    """Rows from what speaks Arrow: PyArrow, pandas, Polars, DuckDB and all else with an Arrow stream.

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
    """Whether a source is named by a path."""
    return isinstance(rows, str | os.PathLike)


def _from_library(rows: Any) -> pa.Table:
    library = type(rows).__module__.partition(".")[0]
    if library == "pyspark":
        raise InvalidArgument("a Spark DataFrame needs the Spark engine: Dataset(path, engine='spark')")
    if library == "pandas" and hasattr(rows, "columns"):
        named = [name for name in rows.index.names if name is not None]
        # An index without a name is a row number; one with a name is a column by another name.
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
    return kind if isinstance(kind, pa.DictionaryType) else carrier_type(kind)


def checked_columns(schema: pa.Schema) -> pa.Schema:
    """A schema that can be written: with columns, each of another name, and no word of where rows were before."""
    if not schema.names:
        raise InvalidArgument("rows without any column cannot be written")
    if len(set(schema.names)) < len(schema.names):
        twice = sorted({name for name in schema.names if schema.names.count(name) > 1})
        raise InvalidArgument(f"column names must be distinct; several columns are named {twice}")
    return schema.with_metadata(without_record(schema.metadata) or None)


def common_schema(files: Sequence[FileInfo]) -> pa.Schema:
    """The schema of the first file, if the others have the same columns.

    Variants that files store in different forms are in one form in it.
    """
    first = files[0].schema
    assert first is not None, "files to read come from a snapshot"
    reformed: set[str] = set()
    seen = {id(first)}
    for file in files:
        assert file.schema is not None, "files to read come from a snapshot"
        if id(file.schema) in seen:
            continue
        seen.add(id(file.schema))
        if not _same_rows(first, file.schema):
            mine, others = _row_types(first), _row_types(file.schema)
            for name in mine if set(mine) == set(others) else ():
                if mine[name] != others[name]:
                    kinds = (_named_type(schema, name) for schema in (first, file.schema))
                    raise other_types(name, *zip(kinds, (files[0].path, file.path), strict=True))
            raise InvalidArgument(
                f"the files have different columns: {files[0].path!r} has {_described(first)}, "
                f"{file.path!r} has {_described(file.schema)}"
            )
        reformed |= {
            item.name
            for item in first
            if carrier_type(item.type) != carrier_type(file.schema.field(item.name).type)
        }
    if not reformed:
        return first
    fields = [item.with_type(whole(item.type)) if item.name in reformed else item for item in first]
    return pa.schema(fields, first.metadata)


def _same_rows(one: pa.Schema, other: pa.Schema) -> bool:
    """Whether rows of one schema can stand beside those of the other: the same columns in any order."""
    return _row_types(one) == _row_types(other)


def _row_types(schema: pa.Schema) -> dict[str, tuple[pa.DataType, object]]:
    """What of the types of columns must be the same in files that are read together."""
    noted = unnamed_types(schema.metadata)
    return {item.name: (whole(carrier_type(item.type)), noted.get(item.name)) for item in schema}


def _named_type(schema: pa.Schema, name: str) -> object:
    """The type of a column, by Spark's name if Arrow has none."""
    return unnamed_types(schema.metadata).get(name, schema.field(name).type)


def _described(schema: pa.Schema) -> str:
    return ", ".join(f"{item.name}: {_named_type(schema, item.name)}" for item in schema)
