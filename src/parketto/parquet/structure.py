"""Contradictions between a Parquet footer, its file and its pages, as damaged bytes cause them.

A footer is checked before Arrow uses it: Arrow aborts the process on types that do not exist.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import IO, NamedTuple

from parketto.errors import FooterError
from parketto.parquet.compatible import has_short_chunks
from parketto.parquet.footer import MAGIC, Column, Footer, MetaKeys, RowGroup, read_exactly
from parketto.parquet.page_index import read_page_header
from parketto.parquet.schema import Leaf, read_schema
from parketto.parquet.thrift import (
    BINARY,
    I32,
    I64,
    LIST,
    STRUCT,
    Fields,
    Shape,
    decode,
    encode_strings,
    key,
    list_head,
    varint,
)

_PHYSICAL_TYPES = range(8)
_CODECS, _UNCOMPRESSED_CODEC = range(8), 0
_ENCODINGS = frozenset({0, 2, 3, 4, 5, 6, 7, 8, 9, 10})
#: Bytes of a bound, by physical type; the other types have values of any length.
BOUND_BYTES = {0: 1, 1: 4, 2: 8, 3: 12, 4: 4, 5: 8}
# Minimum bytes of a dictionary value, by physical type. Arrow allocates memory for as many as a page declares.
_MIN_VALUE_BYTES = (0, 4, 8, 12, 4, 8, 4, 0)
_NULL_COUNT = key(3, I64)
BYTE_ARRAY = 6
_UNENCODED_BYTES, _REPETITIONS, _DEFINITIONS = key(1, I64), key(2, LIST), key(3, LIST)
_BOUNDS = (key(1, BINARY), key(2, BINARY), key(5, BINARY), key(6, BINARY))

_KIND, _UNCOMPRESSED, _COMPRESSED, _CHECKSUM = (key(number, I32) for number in (1, 2, 3, 4))
_DATA_PAGE, _DICTIONARY_PAGE, _DATA_PAGE_V2 = 0, 2, 3
_PAGE_KINDS = range(4)
_PAGE_HEADERS = {_DATA_PAGE: key(5, STRUCT), _DICTIONARY_PAGE: key(7, STRUCT), _DATA_PAGE_V2: key(8, STRUCT)}
_PAGE_VALUES, _PAGE_ROWS = key(1, I32), key(3, I32)
_PAGE_ENCODINGS = {_DATA_PAGE: key(2, I32), _DATA_PAGE_V2: key(4, I32)}
_DICTIONARY_ENCODINGS = frozenset({2, 8})
# A larger page must not exceed the uncompressed size of its column chunk in the footer: Arrow allocates it.
_MAX_PAGE_BYTES = 64 * 1024 * 1024
_READ_BYTES = 4 * 1024 * 1024  # at most this much of a page is in memory while its checksum is computed
_LOCATIONS, _LOCATION_OFFSET, _LOCATION_SIZE = key(1, LIST), key(1, I64), key(2, I32)
_OFFSET_INDEX: Shape = {_LOCATIONS: {}}


class Problem(NamedTuple):
    """A contradiction in a file; None where it concerns the whole file or row group."""

    row_group: int | None
    column: str | None
    reason: str


def column_name(leaf: Leaf) -> str:
    """The name of a leaf column as reports show it.

    >>> column_name(Leaf((b"trade", b"price"), 5, False, False))
    'trade.price'
    """
    return ".".join(name.decode(errors="replace") for name in leaf.path)


def footer_problems(footer: Footer) -> list[Problem]:
    """All contradictions of a footer with its schema and with the size of its file; empty if it is sound."""
    try:
        leaves, levels = footer.leaves, read_schema(footer.schema).levels
    except FooterError as error:
        return [Problem(None, None, str(error))]
    if footer.elsewhere is not None:
        return [Problem(None, None, footer.elsewhere)]
    unknown = [leaf for leaf in leaves if leaf.physical_type not in _PHYSICAL_TYPES]
    if unknown:
        return [Problem(None, column_name(leaf), f"unknown type {leaf.physical_type}") for leaf in unknown]
    found: list[Problem] = []
    for number, group in enumerate(footer.row_groups):
        if len(group.columns) != len(leaves):
            count = f"the row group has {len(group.columns)} columns, the schema has {len(leaves)}"
            found.append(Problem(number, None, count))
            continue
        for column, leaf, highest in zip(group.columns, leaves, levels, strict=True):
            reason = _column_problem(column, leaf, group, footer) or _histogram_problem(column, leaf, highest)
            if reason is not None:
                found.append(Problem(number, column_name(leaf), reason))
    return found or _overlaps(footer)


class ChunkPages(NamedTuple):
    """The pages of a column chunk: their number, and whether all data pages are dictionary-encoded."""

    number: int
    only_dictionary: bool


def check_pages(source: IO[bytes], footer: Footer, number: int, position: int) -> ChunkPages:
    """Read the page headers of a column chunk and verify the checksums of its pages.

    Args:
        source: The file.
        footer: Its footer, which has no `footer_problems`.
        number: The number of the row group.
        position: The number of the leaf column.

    Raises:
        FooterError: The pages contradict the footer or their checksums; the message says where.
    """
    group, leaf = footer.row_groups[number], footer.leaves[position]
    column = group.columns[position]
    if has_short_chunks(footer):  # its pages end beyond the size in the footer
        return ChunkPages(0, only_dictionary=False)
    values = rows = 0
    encodings = set()
    locations: list[tuple[int, int]] = []
    pages = 0
    for page in _pages(source, column):
        pages += 1
        page.verify_checksum(source)
        if page.kind not in (_DATA_PAGE, _DATA_PAGE_V2):
            continue
        locations.append((page.offset, page.header_bytes + page.body_bytes))
        encodings.add(page.type_header.get(_PAGE_ENCODINGS[page.kind]))
        values += page.type_header.get(_PAGE_VALUES, 0)
        rows += page.type_header.get(_PAGE_ROWS, 0) if page.kind == _DATA_PAGE_V2 else 0
    if values != column.num_values:
        raise FooterError(f"its pages contain {values} values, the footer declares {column.num_values}")
    if rows not in (0, group.num_rows) and not leaf.repeated:
        raise FooterError(f"its pages contain {rows} rows, the footer declares {group.num_rows}")
    _check_offset_index(source, column, locations)
    return ChunkPages(pages, encodings <= _DICTIONARY_ENCODINGS)


class _Page(NamedTuple):
    offset: int
    header_bytes: int
    body_bytes: int
    kind: int
    type_header: Fields
    checksum: int | None

    def verify_checksum(self, source: IO[bytes]) -> None:
        if self.checksum is None:
            return
        found, at, missing = 0, self.offset + self.header_bytes, self.body_bytes
        while missing:
            size = min(missing, _READ_BYTES)
            found = zlib.crc32(read_exactly(source, at, size), found)
            at, missing = at + size, missing - size
        if found != self.checksum & 0xFFFFFFFF:
            raise FooterError(f"the page at byte {self.offset} does not match its checksum (CRC-32)")


def _pages(source: IO[bytes], column: Column) -> Iterator[_Page]:
    at, end = column.start, column.start + column.size
    most = max(_MAX_PAGE_BYTES, column.meta.get(MetaKeys.TOTAL_UNCOMPRESSED_SIZE, 0))
    while at < end:
        try:
            header, header_bytes = read_page_header(source, at, end)
        except FooterError as error:
            raise FooterError(f"the page header at byte {at} is damaged: {error}") from error
        kind, body_bytes = header.get(_KIND, -1), header.get(_COMPRESSED, -1)
        type_header: bytes = header.get(_PAGE_HEADERS.get(kind, -1), b"" if kind in _PAGE_HEADERS else b"\0")
        wrong = (
            kind not in _PAGE_KINDS
            or not type_header
            or (kind == _DICTIONARY_PAGE and at != column.start)
            or not 0 <= header.get(_UNCOMPRESSED, -1) <= most
        )
        if wrong:
            raise FooterError(f"the page header at byte {at} is damaged")
        if column.codec == _UNCOMPRESSED_CODEC and body_bytes != header[_UNCOMPRESSED]:
            raise FooterError(f"the page header at byte {at} declares two sizes for an uncompressed page")
        if not 0 <= body_bytes <= end - at - header_bytes:
            raise FooterError(f"the page at byte {at} does not fit into its column chunk")
        fields = decode(type_header)
        values = fields.get(_PAGE_VALUES, -1)
        if kind in _PAGE_HEADERS and values < 0:
            raise FooterError(f"the page header at byte {at} does not declare its number of values")
        if kind == _DICTIONARY_PAGE and values * _MIN_VALUE_BYTES[column.physical_type] > header[_UNCOMPRESSED]:
            raise FooterError(f"the dictionary page at byte {at} is too small for {values} values")
        yield _Page(at, header_bytes, body_bytes, kind, fields, header.get(_CHECKSUM))
        at += header_bytes + body_bytes


def _check_offset_index(source: IO[bytes], column: Column, locations: list[tuple[int, int]]) -> None:
    if column.offset_index is None:
        return
    start, size = column.offset_index
    try:
        index = decode(read_exactly(source, start, size), _OFFSET_INDEX)
    except FooterError as error:
        raise FooterError(f"its offset index is damaged: {error}") from error
    listed = [(page.get(_LOCATION_OFFSET), page.get(_LOCATION_SIZE)) for page in index.get(_LOCATIONS, ())]
    if listed != locations:
        raise FooterError("its offset index does not match its pages")


def _column_problem(column: Column, leaf: Leaf, group: RowGroup, footer: Footer) -> str | None:
    meta = column.meta
    if meta[MetaKeys.TYPE] != leaf.physical_type or meta.get(MetaKeys.PATH, b"") not in (
        b"",
        encode_strings(leaf.path),
    ):
        return "the column chunk does not match the schema's column at this position"
    if meta[MetaKeys.CODEC] not in _CODECS:
        return f"unknown codec {meta[MetaKeys.CODEC]}"
    if not _known_encodings(meta.get(MetaKeys.ENCODINGS, b"\x05")):
        return "unknown encodings"
    if meta[MetaKeys.NUM_VALUES] != group.num_rows and not (leaf.repeated and group.num_rows):
        return f"{meta[MetaKeys.NUM_VALUES]} values in a row group of {group.num_rows} rows"
    return _statistics_problem(column, leaf) or (_range_problem(column, footer) if group.num_rows else None)


def _range_problem(column: Column, footer: Footer) -> str | None:
    if not _is_inside(column.start, column.size, footer):
        return (
            f"its pages, {column.size} bytes at byte {column.start}, are outside of the "
            f"{footer.data_end} bytes of data in the file"
        )
    if not column.start <= column.meta[MetaKeys.DATA_PAGE_OFFSET] < column.start + column.size:
        return "its first data page is outside of the column chunk"
    for what, index in (("offset", column.offset_index), ("column", column.column_index)):
        if index is not None and not _is_inside(*index, footer):
            return f"its {what} index is outside of the file"
    if column.bloom_filter is not None:
        offset, size = column.bloom_filter
        if not _is_inside(offset, size or 0, footer):
            return "its Bloom filter is outside of the file"
    return None


def _is_inside(start: int, size: int, footer: Footer) -> bool:
    return start >= len(MAGIC) and size >= 0 and start <= footer.data_end - size


def _statistics_problem(column: Column, leaf: Leaf) -> str | None:
    raw = column.meta.get(MetaKeys.STATISTICS)
    if raw is None:
        return None
    try:
        statistics = decode(raw)
    except FooterError as error:
        return f"its statistics are damaged: {error}"
    if not 0 <= statistics.get(_NULL_COUNT, 0) <= column.num_values:
        return f"its statistics declare {statistics[_NULL_COUNT]} nulls of {column.num_values} values"
    expected = BOUND_BYTES.get(leaf.physical_type)
    if expected is not None and any(len(statistics.get(bound, b"")) not in (0, expected) for bound in _BOUNDS):
        return "its bounds have the wrong size for the type"
    return None


def _histogram_problem(column: Column, leaf: Leaf, levels: tuple[int, int]) -> str | None:
    raw = column.meta.get(MetaKeys.SIZE_STATISTICS)
    if raw is None:
        return None
    try:
        sizes = decode(raw)
        counts = [list_head(sizes[field], 0)[1] if field in sizes else 0 for field in (_DEFINITIONS, _REPETITIONS)]
    except (FooterError, IndexError):
        return "its size statistics are damaged"
    wrong = any(count not in (0, level + 1) for count, level in zip(counts, levels, strict=True))
    if wrong or (_UNENCODED_BYTES in sizes and leaf.physical_type != BYTE_ARRAY):
        return "its size statistics do not match the schema"
    return None


def _known_encodings(raw: bytes) -> bool:
    try:
        kind, count, at = list_head(raw, 0)
        for _ in range(count):
            value, at = varint(raw, at)
            if kind != I32 or value >> 1 not in _ENCODINGS or value & 1:
                return False
    except (FooterError, IndexError):
        return False
    return True


def _overlaps(footer: Footer) -> list[Problem]:
    chunks = sorted(
        (column.start, column.size, number, position)
        for number, group in enumerate(footer.row_groups)
        if group.num_rows
        for position, column in enumerate(group.columns)
    )
    found, end = [], 0
    for start, size, number, position in chunks:
        if start < end:
            name = column_name(footer.leaves[position])
            found.append(Problem(number, name, "its pages overlap those of another column chunk"))
        end = max(end, start + size)
    return found
