"""Reads the rows of files as a reader of the dataset sees them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa

from parketto.parquet.calendars import CalendarCheck
from parketto.parquet.decoded_types import decoded_schema
from parketto.parquet.file_info import FileInfo
from parketto.parquet.page_reader import PageReader
from parketto.parquet.partition_spec import PartitionSpec
from parketto.parquet.reader import MAX_BATCH_ROWS, BatchReader, OpenFile
from parketto.parquet.row_ranges import Ranges, rows_at
from parketto.runtime.task import Worker
from parketto.storage.store import Store


class LogicalReader:
    """Reads rows as a reader of the dataset sees them: with the partition columns that only the path contains.

    Args:
        store: The store of the files.
        schema: The columns to read, in this order.
        batch_bytes: The approximate size of batches.
        spec: The partition spec of the dataset.
        use_threads: Whether Arrow may use several threads.
        widths: Row widths that other readers have measured.
        decoded: Whether values are returned in decoded types, in which they are processed.
    """

    def __init__(
        self,
        store: Store,
        schema: pa.Schema,
        batch_bytes: int,
        spec: PartitionSpec,
        *,
        use_threads: bool = False,
        widths: dict[tuple[str, ...], float] | None = None,
        decoded: bool = True,
    ) -> None:
        self.schema = (decoded_schema(schema) if decoded else schema).remove_metadata()
        self._spec = spec
        inside = [item for item in self.schema if item.name not in spec.path_only]
        self._reader = BatchReader(store, pa.schema(inside), batch_bytes, use_threads=use_threads, widths=widths)
        self._has_path_columns = len(inside) < len(self.schema.names)
        self._has_file_columns = bool(inside)

    @classmethod
    def of(cls, worker: Worker, schema: pa.Schema, spec: PartitionSpec) -> LogicalReader:
        """A reader of some columns, with the resources of a task."""
        return cls(
            worker.store, schema, worker.batch_bytes, spec, use_threads=worker.use_threads, widths=worker.widths
        )

    def read(self, file: FileInfo) -> Iterator[pa.RecordBatch]:
        """The rows of one file, in decoded types. Its row groups are read together: on S3 by fewer requests."""
        numbers = range(len(file.row_groups))
        if not self._has_file_columns:
            for number in numbers:
                yield from self._constants(file, number)
            return
        with self._reader.open(file) as opened:
            yield from self.rows(opened, *numbers)

    def read_row_groups(
        self, file: FileInfo, wanted: Sequence[int] | None = None
    ) -> Iterator[tuple[int, Iterator[pa.RecordBatch]]]:
        """The numbers of row groups, all or those `wanted`, each with its rows."""
        numbers = range(len(file.row_groups)) if wanted is None else wanted
        if not self._has_file_columns:
            yield from ((number, self._constants(file, number)) for number in numbers)
            return
        with self._reader.open(file) as opened:
            for number in numbers:
                yield number, self.rows(opened, number)

    @contextlib.contextmanager
    def open(self, file: FileInfo) -> Iterator[OpenFile]:
        """Open a file to read its row groups one by one with `rows`, unless the path has all columns."""
        if not self._has_file_columns:
            yield OpenFile(self._reader, file, None)
            return
        with self._reader.open(file) as opened:
            yield opened

    def also(self, opened: OpenFile) -> OpenFile:
        """A file that another reader opened, for this reader."""
        return opened.read_by(self._reader)

    def rows(self, opened: OpenFile, *numbers: int) -> Iterator[pa.RecordBatch]:
        """The rows of row groups of an open file."""
        if not self._has_file_columns:  # without columns, Arrow does not report the number of rows
            for number in numbers:
                yield from self._constants(opened.file, number)
            return
        yield from self._checked(opened.file, opened.rows(*numbers))

    def rows_in(
        self, opened: OpenFile, number: int, ranges: Ranges, pages: PageReader | None
    ) -> Iterator[pa.RecordBatch]:
        """The rows of some ranges of a row group; `pages` reads single pages of it."""
        if self._has_file_columns:
            yield from self._checked(opened.file, opened.rows_in(number, ranges, pages))
        else:
            yield from rows_at(self._constants(opened.file, number), ranges)

    def _checked(self, file: FileInfo, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        check = CalendarCheck(self._reader.schema, file.stored.metadata, file.stored.traits.int96)
        for batch in batches:
            check.refuse_read(file.path, batch)
            yield self._completed(batch, file) if self._has_path_columns else batch

    def _constants(self, file: FileInfo, number: int) -> Iterator[pa.RecordBatch]:
        total = file.row_groups[number].num_rows
        for start in range(0, total, MAX_BATCH_ROWS):
            rows = min(MAX_BATCH_ROWS, total - start)
            columns = [self._constant(file, item, rows) for item in self.schema]
            yield pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _completed(self, batch: pa.RecordBatch, file: FileInfo) -> pa.RecordBatch:
        columns = [
            self._constant(file, item, batch.num_rows)
            if item.name in self._spec.path_only
            else batch.column(item.name)
            for item in self.schema
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _constant(self, file: FileInfo, item: pa.Field, rows: int) -> pa.Array:
        text = dict(file.partition)[item.name]
        value = pa.scalar(text, pa.string()).cast(self._spec.path_only[item.name]).cast(item.type)
        return pa.repeat(value, rows)
