"""New offsets of copied column chunks, and the metadata and page indexes that change with them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import IO, NamedTuple, TypeAlias

from parketto.errors import FooterError
from parketto.parquet.footer import (
    EXTENSION_FIELD,
    MAGIC,
    ChunkKeys,
    Column,
    Footer,
    GroupKeys,
    MetaKeys,
    RowGroup,
    read_exactly,
)
from parketto.parquet.page_index import PageIndex, index_pages
from parketto.parquet.thrift import (
    I32,
    I64,
    LIST,
    Fields,
    Shape,
    decode,
    decode_first,
    encode,
    encode_strings,
    key,
)
from parketto.parquet.transfer import read_ranges

_PAGE_LOCATIONS, _PAGE_OFFSET, _PAGE_SIZE, _PAGE_ROW = key(1, LIST), key(1, I64), key(2, I32), key(3, I64)
_OFFSET_INDEX_SHAPE: Shape = {_PAGE_LOCATIONS: {}}
_BLOOM_BYTES = key(1, I32)
_BLOOM_HEADER_BYTES = 256
_EXTENSION = EXTENSION_FIELD << 4
_Range: TypeAlias = tuple[int, int]  # start and size
_INDEX_KEYS = (
    ChunkKeys.OFFSET_INDEX_OFFSET,
    ChunkKeys.OFFSET_INDEX_LENGTH,
    ChunkKeys.COLUMN_INDEX_OFFSET,
    ChunkKeys.COLUMN_INDEX_LENGTH,
)


_NO_INDEX = PageIndex(b"", b"")


class Run(NamedTuple):
    """A byte range of the source that is copied in one piece."""

    start: int
    size: int


class MovedChunk(NamedTuple):
    """A column chunk at its new offset: encoded ColumnMetaData, the other fields, and its page index."""

    meta: bytes
    fields: Fields
    column_index: bytes
    offset_index: bytes


@dataclass
class MovedRowGroup:
    """A row group at its new offset."""

    fields: Fields
    num_rows: int
    chunks: list[MovedChunk] = field(default_factory=list)


@dataclass
class CopyPlan:
    """The byte ranges to copy, in order; their row groups for the footer; and the offset where the copy ends."""

    runs: list[Run]
    groups: list[MovedRowGroup]
    end: int
    #: Whether all offsets stay the same, and nothing is copied.
    stays: bool = False


def compute_offsets(
    source: IO[bytes],
    footer: Footer,
    numbers: Sequence[int],
    position: int | None,
    columns: Collection[int] | None = None,
    *,
    index_all: bool = False,
) -> CopyPlan:
    """Compute the offsets of row groups that are copied to `position`; None: they keep their offsets.

    Nothing is written. The chunks of a row group keep their order in the source, so that most are copied in one
    piece; only the chunk of the first column always comes first. Bloom filters follow. `columns` are the leaf
    numbers to copy; None: all. With `index_all`, chunks without a page index get one from their page headers.
    """
    groups = [footer.row_groups[number] for number in numbers]
    expected = [(leaf.physical_type, encode_strings(leaf.path), leaf.repeated) for leaf in footer.leaves]
    for group in groups:
        _check_columns(group, expected)
    # Some writers add row groups without rows, whose page offsets are invalid. They can be dropped.
    groups = [group for group in groups if group.num_rows]
    if columns is not None:
        groups = [group.narrowed(columns) for group in groups]
    chunks = [column for group in groups for column in group.columns]
    _check_pages(chunks)
    indexes = [index for column in chunks for index in (column.column_index, column.offset_index) if index]
    blooms = _bloom_filters(source, chunks, footer.data_end)
    # Without overlaps, a copy cannot become larger than the file, whatever its footer declares.
    _check_overlaps(
        [*((column.start, column.size) for column in chunks), *indexes, *blooms.values()], footer.data_end
    )
    read = read_ranges(source, indexes)
    placement = CopyPlan([], [], len(MAGIC) if position is None else position, position is None)
    for group in groups:
        found = {column: _index(source, column, group, read, index_all=index_all) for column in group.columns}
        _add_group(group, blooms, found, placement)
    return placement


def _index(
    source: IO[bytes], column: Column, group: RowGroup, read: dict[_Range, bytes], *, index_all: bool
) -> PageIndex:
    """The raw page index of a chunk in the source, or one built from its page headers."""
    if column.offset_index is None and index_all:
        return index_pages(source, column, group.num_rows) or _NO_INDEX
    bounds, locations = column.column_index, column.offset_index
    return PageIndex(read[bounds] if bounds else b"", read[locations] if locations else b"")


def _add_group(
    group: RowGroup, blooms: dict[Column, _Range], indexes: dict[Column, PageIndex], into: CopyPlan
) -> None:
    first = group.columns[0]
    # Readers that split files take the offset of the first column as the start of the row group. If other chunks
    # preceded it, the computed middle could be beyond the end of the file, and no split would read the row group.
    shifts = {
        column: _add_run(into, column.start, column.size)
        for column in sorted(group.columns, key=lambda column: (column is not first, column.start))
    }
    moved_blooms: dict[Column, _Range] = {}
    for column in group.columns:
        if (bloom := blooms.get(column)) is not None:
            moved_blooms[column] = (bloom[0] + _add_run(into, *bloom), bloom[1])
    placed = MovedRowGroup(_without_extension(group.fields), group.num_rows)
    del placed.fields[GroupKeys.COLUMNS]
    # Readers that split files rely on these fields, and not every writer sets them correctly.
    placed.fields[GroupKeys.FILE_OFFSET] = first.start + shifts[first]
    placed.fields[GroupKeys.TOTAL_COMPRESSED_SIZE] = group.total_compressed_size
    for column in group.columns:
        shift, index = shifts[column], indexes[column]
        placed.chunks.append(
            MovedChunk(
                _moved_meta(column, shift, moved_blooms.get(column)),
                _moved_chunk(column, shift),
                index.column_index,
                _moved_index(column, shift, index.offset_index, group)
                if index.offset_index and not into.stays
                else index.offset_index,
            )
        )
    into.groups.append(placed)


def _add_run(into: CopyPlan, start: int, size: int) -> int:
    """Add a range to copy; return by how many bytes it moves."""
    if into.stays:
        into.end = max(into.end, start + size)
        return 0
    shift = into.end - start
    if size:
        if into.runs and sum(into.runs[-1]) == start:
            into.runs[-1] = Run(into.runs[-1].start, into.runs[-1].size + size)
        else:
            into.runs.append(Run(start, size))
        into.end += size
    return shift


def _moved_meta(column: Column, shift: int, bloom: _Range | None) -> bytes:
    meta = _without_extension(column.meta)
    start, end = column.start, column.start + column.size
    meta[MetaKeys.DATA_PAGE_OFFSET] += shift
    # An offset that is 0 or points elsewhere means none; shifting it could make it look valid.
    dictionary = meta.pop(MetaKeys.DICTIONARY_PAGE_OFFSET, None)
    if dictionary == start:
        meta[MetaKeys.DICTIONARY_PAGE_OFFSET] = dictionary + shift
    index_page = meta.pop(MetaKeys.INDEX_PAGE_OFFSET, None)
    if index_page is not None and start <= index_page < end:
        meta[MetaKeys.INDEX_PAGE_OFFSET] = index_page + shift
    meta.pop(MetaKeys.BLOOM_OFFSET, None)
    meta.pop(MetaKeys.BLOOM_LENGTH, None)
    if bloom is not None:
        meta[MetaKeys.BLOOM_OFFSET], meta[MetaKeys.BLOOM_LENGTH] = bloom
    return encode(meta)


def _moved_chunk(column: Column, shift: int) -> Fields:
    fields = _without_extension(column.fields)
    for field_key in (ChunkKeys.META_DATA, ChunkKeys.FILE_PATH, *_INDEX_KEYS):
        fields.pop(field_key, None)
    # Formerly the offset of a second copy of the metadata, which is not copied; then that of the chunk; now 0.
    offset = fields.get(ChunkKeys.FILE_OFFSET, 0)
    inside = column.start <= offset < column.start + column.size
    fields[ChunkKeys.FILE_OFFSET] = offset + shift if inside else 0
    return fields


def _moved_index(column: Column, shift: int, raw: bytes, group: RowGroup) -> bytes:
    index = decode(raw, _OFFSET_INDEX_SHAPE)
    start, end = column.meta[MetaKeys.DATA_PAGE_OFFSET], column.start + column.size
    pages = index.get(_PAGE_LOCATIONS)
    if not pages or pages[0].get(_PAGE_ROW) != 0:
        raise FooterError("an offset index does not begin with the first row")
    last_row = 0
    for page in pages:
        offset, size, row = page.get(_PAGE_OFFSET, -1), page.get(_PAGE_SIZE, -1), page.get(_PAGE_ROW, -1)
        if size < 0 or not start <= offset <= end - size or not last_row <= row < group.num_rows:
            raise FooterError("an offset index points outside of its column chunk")
        page[_PAGE_OFFSET] = offset + shift
        last_row = row
    return encode(_without_extension(index))


def _bloom_filters(source: IO[bytes], columns: Iterable[Column], data_end: int) -> dict[Column, _Range]:
    found: dict[Column, _Range] = {}
    for column in columns:
        if (bloom := column.bloom_filter) is not None:
            found[column] = _bloom_range(source, *bloom, data_end)
    return found


def _bloom_range(source: IO[bytes], offset: int, size: int | None, data_end: int) -> _Range:
    if size is None:
        _check_inside(offset, 0, data_end)
        head = read_exactly(source, offset, min(_BLOOM_HEADER_BYTES, data_end - offset))
        header, header_bytes = decode_first(head)
        size = header_bytes + header.get(_BLOOM_BYTES, -1)
        if size < header_bytes:
            raise FooterError("a Bloom filter has no valid size")
    return offset, size


def _check_columns(group: RowGroup, expected: list[tuple[int, bytes, bool]]) -> None:
    if len(group.columns) != len(expected) or not expected:
        raise FooterError(f"a row group has {len(group.columns)} columns, the schema has {len(expected)}")
    for column, (physical_type, path, repeated) in zip(group.columns, expected, strict=True):
        meta = column.meta
        if meta[MetaKeys.TYPE] != physical_type or meta.get(MetaKeys.PATH) != path:
            raise FooterError("the columns of a row group do not match the schema")
        if meta[MetaKeys.NUM_VALUES] != group.num_rows and not (repeated and group.num_rows):
            raise FooterError(f"a column chunk has {meta[MetaKeys.NUM_VALUES]} values in {group.num_rows} rows")


def _check_pages(columns: Iterable[Column]) -> None:
    for column in columns:
        if column.meta[MetaKeys.DATA_PAGE_OFFSET] >= column.start + column.size:
            raise FooterError("the first data page of a column is outside of its column chunk")


def _check_overlaps(ranges: list[_Range], data_end: int) -> None:
    end = len(MAGIC)
    for start, size in sorted(ranges):
        _check_inside(start, size, data_end)
        if start < end:
            raise FooterError("column chunks, page indexes or Bloom filters overlap")
        end = start + size


def _check_inside(start: int, size: int, data_end: int) -> None:
    if start < len(MAGIC) or size < 0 or start > data_end - size:
        raise FooterError(f"{size} bytes at byte {start} are outside of the file")


def _without_extension(fields: Fields) -> Fields:
    copied = fields.copy()
    if copied and max(copied) >= _EXTENSION:
        copied = {field_key: value for field_key, value in fields.items() if field_key < _EXTENSION}
    return copied
