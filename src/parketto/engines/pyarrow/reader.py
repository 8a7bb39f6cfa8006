"""Reading files as a stream of small batches, however far their data expands when it is decoded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as pat

from parketto.engines.pyarrow.carrier import recast
from parketto.engines.pyarrow.sizes import decoded_bytes
from parketto.errors import UnreadableFile
from parketto.plan.limits import check_columns_exist
from parketto.storage.footers import FileInfo, naming
from parketto.storage.store import Store

_MAX_BATCH_ROWS = 32 * 1024
_MIN_BATCH_ROWS = 64
_PROBE_ROWS = 128
_READ_BUFFER = 1024 * 1024


# Pages that carry a checksum are held to it: what is rotten must not be written again as if it were sound.
_CHECKED = {"page_checksum_verification": True}
_NANOSECOND_SECONDS = 2**63 // 10**9


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
                parquet = pq.ParquetFile(source, pre_buffer=False, buffer_size=_READ_BUFFER, **_CHECKED)
                if file.traits.int96_timestamps:
                    _refuse_far_timestamps(file, source)
                for number in range(parquet.num_row_groups):
                    yield from self._read_row_group(parquet, number)

    def _read_row_group(self, parquet: pq.ParquetFile, number: int) -> Iterator[pa.RecordBatch]:
        group = parquet.metadata.row_group(number)
        if group.num_rows == 0:
            return
        if self._row_bytes is None:
            probe = next(parquet.iter_batches(_PROBE_ROWS, row_groups=[number]))
            self._row_bytes = self._width(recast(probe, self._schema))
        width = max(self._row_bytes, group.total_byte_size / group.num_rows, 1)
        rows = int(min(max(self._batch_bytes / width, _MIN_BATCH_ROWS), _MAX_BATCH_ROWS))
        for found in parquet.iter_batches(rows, row_groups=[number], use_threads=self._use_threads):
            batch = recast(found, self._schema)
            self._row_bytes = max(self._row_bytes, self._width(batch))
            yield batch

    @staticmethod
    def _width(batch: pa.RecordBatch) -> float:
        return decoded_bytes(batch) / max(1, int(batch.num_rows))


def _refuse_far_timestamps(file: FileInfo, source: Any) -> None:
    """Arrow decodes INT96 to nanoseconds, and years before 1677 or after 2262 silently become others."""
    parquet = pq.ParquetFile(source, pre_buffer=False, coerce_int96_timestamp_unit="s", **_CHECKED)
    schema = parquet.metadata.schema
    columns = [c.path for c in map(schema.column, range(len(schema))) if c.physical_type == "INT96"]
    for batch in parquet.iter_batches(_MAX_BATCH_ROWS, columns=columns):
        for seconds in filter(lambda array: array.type == pa.timestamp("s"), _leaf_arrays(batch.columns)):
            bounds = pc.min_max(seconds.cast(pa.int64()))
            if bounds["min"].is_valid and (
                bounds["min"].as_py() <= -_NANOSECOND_SECONDS or bounds["max"].as_py() >= _NANOSECOND_SECONDS
            ):
                raise UnreadableFile(file.path, "it has INT96 timestamps outside of the years 1677 to 2262")


def _leaf_arrays(arrays: Iterable[pa.Array]) -> Iterator[pa.Array]:
    for array in arrays:
        if array.type.num_fields == 0 or isinstance(array, pa.DictionaryArray):
            yield array
        else:
            yield from _leaf_arrays(array.flatten() if pat.is_struct(array.type) else [array.values])


def _fixed_row_bytes(schema: pa.Schema) -> float | None:
    """The width of a row if all types have a fixed one, else None."""
    if not all(pat.is_primitive(kind) or pat.is_decimal(kind) for kind in schema.types):
        return None
    return float(sum(kind.bit_width for kind in schema.types) / 8)


def read_table(store: Store, files: Sequence[FileInfo], columns: Sequence[str] | None) -> pa.Table:
    """All rows of the files as one table.

    Where files differ in their columns, those that a file lacks are NULL; columns that are asked for by name must
    be in every file.
    """
    tables = []
    for file in files:
        assert file.schema is not None, "files to read come from a snapshot"
        if columns is not None:
            check_columns_exist(columns, file.schema)
        with naming(file.path), store.open_input(file.path) as source:
            tables.append(pq.ParquetFile(source, **_CHECKED).read(None if columns is None else list(columns)))
    if all(table.schema.equals(tables[0].schema) for table in tables):
        return pa.concat_tables([table.cast(tables[0].schema) for table in tables])
    return pa.concat_tables(tables, promote_options="default")
