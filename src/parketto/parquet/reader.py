"""Reads files as a stream of small batches, however far their data expands when it is decoded."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from parketto.errors import FooterError, IncompatibleTypes, UnreadableFile
from parketto.parquet.codec import PolarsFailed
from parketto.parquet.dataset_schema import path_value
from parketto.parquet.decoded_types import recast
from parketto.parquet.decoders.polars import decode, suits_polars
from parketto.parquet.decoders.sound_pages import MemoryFile, are_sound
from parketto.parquet.file_info import FileInfo, footer_length
from parketto.parquet.footer import read_exactly
from parketto.parquet.int96 import check_int96_range, in_seconds
from parketto.parquet.page_lookup import FooterParts, PageLookup
from parketto.parquet.page_reader import LOCAL_READ_BYTES, REMOTE_READ_BYTES, PageReader, PagesFile, read_rows
from parketto.parquet.promotion import promoted
from parketto.parquet.row_ranges import Ranges, count, rows_at, without_first
from parketto.parquet.unreadable import naming_file
from parketto.runtime.batches import RowSizes
from parketto.runtime.memory import release_unused
from parketto.storage.ranged import RangedFile
from parketto.storage.store import Store

MAX_BATCH_ROWS = 32 * 1024
_MIN_BATCH_ROWS = 64
_PROBE_ROWS = 128  # decoded first, to estimate the width of rows
_READ_BUFFER = 1024 * 1024
# Local files up to this size (bytes) are read whole if all columns are needed: a tenth faster than by column.
_SMALL_FILE = 4 * 1024 * 1024
# Remote row groups are read together up to this size (bytes), each run of columns in one request. Of a larger row
# group about as much is held: a piece of each column.
_REMOTE_RUN = 16 * 1024 * 1024
_REMOTE_PIECE = (256 * 1024, 8 * 1024 * 1024)  # minimum and maximum bytes
# Smaller row groups (bytes before compression) are read whole: finding pages takes milliseconds, or requests.
_MIN_PAGED_BYTES = 2 * 1024 * 1024
_MIN_REMOTE_PAGED_BYTES = 8 * 1024 * 1024
_MAX_FOOTER_BYTES = 256 * 1024  # a longer footer takes longer to decode than reading single pages saves
_PAGE_ERRORS: tuple[type[Exception], ...] = (FooterError, pa.ArrowException, OSError)
_MIN_PARALLEL_BYTES = 256 * 1024  # below this, waking threads takes longer than decoding
# Polars decodes whole row groups of up to this many batches: decoding parts of them takes longer than in Arrow.
_POLARS_BATCHES = 3
# A rewrite must not turn corrupt pages into valid ones.
_VERIFY = {"page_checksum_verification": True}


class BatchReader:
    """Yields the rows of files, in order, as batches of about `batch_bytes`.

    Footers do not contain decoded sizes: a dictionary can turn a kilobyte into a gigabyte. So the first rows of
    the first file are decoded to measure their width, and every later batch refines it; the number of rows per
    batch follows. Readers that share `widths` share these measurements.
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
        # Metadata is written verbatim at the end; here it would only make equal schemas differ.
        self.schema = schema.remove_metadata()
        self._widths = {} if widths is None else widths
        #: Computes the sizes of its batches.
        self.sizes = RowSizes(self.schema)
        self._row_bytes = self.sizes.fixed or self._widths.get(tuple(self._names))

    def read(self, files: Sequence[FileInfo]) -> Iterator[pa.RecordBatch]:
        """All rows of the files, file by file."""
        for file in files:
            with self.open(file) as opened:
                yield from opened.rows(*range(len(file.row_groups)))

    def read_row_groups(self, files: Sequence[FileInfo]) -> Iterator[Iterator[pa.RecordBatch]]:
        """The rows of each row group, file by file."""
        for file in files:
            with self.open(file) as opened:
                for number in range(len(file.row_groups)):
                    yield opened.rows(number)

    @contextlib.contextmanager
    def open(self, file: FileInfo, *, for_bytes: bool = False) -> Iterator[OpenFile]:
        """Open a file to read its row groups in any order or, with `for_bytes`, to copy them."""
        with naming_file(file.path):
            stored = file.stored.schema
            whole = not for_bytes and stored is not None and stored.names == self._names
            at_once = _SMALL_FILE if whole and self._store.often_cached else 0
            source = open_file(self._store, file, at_once, _REMOTE_PIECE[1] if for_bytes else 0)
        with source:
            yield OpenFile(self, file, source)

    def _batches(self, opened: OpenFile, numbers: Sequence[int]) -> Iterator[pa.RecordBatch]:
        file, stored = opened.file, opened.file.stored.schema
        assert stored is not None, "files to read come from a snapshot"
        groups = [file.row_groups[number] for number in numbers]
        filled = [number for number, group in zip(numbers, groups, strict=True) if group.num_rows]
        if not filled:
            return
        size, count = sum(group.total_byte_size for group in groups), sum(group.num_rows for group in groups)
        whole = stored.names == self._names
        columns = None if whole else [name for name in self._names if name in stored.names]
        if columns == []:
            for start in range(0, count, MAX_BATCH_ROWS):
                yield self._completed({}, min(MAX_BATCH_ROWS, count - start), file)
            return
        # The rows per batch if decoding did not expand them; at least one.
        fitting = max(1, int(self._batch_bytes * count / max(1, size)))
        if self._row_bytes is None:
            rows = min(_PROBE_ROWS, fitting)
            parquet, _ = next(opened.runs(filled[:1], self._names))
            probe = next(parquet.iter_batches(rows, row_groups=filled[:1], columns=columns))
            self._row_bytes = self._width(self._exact(probe, file))
        threads = self._use_threads and size >= _MIN_PARALLEL_BYTES
        width = max(self._row_bytes, size / count if whole else 0, 1)
        # The widest rows so far may be those of another file; that is no reason to read these one by one.
        rows = int(min(max(self._batch_bytes / width, min(_MIN_BATCH_ROWS, fitting)), MAX_BATCH_ROWS))
        # Batches of equal size: a short last batch would have the overhead of a whole one.
        rows = math.ceil(count / math.ceil(count / int(1.25 * rows)))
        for parquet, some in opened.runs(filled, self._names):
            for found in self._run(opened, parquet, some, rows, width, threads=threads):
                yield self._measured(self._exact(found, file))
                if self.sizes.fixed is None and fitting == 1:
                    release_unused()  # frees the pages of a huge value

    def _run(
        self,
        opened: OpenFile,
        parquet: pq.ParquetFile,
        numbers: Sequence[int],
        rows: int,
        width: float,
        *,
        threads: bool,
    ) -> Iterator[pa.RecordBatch]:
        """The rows of row groups, as they are stored: from Polars if it is faster and they fit into memory."""
        stored = opened.file.stored.schema
        assert stored is not None, "files to read come from a snapshot"
        wanted = set(self._names)
        schema = pa.schema([field for field in stored if field.name in wanted])
        done, ranges = 0, opened.whole_ranges(numbers, schema, int(_POLARS_BATCHES * self._batch_bytes), width)
        if ranges:
            # If Polars fails, Arrow reads on, and what is wrong with the file is reported.
            with contextlib.suppress(PolarsFailed):
                for batch in decode(opened.source, ranges, schema, rows):
                    yield batch
                    done += batch.num_rows
                return
        columns = None if len(schema) == len(stored) else schema.names
        found = parquet.iter_batches(rows, row_groups=list(numbers), columns=columns, use_threads=threads)
        yield from found if not done else rows_at(found, without_first([(0, count(ranges))], done))

    def _batches_in(
        self, opened: OpenFile, number: int, ranges: Ranges, pages: PageReader | None
    ) -> Iterator[pa.RecordBatch]:
        """The rows of some ranges of a row group, from single pages if that saves enough."""
        stored = opened.file.stored.schema
        assert stored is not None, "files to read come from a snapshot"
        names = [name for name in self._names if name in stored.names]
        done = 0
        if pages is not None and names and pages.pays(names, ranges):
            # If pages contradict their index, the whole row group is read, and what is wrong with it is reported.
            with contextlib.suppress(*_PAGE_ERRORS):
                for some, files in pages.pieces(names, ranges):
                    for batch in self._decoded(opened, files, some):
                        yield batch
                        done += batch.num_rows
        if rest := without_first(ranges, done):
            yield from rows_at(opened.rows(number), rest)

    def _decoded(self, opened: OpenFile, files: Sequence[PagesFile], ranges: Ranges) -> Iterator[pa.RecordBatch]:
        if self._row_bytes is None:
            # The first rows of each file: they need not be the same rows.
            some = [file._replace(rows=[(0, count(file.rows))]) for file in files]
            fewest = min(_PROBE_ROWS, *(count(file.rows) for file in files))
            probe = next(read_rows(some, [(0, fewest)], lambda file: opened.decoded(file, fewest)))
            self._row_bytes = self._width(self._exact(probe, opened.file))
        rows = int(min(max(self._batch_bytes / max(self._row_bytes, 1), _MIN_BATCH_ROWS), MAX_BATCH_ROWS))
        for batch in read_rows(files, ranges, lambda file: opened.decoded(file, rows, threads=self._use_threads)):
            yield self._measured(self._exact(batch, opened.file))

    def _measured(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch, after its width is noted."""
        if self.sizes.fixed is None:
            self._row_bytes = max(self._row_bytes or 0, self._width(batch))
            self._widths[tuple(self._names)] = self._row_bytes
        return batch

    def _exact(self, batch: pa.RecordBatch, file: FileInfo) -> pa.RecordBatch:
        if batch.schema.equals(self.schema, check_metadata=True):
            return batch
        if file.own is not None:
            return self._completed(dict(zip(batch.schema.names, batch.columns, strict=True)), batch.num_rows, file)
        # Arrow reads a column `a.b` along with `a`, and returns columns in file order.
        return recast(batch if batch.schema.names == self._names else batch.select(self._names), self.schema)

    def _completed(self, columns: Mapping[str, pa.Array], rows: int, file: FileInfo) -> pa.RecordBatch:
        """Columns of a file in the types of the schema; those that it lacks come from its path, or are NULL."""
        found = []
        for item in self.schema:
            if item.name in columns:
                found.append(promoted_column(columns[item.name], item, file))
            else:
                value = path_value(file, item)
                found.append(pa.nulls(rows, item.type) if value is None else pa.repeat(value, rows))
        return pa.RecordBatch.from_arrays(found, schema=self.schema)

    def _width(self, batch: pa.RecordBatch) -> float:
        return self.sizes.of(batch) / max(1, int(batch.num_rows))


def promoted_column(column: pa.Array, field: pa.Field, file: FileInfo) -> pa.Array:
    """Values of a column of a file in the dataset's type."""
    try:
        return promoted(column, field.type)
    except pa.ArrowInvalid as error:
        raise IncompatibleTypes(
            f"column {field.name!r} of {file.path!r} has type {column.type}, and a value that {field.type}, the "
            f"type of the dataset, cannot hold: {error}. Nothing was changed"
        ) from error


class OpenFile:
    """An open file: the rows of its row groups, and its bytes in `source`."""

    def __init__(self, reader: BatchReader, file: FileInfo, source: Any, first: OpenFile | None = None) -> None:
        self.file, self.source = file, source
        self._reader, self._first = reader, first
        self._seconds: pq.ParquetFile | None = None

    @functools.cached_property
    def _parquet(self) -> pq.ParquetFile:
        if self._first is not None:
            return self._first._parquet
        # Without pre-buffering only pages in use are held, not whole column chunks, but each page is a request.
        if isinstance(self.source, RangedFile):
            return self._opened(self.source, pre_buffer=True)
        return self._opened(self.source, pre_buffer=False, buffer_size=_READ_BUFFER)

    def _opened(self, source: Any, **more: Any) -> pq.ParquetFile:
        return pq.ParquetFile(source, coerce_int96_timestamp_unit=self.file.stored.int96_unit, **more, **_VERIFY)

    def whole_ranges(self, numbers: Sequence[int], schema: pa.Schema, limit: int, width: float) -> Ranges:
        """The rows of whole row groups, in ranges that Polars decodes within a limit; none if Arrow must.

        Args:
            numbers: The numbers of the row groups.
            schema: The columns, as they are stored.
            limit: The maximum decoded bytes of a range.
            width: The decoded bytes of a row.
        """
        groups, file = self.file.row_groups, self.file
        num_rows = sum(groups[number].num_rows for number in numbers)
        stored = file.stored.schema
        if stored is None or file.stored.traits.int96_timestamps or not self._can_share:
            return []
        if not suits_polars(schema, stored, num_rows):
            return []
        starts = list(accumulate((group.num_rows for group in groups), initial=0))
        ranges: list[tuple[int, int]] = []
        held = 0
        for number in numbers:
            group = groups[number]
            size = max(int(width * group.num_rows), group.total_byte_size)
            if size > limit:
                return []
            if ranges and ranges[-1][1] == starts[number] and held + size <= limit:
                ranges[-1] = (ranges[-1][0], starts[number + 1])
                held += size
            else:
                ranges.append((starts[number], starts[number + 1]))
                held = size
        return ranges if are_sound(self.source, self._parquet.metadata, numbers, schema.names) else []

    @property
    def _can_share(self) -> bool:
        """Whether another library can read the same open file."""
        return isinstance(self.source, MemoryFile | pa.OSFile)

    def runs(self, numbers: Sequence[int], names: Sequence[str]) -> Iterator[tuple[pq.ParquetFile, list[int]]]:
        """Row groups to read together, each time with the `ParquetFile` that reads them."""
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
        """The same file, read in pieces: one piece of each column is held."""
        smallest, largest = _REMOTE_PIECE
        piece = min(max(_REMOTE_RUN // max(1, columns), smallest), largest)
        return self._opened(self.source, metadata=metadata, pre_buffer=False, buffer_size=piece)

    @functools.cached_property
    def _footer(self) -> FooterParts:
        size = self.file.size_bytes
        length = footer_length(read_exactly(self.source, size - 8, 8))
        if length > min(_MAX_FOOTER_BYTES, size - 8):
            raise FooterError("decoding the footer takes longer than reading pages saves")
        return FooterParts(read_exactly(self.source, size - 8 - length, length), size)

    def pages(self, number: int, names: Iterable[str], bounded: Iterable[str] = ()) -> PageReader | None:
        """Reads single pages of a row group; None if it has no page index, or is too small to save anything.

        Args:
            number: The number of the row group.
            names: The columns to read.
            bounded: Those of them whose bounds are needed.
        """
        stored, group = self.file.stored.schema, self.file.row_groups[number]
        remote = isinstance(self.source, RangedFile)
        if stored is None or group.total_byte_size < (_MIN_REMOTE_PAGED_BYTES if remote else _MIN_PAGED_BYTES):
            return None
        names = [name for name in names if name in stored.names]
        if not names or len(set(stored.names)) < len(stored.names):
            return None
        cost = REMOTE_READ_BYTES if remote else LOCAL_READ_BYTES
        try:
            with naming_file(self.file.path):
                if len(self._footer) != len(self.file.row_groups):
                    return None
                lookup = PageLookup(self.source, self._footer.only(number), names, bounded)
        except (FooterError, KeyError):  # what is wrong with the file is reported when it is read
            return None
        return PageReader(self.source, lookup, cost) if lookup.group.num_rows == group.num_rows else None

    def decoded(self, file: PagesFile, rows: int, *, threads: bool = False) -> Iterator[pa.RecordBatch]:
        """The rows of some pages."""
        source = pa.BufferReader(file.content)
        stored = self.file.stored
        if stored.traits.int96_timestamps and stored.int96_unit == "ns":
            check_int96_range(self.file.path, in_seconds(source), [0], file.leaves)
        parquet = self._opened(source, pre_buffer=False)
        threads = threads and len(file.content) >= _MIN_PARALLEL_BYTES
        yield from parquet.iter_batches(rows, columns=list(file.columns), use_threads=threads)

    def read_by(self, reader: BatchReader) -> OpenFile:
        """The same open file for a reader of other columns."""
        return OpenFile(reader, self.file, self.source, self)

    def rows(self, *numbers: int) -> Iterator[pa.RecordBatch]:
        """The rows of row groups. Read small ones together: a call takes longer than decoding one."""
        with naming_file(self.file.path):
            if self._parquet.num_row_groups != len(self.file.row_groups):
                raise UnreadableFile(self.file.path, "it has changed while it was read")
            stored = self.file.stored
            if stored.traits.int96_timestamps and stored.int96_unit == "ns":
                if self._seconds is None:
                    self._seconds = in_seconds(self.source)
                check_int96_range(self.file.path, self._seconds, numbers)
            yield from self._reader._batches(self, numbers)

    def rows_in(self, number: int, ranges: Ranges, pages: PageReader | None) -> Iterator[pa.RecordBatch]:
        """The rows of some ranges of a row group; `pages` reads single pages of it."""
        with naming_file(self.file.path):
            yield from self._reader._batches_in(self, number, ranges, pages)


def open_file(store: Store, file: FileInfo, at_once: int = 0, block_bytes: int = 0) -> Any:
    """Open a file for reading. Known bytes of a remote file are not requested again; a small file is one request.

    Args:
        store: The store of the file.
        file: The file.
        at_once: Files up to this size are read whole, besides those up to the limit of the store.
        block_bytes: The read size if the whole file is read in order.
    """
    if file.tail and len(file.tail) == file.size_bytes:
        return MemoryFile(file.tail)
    if file.size_bytes <= max(at_once, store.whole_file_bytes):
        return MemoryFile(store.read_range(file.path, 0, file.size_bytes, file.fingerprint))
    return store.open_input(file.path, file.entry, file.tail, block_bytes)
