"""Where the column chunks of copied row groups come to lie, and what that changes in what describes them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import IO, NamedTuple, TypeAlias

from parketto.errors import FooterError
from parketto.rowgroups.compact import (
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
from parketto.rowgroups.footer import (
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
from parketto.rowgroups.pages import PageIndex, index_pages
from parketto.rowgroups.transfer import read_ranges

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
    """A range of the source that is copied in one piece."""

    start: int
    size: int


class PlacedChunk(NamedTuple):
    """A column chunk in its new place: encoded ColumnMetaData, the other fields, and its page index."""

    meta: bytes
    fields: Fields
    column_index: bytes
    offset_index: bytes


@dataclass
class PlacedGroup:
    """A row group in its new place."""

    fields: Fields
    num_rows: int
    chunks: list[PlacedChunk] = field(default_factory=list)


@dataclass
class Placement:
    """What to copy, in this order; what then to write into the footer; and where the copied bytes end."""

    runs: list[Run]
    groups: list[PlacedGroup]
    end: int
    #: Whether everything stays where it is, and nothing is copied.
    stays: bool = False


def place(
    source: IO[bytes],
    footer: Footer,
    numbers: Sequence[int],
    position: int | None,
    columns: Collection[int] | None = None,
    *,
    index_all: bool = False,
) -> Placement:
    """Work out where the row groups come to lie if they are copied to `position`; None: they stay where they are.

    Nothing is written. A row group's chunks keep the order in which they lie in the source, so that most are
    copied in one piece; only that of the first column always comes first. Bloom filters follow. `columns` are the
    numbers of those that are wanted; None: all are. With `index_all` those without a page index get one from the
    headers of their pages.
    """
    groups = [footer.row_groups[number] for number in numbers]
    expected = [(leaf.physical_type, encode_strings(leaf.path), leaf.repeated) for leaf in footer.leaves]
    for group in groups:
        _check_columns(group, expected)
    # Some writers make one of no rows, with pages that are nowhere. Nobody misses it.
    groups = [group for group in groups if group.num_rows]
    if columns is not None:
        groups = [group.narrowed(columns) for group in groups]
    chunks = [column for group in groups for column in group.columns]
    _check_pages(chunks)
    indexes = [index for column in chunks for index in (column.column_index, column.offset_index) if index]
    blooms = _bloom_filters(source, chunks, footer.data_end)
    # Apart from each other they cannot be more than the file; whatever a footer says, a copy is no larger.
    _check_apart(
        [*((column.start, column.size) for column in chunks), *indexes, *blooms.values()], footer.data_end
    )
    read = read_ranges(source, indexes)
    placement = Placement([], [], len(MAGIC) if position is None else position, position is None)
    for group in groups:
        found = {column: _index(source, column, group, read, index_all=index_all) for column in group.columns}
        _place_group(group, blooms, found, placement)
    return placement


def _index(
    source: IO[bytes], column: Column, group: RowGroup, read: dict[_Range, bytes], *, index_all: bool
) -> PageIndex:
    """The page index of a chunk as it is in the source, raw; or one that is made of its pages."""
    if column.offset_index is None and index_all:
        return index_pages(source, column, group.num_rows) or _NO_INDEX
    bounds, places = column.column_index, column.offset_index
    return PageIndex(read[bounds] if bounds else b"", read[places] if places else b"")


def _place_group(
    group: RowGroup, blooms: dict[Column, _Range], indexes: dict[Column, PageIndex], into: Placement
) -> None:
    first = group.columns[0]
    # Readers that split a file count a row group from where its first column lies: if others lay before it, the
    # middle of the row group could be behind the end of the file, and nobody would read it.
    shifts = {
        column: _add_run(into, column.start, column.size)
        for column in sorted(group.columns, key=lambda column: (column is not first, column.start))
    }
    moved_blooms: dict[Column, _Range] = {}
    for column in group.columns:
        if (bloom := blooms.get(column)) is not None:
            moved_blooms[column] = (bloom[0] + _add_run(into, *bloom), bloom[1])
    placed = PlacedGroup(_without_extension(group.fields), group.num_rows)
    del placed.fields[GroupKeys.COLUMNS]
    # Readers that split a file go by these. Not every writer gets them right, and here they are known.
    placed.fields[GroupKeys.FILE_OFFSET] = first.start + shifts[first]
    placed.fields[GroupKeys.TOTAL_COMPRESSED_SIZE] = group.total_compressed_size
    for column in group.columns:
        shift, index = shifts[column], indexes[column]
        placed.chunks.append(
            PlacedChunk(
                _moved_meta(column, shift, moved_blooms.get(column)),
                _moved_chunk(column, shift),
                index.column_index,
                _moved_index(column, shift, index.offset_index, group)
                if index.offset_index and not into.stays
                else index.offset_index,
            )
        )
    into.groups.append(placed)


def _add_run(into: Placement, start: int, size: int) -> int:
    """Copy a range next; by how much its bytes move."""
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
    # An offset that is left at 0, or points elsewhere, stands for none; a copy would give it a meaning.
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
    for place_of in (ChunkKeys.META_DATA, ChunkKeys.FILE_PATH, *_INDEX_KEYS):
        fields.pop(place_of, None)
    # Once the place of a second copy of the chunk's description, which is not copied; then the chunk's; now 0.
    offset = fields.get(ChunkKeys.FILE_OFFSET, 0)
    inside = column.start <= offset < column.start + column.size
    fields[ChunkKeys.FILE_OFFSET] = offset + shift if inside else 0
    return fields


def _moved_index(column: Column, shift: int, raw: bytes, group: RowGroup) -> bytes:
    index = decode(raw, _OFFSET_INDEX_SHAPE)
    start, end = column.meta[MetaKeys.DATA_PAGE_OFFSET], column.start + column.size
    pages = index.get(_PAGE_LOCATIONS)
    if not pages or pages[0].get(_PAGE_ROW) != 0:
        raise FooterError("the index of a column's pages does not begin with the first row")
    last_row = 0
    for page in pages:
        offset, size, row = page.get(_PAGE_OFFSET, -1), page.get(_PAGE_SIZE, -1), page.get(_PAGE_ROW, -1)
        if size < 0 or not start <= offset <= end - size or not last_row <= row < group.num_rows:
            raise FooterError("the index of a column's pages points out of the column")
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
        raise FooterError(f"a row group has {len(group.columns)} columns, and the schema has {len(expected)}")
    for column, (physical_type, path, repeated) in zip(group.columns, expected, strict=True):
        meta = column.meta
        if meta[MetaKeys.TYPE] != physical_type or meta.get(MetaKeys.PATH) != path:
            raise FooterError("the columns of a row group are not those of the schema")
        if meta[MetaKeys.NUM_VALUES] != group.num_rows and not (repeated and group.num_rows):
            raise FooterError(f"a column has {meta[MetaKeys.NUM_VALUES]} values in {group.num_rows} rows")


def _check_pages(columns: Iterable[Column]) -> None:
    for column in columns:
        if column.meta[MetaKeys.DATA_PAGE_OFFSET] >= column.start + column.size:
            raise FooterError("the first page of a column is not in it")


def _check_apart(ranges: list[_Range], data_end: int) -> None:
    end = len(MAGIC)
    for start, size in sorted(ranges):
        _check_inside(start, size, data_end)
        if start < end:
            raise FooterError("columns, indexes or Bloom filters overlap")
        end = start + size


def _check_inside(start: int, size: int, data_end: int) -> None:
    if start < len(MAGIC) or size < 0 or start > data_end - size:
        raise FooterError(f"{size} bytes at byte {start} are not in the file")


def _without_extension(fields: Fields) -> Fields:
    copied = fields.copy()
    if copied and max(copied) >= _EXTENSION:
        copied = {place_of: value for place_of, value in fields.items() if place_of < _EXTENSION}
    return copied
