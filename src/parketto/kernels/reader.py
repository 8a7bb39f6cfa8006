"""Reading files as a stream of small batches, however far their data expands when it is decoded."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as pat

from parketto.errors import IncompatibleTypes, UnreadableFile
from parketto.kernels.carrier import carrier_schema, recast
from parketto.kernels.memory import release_unused
from parketto.kernels.sizes import RowSizes
from parketto.plan.form import Form
from parketto.plan.limits import check_columns_exist
from parketto.storage.calendars import CalendarCheck
from parketto.storage.footers import FileInfo
from parketto.storage.int96 import with_instants
from parketto.storage.ranged import RangedFile
from parketto.storage.store import Store
from parketto.storage.unreadable import naming

_MAX_BATCH_ROWS = 32 * 1024
_MIN_BATCH_ROWS = 64
_PROBE_ROWS = 128
_READ_BUFFER = 1024 * 1024
# A local file of this size is read as a whole if all of it is needed: a tenth faster than column by column.
_SMALL_FILE = 4 * 1024 * 1024
# Of remote files, row groups are read together up to this size, each run of columns by one request. Of larger ones
# about as much is held: a piece of each column.
_REMOTE_RUN = 16 * 1024 * 1024
_REMOTE_PIECE = (256 * 1024, 8 * 1024 * 1024)
_WORTH_THREADS = 256 * 1024


# Pages that carry a checksum are held to it: what is rotten must not be written again as if it were sound.
_CHECKED = {"page_checksum_verification": True}
_NANOSECOND_SECONDS = 2**63 // 10**9


class BatchReader:
    """Yields the rows of files, in order, as batches of about `batch_bytes`.

    Footers do not say how large data is once decoded: a dictionary can make a gigabyte of a kilobyte. So
    the first rows of the first file are decoded to see how wide they are, and every batch after that
    corrects the picture; the number of rows per batch follows. Readers that share `widths` learn from each other.
    """

    def __init__(
        self,
        store: Store,
        schema: pa.Schema,
        batch_bytes: int,
        *,
        use_threads: bool = True,
        widths: dict[tuple[str, ...], float] | None = None,
    ) -> None:
        self._store, self._batch_bytes, self._use_threads = store, batch_bytes, use_threads
        self._names = schema.names
        # Metadata is written verbatim at the end; here it would only make equal schemas unequal.
        self.schema = schema.remove_metadata()
        self._widths = {} if widths is None else widths
        #: The sizes of its batches.
        self.sizes = RowSizes(self.schema)
        self._row_bytes = self.sizes.fixed or self._widths.get(tuple(self._names))

    def read(self, files: Sequence[FileInfo]) -> Iterator[pa.RecordBatch]:
        """All rows of the files, one file after the other."""
        for file in files:
            with self.open(file) as opened:
                yield from opened.rows(*range(len(file.row_groups)))

    def read_row_groups(self, files: Sequence[FileInfo]) -> Iterator[Iterator[pa.RecordBatch]]:
        """The same, with the rows of each row group for themselves."""
        for file in files:
            with self.open(file) as opened:
                for number in range(len(file.row_groups)):
                    yield opened.rows(number)

    @contextlib.contextmanager
    def open(self, file: FileInfo, *, for_bytes: bool = False) -> Iterator[OpenFile]:
        """A file whose row groups can be read one by one, in any order; or copied, if it is for its bytes."""
        with naming(file.path):
            whole = not for_bytes and file.schema is not None and file.schema.names == self._names
            at_once = _SMALL_FILE if whole and self._store.often_cached else 0
            source = open_file(self._store, file, at_once, _REMOTE_PIECE[1] if for_bytes else 0)
        with source:
            yield OpenFile(self, file, source)

    def _batches(self, opened: OpenFile, numbers: Sequence[int]) -> Iterator[pa.RecordBatch]:
        file = opened.file
        assert file.schema is not None, "files to read come from a snapshot"
        groups = [file.row_groups[number] for number in numbers]
        filled = [number for number, group in zip(numbers, groups, strict=True) if group.num_rows]
        if not filled:
            return
        size, count = sum(group.total_byte_size for group in groups), sum(group.num_rows for group in groups)
        whole = file.schema.names == self._names
        columns = None if whole else self._names
        # Of rows as wide as in these row groups, before decoding, so many make a batch: at least one.
        fitting = max(1, int(self._batch_bytes * count / max(1, size)))
        if self._row_bytes is None:
            rows = min(_PROBE_ROWS, fitting)
            parquet, _ = next(opened.runs(filled[:1], self._names))
            probe = next(parquet.iter_batches(rows, row_groups=filled[:1], columns=columns))
            self._row_bytes = self._width(self._exact(probe))
        # Waking other threads up takes longer than to decode a few rows.
        threads = self._use_threads and size >= _WORTH_THREADS
        width = max(self._row_bytes, size / count if whole else 0, 1)
        # The widest rows seen so far may have been those of another file: these are not read one by one for that.
        rows = int(min(max(self._batch_bytes / width, min(_MIN_BATCH_ROWS, fitting)), _MAX_BATCH_ROWS))
        # Equal batches: a few rows at the end would take as long to ask for as a whole batch.
        rows = math.ceil(count / math.ceil(count / int(1.25 * rows)))
        for parquet, some in opened.runs(filled, self._names):
            for found in parquet.iter_batches(rows, row_groups=some, columns=columns, use_threads=threads):
                batch = self._exact(found)
                if self.sizes.fixed is None:
                    self._row_bytes = max(self._row_bytes, self._width(batch))
                    self._widths[tuple(self._names)] = self._row_bytes
                    if fitting == 1:
                        release_unused()  # the pages that a huge value was in
                yield batch

    def _exact(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if batch.schema.equals(self.schema, check_metadata=True):
            return batch
        # Arrow reads `a.b` along with `a`, and in the order of the file.
        return recast(batch if batch.schema.names == self._names else batch.select(self._names), self.schema)

    def _width(self, batch: pa.RecordBatch) -> float:
        return self.sizes.of(batch) / max(1, int(batch.num_rows))


class OpenFile:
    """A file that is open: its row groups as rows, and `source` for whoever wants its bytes."""

    def __init__(self, reader: BatchReader, file: FileInfo, source: Any) -> None:
        self.file, self.source = file, source
        self._reader = reader
        self._seconds: pq.ParquetFile | None = None

    @functools.cached_property
    def _parquet(self) -> pq.ParquetFile:
        # Without pre-buffering only the pages in use are held, not whole column chunks; but each is a request.
        if isinstance(self.source, RangedFile):
            return self._opened(pre_buffer=True)
        return self._opened(pre_buffer=False, buffer_size=_READ_BUFFER)

    def _opened(self, **more: Any) -> pq.ParquetFile:
        return pq.ParquetFile(self.source, coerce_int96_timestamp_unit=self.file.int96_unit, **more, **_CHECKED)

    def runs(self, numbers: Sequence[int], names: Sequence[str]) -> Iterator[tuple[pq.ParquetFile, list[int]]]:
        """The row groups that are read together, each time with what reads them."""
        if not isinstance(self.source, RangedFile):
            yield self._parquet, list(numbers)
            return
        metadata = self._parquet.metadata
        wanted = set(names)
        leaves = [
            at
            for at, path in enumerate(metadata.schema.column(at).path for at in range(metadata.num_columns))
            if path in wanted or path.partition(".")[0] in wanted
        ]
        run: list[int] = []
        held = 0
        for number in numbers:
            group = metadata.row_group(number)
            size = sum(group.column(at).total_compressed_size for at in leaves)
            if run and held + size > _REMOTE_RUN:
                yield self._parquet, run
                run, held = [], 0
            if size > _REMOTE_RUN:
                yield self._piecewise(metadata, len(leaves)), [number]
            else:
                run.append(number)
                held += size
        if run:
            yield self._parquet, run

    def _piecewise(self, metadata: pq.FileMetaData, columns: int) -> pq.ParquetFile:
        """The same file, read piece by piece: of each column one is held."""
        least, most = _REMOTE_PIECE
        piece = min(max(_REMOTE_RUN // max(1, columns), least), most)
        return self._opened(metadata=metadata, pre_buffer=False, buffer_size=piece)

    def read_by(self, reader: BatchReader) -> OpenFile:
        """The same open file for a reader of other columns."""
        other = OpenFile(reader, self.file, self.source)
        with naming(self.file.path):
            other._parquet = self._parquet
        return other

    def rows(self, *numbers: int) -> Iterator[pa.RecordBatch]:
        """The rows of row groups. Small ones are best read together: to ask for each takes longer than to read."""
        with naming(self.file.path):
            if self._parquet.num_row_groups != len(self.file.row_groups):
                raise UnreadableFile(self.file.path, "it has changed while it was read")
            if self.file.traits.int96_timestamps and self.file.int96_unit == "ns":
                if self._seconds is None:
                    self._seconds = _in_seconds(self.source)
                _refuse_far_timestamps(self.file.path, self._seconds, numbers)
            yield from self._reader._batches(self, numbers)


def open_file(store: Store, file: FileInfo, at_once: int = 0, block_bytes: int = 0) -> Any:
    """A file to read from. What is known of a remote one is not asked for again, and a small one is one request.

    Args:
        store: Where it is.
        file: The file.
        at_once: Up to which size it is read as a whole, besides those for which the store says so.
        block_bytes: How much is read at once where all of it is needed in order.
    """
    if file.tail and len(file.tail) == file.size_bytes:
        return pa.BufferReader(file.tail)
    if file.size_bytes <= max(at_once, store.whole_file_bytes):
        return pa.BufferReader(store.read_range(file.path, 0, file.size_bytes, file.fingerprint))
    return store.open_input(file.path, file.entry, file.tail, block_bytes)


def _in_seconds(source: Any) -> pq.ParquetFile:
    """A file whose INT96 timestamps are read as seconds, which hold all of them."""
    return pq.ParquetFile(source, pre_buffer=False, coerce_int96_timestamp_unit="s", **_CHECKED)


def _refuse_far_timestamps(path: str, seconds: pq.ParquetFile, numbers: Sequence[int]) -> None:
    """Arrow decodes INT96 to nanoseconds, and years before 1677 or after 2262 silently become others."""
    schema = seconds.metadata.schema
    columns = [c.path for c in map(schema.column, range(len(schema))) if c.physical_type == "INT96"]
    for batch in seconds.iter_batches(_MAX_BATCH_ROWS, row_groups=list(numbers), columns=columns):
        for found in filter(lambda array: array.type == pa.timestamp("s"), _leaf_arrays(batch.columns)):
            bounds = pc.min_max(found.cast(pa.int64()))
            if bounds["min"].is_valid and (
                bounds["min"].as_py() <= -_NANOSECOND_SECONDS or bounds["max"].as_py() >= _NANOSECOND_SECONDS
            ):
                raise UnreadableFile(path, "it has INT96 timestamps outside of the years 1677 to 2262")


class LogicalReader:
    """Reads the rows of files as a reader of the dataset sees them: with the columns that stand only in the path.

    Args:
        store: Where the files are.
        schema: The columns to read, in the order in which they are wanted.
        batch_bytes: About how large batches should be.
        form: Where the partition columns of the dataset are.
        use_threads: Whether Arrow may use several threads.
        widths: What other readers have learnt about the width of rows.
    """

    def __init__(
        self,
        store: Store,
        schema: pa.Schema,
        batch_bytes: int,
        form: Form,
        *,
        use_threads: bool = False,
        widths: dict[tuple[str, ...], float] | None = None,
    ) -> None:
        self.schema = carrier_schema(schema).remove_metadata()
        self._form = form
        inside = [item for item in self.schema if item.name not in form.path_only]
        self._reader = BatchReader(store, pa.schema(inside), batch_bytes, use_threads=use_threads, widths=widths)
        self._outside = len(inside) < len(self.schema.names)
        self._inside = bool(inside)

    def read(self, file: FileInfo) -> Iterator[pa.RecordBatch]:
        """The rows of one file, in carrier types."""
        return chain.from_iterable(rows for _, rows in self.read_row_groups(file))

    def read_row_groups(
        self, file: FileInfo, wanted: Sequence[int] | None = None
    ) -> Iterator[tuple[int, Iterator[pa.RecordBatch]]]:
        """The numbers of row groups, all or those wanted, and the rows of each."""
        numbers = range(len(file.row_groups)) if wanted is None else wanted
        if not self._inside:
            yield from ((number, self._constants(file, number)) for number in numbers)
            return
        with self._reader.open(file) as opened:
            for number in numbers:
                yield number, self.rows(opened, number)

    @contextlib.contextmanager
    def open(self, file: FileInfo) -> Iterator[OpenFile]:
        """A file whose row groups can be read one by one with `rows`."""
        with self._reader.open(file) as opened:
            yield opened

    def also(self, opened: OpenFile) -> OpenFile:
        """A file that another reader has opened, for this one."""
        return opened.read_by(self._reader)

    def rows(self, opened: OpenFile, number: int) -> Iterator[pa.RecordBatch]:
        """The rows of a row group of an open file."""
        if not self._inside:  # without any column Arrow would not say how many rows there are
            yield from self._constants(opened.file, number)
            return
        file = opened.file
        check = CalendarCheck(self._reader.schema, file.metadata, file.traits.int96)
        for batch in opened.rows(number):
            check.refuse_read(file.path, batch)
            yield self._completed(batch, file) if self._outside else batch

    def _constants(self, file: FileInfo, number: int) -> Iterator[pa.RecordBatch]:
        total = file.row_groups[number].num_rows
        for start in range(0, total, _MAX_BATCH_ROWS):
            rows = min(_MAX_BATCH_ROWS, total - start)
            columns = [self._constant(file, item, rows) for item in self.schema]
            yield pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _completed(self, batch: pa.RecordBatch, file: FileInfo) -> pa.RecordBatch:
        columns = [
            self._constant(file, item, batch.num_rows)
            if item.name in self._form.path_only
            else batch.column(item.name)
            for item in self.schema
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _constant(self, file: FileInfo, item: pa.Field, rows: int) -> pa.Array:
        text = dict(file.partition)[item.name]
        value = pa.scalar(text, pa.string()).cast(self._form.path_only[item.name]).cast(item.type)
        return pa.repeat(value, rows)


def _leaf_arrays(arrays: Iterable[pa.Array]) -> Iterator[pa.Array]:
    for array in arrays:
        if array.type.num_fields == 0 or isinstance(array, pa.DictionaryArray):
            yield array
        else:
            yield from _leaf_arrays(array.flatten() if pat.is_struct(array.type) else [array.values])


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
        with naming(file.path), open_file(store, file) as source:
            parquet = pq.ParquetFile(source, coerce_int96_timestamp_unit=file.int96_unit, **_CHECKED)
            if file.traits.int96_timestamps and file.int96_unit == "ns":
                _refuse_far_timestamps(file.path, _in_seconds(source), range(parquet.num_row_groups))
            table = parquet.read(None if columns is None else list(columns))
        if file.traits.int96_timestamps:
            table = table.cast(
                with_instants(table.schema, file.traits.int96, pa.timestamp(file.int96_unit, "UTC"))
            )
        CalendarCheck(table.schema, file.metadata, file.traits.int96).refuse_read(file.path, table)
        tables.append(table)
    if all(table.schema.equals(tables[0].schema) for table in tables):
        return pa.concat_tables([table.cast(tables[0].schema) for table in tables])
    try:
        return pa.concat_tables(tables, promote_options="default")
    except pa.ArrowTypeError:
        schemas = [table.schema.remove_metadata() for table in tables]
        _refuse_other_types(dict(zip((file.path for file in files), schemas, strict=True)))
        raise


def _refuse_other_types(schemas: Mapping[str, pa.Schema]) -> None:
    """Name the first column whose types in two files Arrow does not put together."""
    first: dict[str, tuple[pa.Field, str]] = {}
    for path, schema in schemas.items():
        for item in schema:
            known, where = first.setdefault(item.name, (item, path))
            try:
                pa.unify_schemas([pa.schema([known]), pa.schema([item])])
            except pa.ArrowTypeError:
                raise other_types(item.name, (known.type, where), (item.type, path)) from None


def other_types(column: str, *found: tuple[object, str]) -> IncompatibleTypes:
    """The error about a column that has other types in other files: types, and a file of each."""
    each = " and ".join(f"{kind} in {path!r}" for kind, path in found)
    return IncompatibleTypes(
        f"column {column!r} is {each}. Files that are read together need one type for each column: write those of "
        "one type anew with the other one, or keep them as a dataset of their own. Nothing was changed"
    )
