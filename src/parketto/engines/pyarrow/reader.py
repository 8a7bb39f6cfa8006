"""Reading files as a stream of small batches, however far their data expands when it is decoded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pat

from parketto.plan.limits import check_columns_exist
from parketto.storage.footers import FileInfo, naming
from parketto.storage.store import Store

_MAX_BATCH_ROWS = 32 * 1024
_MIN_BATCH_ROWS = 64
_PROBE_ROWS = 128
_READ_BUFFER = 1024 * 1024


class BatchReader:
    """Yields the rows of files, in order, as batches of about `batch_bytes`.

    Footers do not say how large data is once decoded: a dictionary can make a gigabyte of a kilobyte. So
    the first rows of the first file are decoded to see how wide they are, and every batch after that
    corrects the picture; the number of rows per batch follows.
    """

    def __init__(self, store: Store, schema: pa.Schema, batch_bytes: int, *, use_threads: bool = True) -> None:
        self._store, self._batch_bytes, self._use_threads = store, batch_bytes, use_threads
        # Metadata is written verbatim at the end; here it would only make equal schemas unequal.
        self._schema = schema.remove_metadata()
        self._row_bytes = _fixed_row_bytes(schema)

    def read(self, files: Sequence[FileInfo]) -> Iterator[pa.RecordBatch]:
        """All rows of the files, one file after the other."""
        for file in files:
            with naming(file.path), self._store.open_input(file.path) as source:
                # Without pre-buffering only the pages in use are held, not whole column chunks.
                parquet = pq.ParquetFile(source, pre_buffer=False, buffer_size=_READ_BUFFER)
                for number in range(parquet.num_row_groups):
                    yield from self._read_row_group(parquet, number)

    def _read_row_group(self, parquet: pq.ParquetFile, number: int) -> Iterator[pa.RecordBatch]:
        group = parquet.metadata.row_group(number)
        if group.num_rows == 0:
            return
        if self._row_bytes is None:
            self._row_bytes = self._width(next(parquet.iter_batches(_PROBE_ROWS, row_groups=[number])))
        width = max(self._row_bytes, group.total_byte_size / group.num_rows, 1)
        rows = int(min(max(self._batch_bytes / width, _MIN_BATCH_ROWS), _MAX_BATCH_ROWS))
        for batch in parquet.iter_batches(rows, row_groups=[number], use_threads=self._use_threads):
            self._row_bytes = max(self._row_bytes, self._width(batch))
            columns = [
                column if column.type == kind else column.cast(kind)
                for column, kind in zip(batch.columns, self._schema.types, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=self._schema)

    @staticmethod
    def _width(batch: pa.RecordBatch) -> float:
        return float(batch.nbytes / max(1, batch.num_rows))


def _fixed_row_bytes(schema: pa.Schema) -> float | None:
    """The width of a row if all types have a fixed one, else None."""
    if not all(pat.is_primitive(kind) or pat.is_decimal(kind) for kind in schema.types):
        return None
    return float(sum(kind.bit_width for kind in schema.types) / 8)


def read_table(store: Store, files: Sequence[FileInfo], columns: Sequence[str] | None) -> pa.Table:
    """All rows of the files as one table; columns that some files lack are NULL there."""
    tables = []
    for file in files:
        assert file.schema is not None, "files to read come from a snapshot"
        if columns is not None:
            check_columns_exist(columns, file.schema)
        with naming(file.path), store.open_input(file.path) as source:
            tables.append(pq.ParquetFile(source).read(None if columns is None else list(columns)))
    if all(table.schema.equals(tables[0].schema) for table in tables):
        return pa.concat_tables([table.cast(tables[0].schema) for table in tables])
    return pa.concat_tables(tables, promote_options="default")
