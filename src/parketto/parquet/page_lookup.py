"""Page indexes of one row group: where its pages are, which rows they contain, and their bounds."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import IO, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from parketto.errors import FooterError
from parketto.parquet.footer import MAGIC, ChunkKeys, FileKeys, Footer, GroupKeys, MetaKeys
from parketto.parquet.row_group_info import ColumnStats, RowGroupInfo, read_row_groups
from parketto.parquet.row_ranges import Ranges, merged
from parketto.parquet.schema import FIXED, TYPE_LENGTH, narrowed
from parketto.parquet.structure import BOUND_BYTES
from parketto.parquet.thrift import (
    BINARY,
    FALSE,
    I32,
    I64,
    LIST,
    STRUCT,
    TRUE,
    Fields,
    Shape,
    decode,
    decode_list,
    encode,
    encode_structs,
    key,
    list_head,
)
from parketto.parquet.transfer import read_ranges

_LOCATIONS, _OFFSET, _SIZE, _ROW = key(1, LIST), key(1, I64), key(2, I32), key(3, I64)
_OFFSET_INDEX: Shape = {_LOCATIONS: {}}
_NULL_PAGES, _MINIMA, _MAXIMA = (key(number, LIST) for number in (1, 2, 3))
_NULL_COUNTS, _MAX, _MIN = key(5, LIST), key(5, BINARY), key(6, BINARY)
_ZERO = b"\0"  # as an encoded integer
_GROUP_SHAPE: Shape = {GroupKeys.COLUMNS: {ChunkKeys.META_DATA: {}}}
_KEPT = (FileKeys.VERSION, FileKeys.CREATED_BY)  # what decides whether Arrow trusts bounds
_MAX_STRETCHES = 10_000  # with more, judging them takes longer than reading the row group


class FooterParts:
    """A footer of which only single row groups are decoded.

    Args:
        raw: The bytes of the footer.
        file_size: The size of the file in bytes.
    """

    def __init__(self, raw: bytes, file_size: int) -> None:
        self._fields, self._size, self._data_end = decode(raw), file_size, file_size - 8 - len(raw)
        self._groups = decode_list(self._fields.get(FileKeys.ROW_GROUPS, b"\x0c"), STRUCT)

    def __len__(self) -> int:
        return len(self._groups)

    def only(self, number: int) -> Footer:
        """The footer with one of its row groups.

        Raises:
            FooterError: It is damaged, or columns are encrypted or in other files.
        """
        group = decode(self._groups[number], _GROUP_SHAPE)
        rows = group.get(GroupKeys.NUM_ROWS, -1)
        fields = {**self._fields, FileKeys.ROW_GROUPS: [group], FileKeys.NUM_ROWS: rows}
        footer = Footer(fields, self._size, self._data_end)
        if footer.elsewhere is not None:
            raise FooterError(footer.elsewhere)
        if len(footer.row_groups[0].columns) != len(footer.leaves):
            raise FooterError("the columns of a row group do not match the schema")
        return footer


class Pages(NamedTuple):
    """The data pages of a column chunk: offsets, sizes in bytes, and first rows, with the end as the last one."""

    offsets: list[int]
    sizes: list[int]
    rows: list[int]

    def overlapping(self, ranges: Ranges) -> list[int]:
        """The numbers of the pages with rows inside of the ranges.

        >>> Pages([4, 14, 24], [10, 10, 10], [0, 5, 10, 15]).overlapping([(3, 4), (4, 6)])
        [0, 1]
        """
        found: list[int] = []
        for start, end in ranges:
            first = bisect_right(self.rows, start) - 1
            found += range(max(first, found[-1] + 1) if found else first, bisect_left(self.rows, end))
        return found

    def ranges(self, numbers: Iterable[int]) -> Ranges:
        """The rows of some pages."""
        return merged((self.rows[number], self.rows[number + 1]) for number in numbers)


class PageLookup:
    """The pages of some columns of a row group.

    Args:
        source: The file.
        footer: Its footer with only this row group.
        names: The columns: their leaves need an offset index.
        bounded: The columns whose bounds may be asked for.

    Raises:
        FooterError: A page index is missing or damaged.
    """

    def __init__(
        self, source: IO[bytes], footer: Footer, names: Collection[str], bounded: Iterable[str] = ()
    ) -> None:
        self.footer, self.group = footer, footer.row_groups[0]
        paths = [".".join(column.path) for column in self.group.columns]
        #: The leaf columns that Arrow reads for a column: `a` includes `a.b`, also if that is another column.
        self.leaves: Mapping[str, Sequence[int]] = {
            name: [at for at, path in enumerate(paths) if name in (path, path.partition(".")[0])] for name in names
        }
        found = [leaf for leaves in self.leaves.values() for leaf in leaves]
        if len(set(found)) < len(found):
            raise FooterError("a column is read along with another one, whose name begins like it")
        locations = {}
        for leaf in found:
            located = self.group.columns[leaf].offset_index
            if located is None:
                raise FooterError("a column chunk has no offset index")
            locations[leaf] = located
        bounds = {}
        for name in bounded:
            leaves = self.leaves.get(name, ())
            if len(leaves) == 1 and not footer.leaves[leaves[0]].repeated and paths[leaves[0]] == name:
                located = self.group.columns[leaves[0]].column_index
                if located is not None:
                    bounds[name] = (leaves[0], located)
        wanted = [*locations.values(), *(located for _, located in bounds.values())]
        if any(start < len(MAGIC) or size < 0 or start > footer.data_end - size for start, size in wanted):
            raise FooterError("a page index is outside of the file")
        read = read_ranges(source, wanted)
        self.pages = {leaf: self._located(leaf, read[located]) for leaf, located in locations.items()}
        self._bounds = {name: (leaf, read[located]) for name, (leaf, located) in bounds.items()}

    def _located(self, leaf: int, raw: bytes) -> Pages:
        column = self.group.columns[leaf]
        locations = decode(raw, _OFFSET_INDEX).get(_LOCATIONS, [])
        offsets, sizes, rows = (
            [location.get(field, -1) for location in locations] for field in (_OFFSET, _SIZE, _ROW)
        )
        ends = [column.start, *(offset + size for offset, size in zip(offsets, sizes, strict=True))]
        starts = [*offsets, column.start + column.size]
        in_order = all(end <= start for end, start in zip(ends, starts, strict=True))
        counted = rows[:1] == [0] and rows == sorted(rows) and rows[-1] < self.group.num_rows
        if not in_order or not counted or min(sizes) <= 0:
            raise FooterError("an offset index does not fit its column chunk")
        return Pages(offsets, sizes, [*rows, self.group.num_rows])

    def stretches(self) -> list[RowGroupInfo]:
        """The row group, cut at all page boundaries of the bounded columns: parts like row groups, with bounds.

        There are none if no column has bounds.

        Raises:
            FooterError: A column index is damaged.
        """
        try:
            found = {name: self._page_stats(leaf, raw) for name, (leaf, raw) in self._bounds.items()}
        except (IndexError, KeyError):
            raise FooterError("a column index is damaged") from None
        leaves = {name: leaf for name, (leaf, _) in self._bounds.items()}
        edges = sorted({row for leaf in leaves.values() for row in self.pages[leaf].rows})
        if len(edges) > _MAX_STRETCHES:
            return []
        at = dict.fromkeys(leaves, 0)
        stretches = []
        for start, end in pairwise(edges):
            columns = {}
            for name, leaf in leaves.items():
                at[name] = bisect_right(self.pages[leaf].rows, start, lo=at[name]) - 1
                stats = found[name][at[name]]
                columns[name] = stats if not stats.null_count else ColumnStats(None, None, end - start)
            stretches.append(RowGroupInfo(end - start, 0, columns=columns))
        return stretches

    def _page_stats(self, leaf: int, raw: bytes) -> list[ColumnStats]:
        """The bounds of each page of a column. Its null count is 0, or all of its rows, or not known exactly."""
        rows, index = self.pages[leaf].rows, decode(raw)
        minima, maxima = (decode_list(index.get(field, b"\x08"), BINARY) for field in (_MINIMA, _MAXIMA))
        kind, number, at = list_head(index.get(_NULL_PAGES, b"\x01"), 0)
        only_nulls = [value == TRUE for value in index.get(_NULL_PAGES, b"")[at : at + number]]
        if not len(minima) == len(maxima) == len(only_nulls) == len(rows) - 1 or kind not in (TRUE, FALSE):
            raise FooterError("a column index has another number of pages than the offset index")
        counts = decode_list(index[_NULL_COUNTS], I64) if _NULL_COUNTS in index else [b""] * number
        found = []
        bounds = [None if null else ends for null, *ends in zip(only_nulls, minima, maxima, strict=True)]
        for at, known in enumerate(_decoded_bounds(self.footer, leaf, bounds)):
            if only_nulls[at]:
                found.append(ColumnStats(None, None, rows[at + 1] - rows[at]))
            else:
                found.append(ColumnStats(known.min, known.max, 0 if counts[at] == _ZERO else None))
        return found


def _decoded_bounds(footer: Footer, leaf: int, bounds: Sequence[Sequence[bytes] | None]) -> Sequence[ColumnStats]:
    """The bounds of pages as values, read by Arrow like those of row groups: as such, in a footer of their own."""
    column = footer.row_groups[0].columns[leaf]
    name = column.path[0]
    schema = narrowed(footer.schema, frozenset({name.encode(errors="surrogateescape")}))
    # Arrow aborts the process on bounds of another size.
    size = BOUND_BYTES.get(column.physical_type)
    if column.physical_type == FIXED:
        size = decode(decode_list(schema, STRUCT)[1]).get(TYPE_LENGTH, -1)
    meta: Fields = {
        MetaKeys.TYPE: column.physical_type,
        MetaKeys.ENCODINGS: column.meta[MetaKeys.ENCODINGS],
        MetaKeys.PATH: column.meta[MetaKeys.PATH],
        MetaKeys.CODEC: 0,
        MetaKeys.NUM_VALUES: 1,
        MetaKeys.TOTAL_UNCOMPRESSED_SIZE: 0,
        MetaKeys.TOTAL_COMPRESSED_SIZE: 0,
        MetaKeys.DATA_PAGE_OFFSET: len(MAGIC),
    }
    groups: list[Fields] = []
    for ends in bounds:
        fits = ends is not None and all(size in (None, len(end)) for end in ends)
        chunk = {**meta, MetaKeys.STATISTICS: dict(zip((_MIN, _MAX), ends or (), strict=False)) if fits else {}}
        columns = [{ChunkKeys.FILE_OFFSET: 0, ChunkKeys.META_DATA: chunk}]
        groups.append({GroupKeys.COLUMNS: columns, GroupKeys.TOTAL_BYTE_SIZE: 0, GroupKeys.NUM_ROWS: 1})
    fields: Fields = {
        **{field: footer.fields[field] for field in _KEPT if field in footer.fields},
        FileKeys.SCHEMA: schema,
        FileKeys.NUM_ROWS: len(groups),
        FileKeys.ROW_GROUPS: groups,
    }
    if footer.column_orders is not None:
        fields[FileKeys.COLUMN_ORDERS] = encode_structs([decode_list(footer.column_orders, STRUCT)[leaf]])
    try:
        known = pq.read_metadata(pa.BufferReader(file_of([], fields)))
        return [group.columns[name] for group in read_row_groups(known, {0: name}, {name: 0})]
    except (pa.ArrowException, OSError) as error:
        raise FooterError(f"the column index of {name!r} is not readable: {error}") from error


def file_of(parts: Iterable[bytes], footer: Fields) -> bytes:
    """A Parquet file in memory: its column chunks, and its footer."""
    data = encode(footer)
    return b"".join([MAGIC, *parts, data, len(data).to_bytes(4, "little"), MAGIC])
