"""Reads only those pages of a row group that contain wanted rows.

Arrow cannot skip pages. So the wanted pages become the column chunks of small Parquet files in memory, which Arrow
decodes. Pages of different columns contain different rows, so each file has those columns whose pages match.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import IO, NamedTuple

import pyarrow as pa

from parketto.errors import FooterError
from parketto.parquet.footer import MAGIC, ChunkKeys, Column, FileKeys, GroupKeys, MetaKeys
from parketto.parquet.page_index import read_data_page
from parketto.parquet.page_lookup import PageLookup, file_of
from parketto.parquet.row_ranges import Ranges, count, merged, positions, rows_at
from parketto.parquet.thrift import Fields
from parketto.parquet.transfer import read_ranges

_PIECE_BYTES = 16 * 1024 * 1024  # pages that are in memory at a time, about
_PAGE_ROWS = 20_000  # the rows of a page, typically
# The fields of a column chunk that are true for any of its pages. The sizes before compression are not used.
_KEPT = frozenset(
    {MetaKeys.TYPE, MetaKeys.ENCODINGS, MetaKeys.PATH, MetaKeys.CODEC, MetaKeys.TOTAL_UNCOMPRESSED_SIZE}
)
#: What a separate read costs, in bytes that could be read in the same time.
LOCAL_READ_BYTES, REMOTE_READ_BYTES = 16 * 1024, 512 * 1024


class PagesFile(NamedTuple):
    """A Parquet file in memory with some pages of a row group."""

    content: pa.Buffer
    columns: Sequence[str]
    #: The paths of its leaf columns.
    leaves: Sequence[str]
    #: The rows of the row group that it contains.
    rows: Ranges


class _Column(NamedTuple):
    """The pages of a column to read, by leaf column, and the rows that they contain."""

    name: str
    pages: dict[int, list[int]]
    rows: Ranges


class PageReader:
    """Reads ranges of rows of one row group, page by page.

    Args:
        source: The file.
        lookup: The pages of the columns to read.
        read_bytes: What a separate read costs, in bytes.
    """

    def __init__(self, source: IO[bytes], lookup: PageLookup, read_bytes: int) -> None:
        self._source, self.lookup, self._read_bytes = source, lookup, read_bytes

    def pays(self, names: Sequence[str], ranges: Ranges) -> bool:
        """Whether reading single pages leaves out at least half of the columns' bytes."""
        whole, cost = self._size(names), 0
        for piece in self._pieces(names, ranges):
            columns = self._chosen(names, piece)
            wanted = sorted({*self._pages(columns), *map(self._dictionary, self._leaves(columns))})
            breaks = sum(start > end for (start, _), end in zip(wanted[1:], map(sum, wanted), strict=False))
            cost += sum(size for _, size in wanted) + (breaks + 1) * self._read_bytes
            if 2 * cost > whole:
                return False
        return True

    def pieces(self, names: Sequence[str], ranges: Ranges) -> Iterator[tuple[Ranges, list[PagesFile]]]:
        """Consecutive parts of the ranges, each with the files that contain its rows.

        Raises:
            FooterError: Page headers contradict the offset index.
        """
        for piece in self._pieces(names, ranges):
            columns = self._chosen(names, piece)
            read = read_ranges(self._source, self._pages(columns))
            values = {leaf: self._values(leaf, numbers, read) for leaf, numbers in self._leaves(columns).items()}
            # Writers stop using a dictionary when it becomes large: then the pages that follow do not need it.
            needed = [self._dictionary(leaf) for leaf, (_, has_dictionary) in values.items() if has_dictionary]
            read |= read_ranges(self._source, needed)
            alike: dict[tuple[tuple[int, int], ...], list[_Column]] = {}
            for column in columns:
                alike.setdefault(tuple(column.rows), []).append(column)
            yield piece, [self._file(some, read, values) for some in alike.values()]

    def _size(self, names: Iterable[str]) -> int:
        leaves = {leaf for name in names for leaf in self.lookup.leaves[name]}
        return sum(self.lookup.group.columns[leaf].size for leaf in leaves)

    def _pieces(self, names: Iterable[str], ranges: Ranges) -> list[Ranges]:
        """The ranges in parts whose pages fit into memory."""
        most = max(_PAGE_ROWS, _PIECE_BYTES * self.lookup.group.num_rows // max(1, self._size(names)))
        pieces: list[list[tuple[int, int]]] = []
        room = 0
        for start, end in ranges:
            at = start
            while at < end:
                if room <= 0:
                    pieces.append([])
                    room = most
                stop = min(end, at + room)
                pieces[-1].append((at, stop))
                room -= max(_PAGE_ROWS, stop - at)
                at = stop
        return list(pieces)

    def _chosen(self, names: Iterable[str], ranges: Ranges) -> list[_Column]:
        return [self._chosen_pages(name, ranges) for name in names]

    def _chosen_pages(self, name: str, ranges: Ranges) -> _Column:
        """The pages of a column with the ranges' rows: those of all leaves must contain the same rows."""
        while True:
            pages = {leaf: self.lookup.pages[leaf].overlapping(ranges) for leaf in self.lookup.leaves[name]}
            rows = [self.lookup.pages[leaf].ranges(numbers) for leaf, numbers in pages.items()]
            ranges = merged(range_ for some in rows for range_ in some)
            if all(some == ranges for some in rows):
                return _Column(name, pages, ranges)

    @staticmethod
    def _leaves(columns: Iterable[_Column]) -> dict[int, list[int]]:
        return {leaf: numbers for column in columns for leaf, numbers in column.pages.items()}

    def _pages(self, columns: Iterable[_Column]) -> list[tuple[int, int]]:
        """The byte ranges of pages: start and size."""
        return [self._page(leaf, number) for leaf, some in self._leaves(columns).items() for number in some]

    def _page(self, leaf: int, number: int) -> tuple[int, int]:
        pages = self.lookup.pages[leaf]
        return pages.offsets[number], pages.sizes[number]

    def _dictionary(self, leaf: int) -> tuple[int, int]:
        """The byte range before the first data page: start and size."""
        start = self.lookup.group.columns[leaf].start
        return start, self.lookup.pages[leaf].offsets[0] - start

    def _values(
        self, leaf: int, numbers: Iterable[int], read: Mapping[tuple[int, int], bytes]
    ) -> tuple[int, bool]:
        """The number of values in pages, and whether they need the dictionary. The offset index must be right."""
        rows, repeated = self.lookup.pages[leaf].rows, self.lookup.footer.leaves[leaf].repeated
        total, has_dictionary = 0, False
        for number in numbers:
            page, expected = read_data_page(read[self._page(leaf, number)]), rows[number + 1] - rows[number]
            if (
                page.rows not in (None, expected)
                or page.values < expected
                or not (repeated or page.values == expected)
            ):
                raise FooterError("a page has another number of rows than the offset index")
            total += page.values
            has_dictionary |= page.has_dictionary
        return total, has_dictionary

    def _file(
        self,
        columns: Sequence[_Column],
        read: Mapping[tuple[int, int], bytes],
        values: Mapping[int, tuple[int, bool]],
    ) -> PagesFile:
        footer, group = self.lookup.footer, self.lookup.group
        chunks: list[Fields] = [column.fields for column in group.columns]
        parts: list[bytes] = []
        at = len(MAGIC)
        leaves = self._leaves(columns)
        for leaf, numbers in leaves.items():
            num_values, has_dictionary = values[leaf]
            dictionary = read[self._dictionary(leaf)] if has_dictionary else b""
            pages = [read[self._page(leaf, number)] for number in numbers]
            size = sum(map(len, pages))
            chunks[leaf] = _chunk(group.columns[leaf], at, len(dictionary), size, num_values)
            parts += [dictionary, *pages]
            at += len(dictionary) + size
        rows = count(columns[0].rows)
        fields = {**group.fields, GroupKeys.COLUMNS: chunks, GroupKeys.NUM_ROWS: rows}
        content = file_of(parts, {**footer.fields, FileKeys.NUM_ROWS: rows, FileKeys.ROW_GROUPS: [fields]})
        paths = [".".join(group.columns[leaf].path) for leaf in leaves]
        return PagesFile(pa.py_buffer(content), [column.name for column in columns], paths, columns[0].rows)


def _chunk(column: Column, at: int, dictionary: int, size: int, values: int) -> Fields:
    """A column chunk with some of its pages, at an offset of a file in memory; `dictionary` is a size in bytes."""
    meta = {field: value for field, value in column.meta.items() if field in _KEPT}
    meta[MetaKeys.NUM_VALUES] = values
    meta[MetaKeys.TOTAL_COMPRESSED_SIZE] = dictionary + size
    meta[MetaKeys.DATA_PAGE_OFFSET] = at + dictionary
    if dictionary:
        meta[MetaKeys.DICTIONARY_PAGE_OFFSET] = at
    return {ChunkKeys.FILE_OFFSET: 0, ChunkKeys.META_DATA: meta}


def read_rows(
    files: Sequence[PagesFile], ranges: Ranges, read: Callable[[PagesFile], Iterator[pa.RecordBatch]]
) -> Iterator[pa.RecordBatch]:
    """The rows of the ranges, with the columns of all files.

    Args:
        files: Files that contain these rows, among others.
        ranges: The rows of the row group.
        read: Decodes a file.
    """
    streams = [rows_at(read(file), positions(ranges, file.rows)) for file in files]
    held = [next(stream, None) for stream in streams]
    left = count(ranges)
    while left:
        batches = [batch for batch in held if batch is not None]
        rows = min((batch.num_rows for batch in batches), default=0)
        if len(batches) < len(held) or not rows:
            raise FooterError("pages contain fewer rows than the offset index declares")
        found = [
            (batch.schema.field(name), batch.column(name).slice(0, rows))
            for file, batch in zip(files, batches, strict=True)
            for name in file.columns
        ]
        fields, arrays = zip(*found, strict=True)
        yield pa.RecordBatch.from_arrays(list(arrays), schema=pa.schema(fields))
        left -= rows
        held = [
            batch.slice(rows) if batch.num_rows > rows else next(stream, None)
            for batch, stream in zip(batches, streams, strict=True)
        ]
