"""Page indexes built from page headers, for files whose writer made none."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from typing import IO, NamedTuple

from parketto.errors import FooterError
from parketto.parquet.footer import Column, MetaKeys, read_exactly
from parketto.parquet.thrift import (
    BINARY,
    I32,
    I64,
    LIST,
    STRUCT,
    Fields,
    decode,
    decode_first,
    encode,
    encode_booleans,
    encode_integers,
    encode_strings,
    encode_structs,
    key,
)

_HEADER_BYTES = 256  # first read; enough for a page header without long bounds
_MAX_HEADER_BYTES = 1024 * 1024  # a larger page header is taken for damage
_MAX_BOUND_BYTES = 4096  # with longer bounds, reading the index costs more than it saves

_DATA_PAGE, _DICTIONARY_PAGE, _DATA_PAGE_V2 = 0, 2, 3
_KIND, _SIZE = key(1, I32), key(3, I32)
_HEADERS = {_DATA_PAGE: key(5, STRUCT), _DATA_PAGE_V2: key(8, STRUCT)}
_STATISTICS = {_DATA_PAGE: key(5, STRUCT), _DATA_PAGE_V2: key(8, STRUCT)}
_ENCODINGS, _DICTIONARY_ENCODINGS = {_DATA_PAGE: key(2, I32), _DATA_PAGE_V2: key(4, I32)}, frozenset({2, 8})
_VALUES, _ROWS_V2 = key(1, I32), key(3, I32)
_NULLS, _MAX, _MIN = key(3, I64), key(5, BINARY), key(6, BINARY)
_LOCATION = (key(1, I64), key(2, I32), key(3, I64))
_LOCATIONS = key(1, LIST)
_UNORDERED = 0
# Physical types whose bounds have an order that all readers share: neither INT96 nor FIXED_LEN_BYTE_ARRAY.
_ORDERED_TYPES = frozenset({0, 1, 2, 4, 5, 6})
_FLOATS = {4: "<f", 5: "<d"}


class PageIndex(NamedTuple):
    """The encoded column index and offset index of a column chunk; the column index may be empty."""

    column_index: bytes
    offset_index: bytes


class _Page(NamedTuple):
    offset: int
    size: int
    kind: int
    header: Fields


def index_pages(source: IO[bytes], column: Column, num_rows: int) -> PageIndex | None:
    """The page index of a column chunk, built from its page headers; None if they do not declare row counts.

    Args:
        source: The file.
        column: The column chunk.
        num_rows: The number of rows in its row group.

    Raises:
        FooterError: The pages contradict the footer.
    """
    locations, bounds, first_row = [], [], 0
    for page in _pages(source, column):
        if page.kind == _DICTIONARY_PAGE:
            continue
        data_header = decode(page.header[_HEADERS[page.kind]])
        values = data_header.get(_VALUES, -1)
        rows = data_header.get(_ROWS_V2, -1) if page.kind == _DATA_PAGE_V2 else values
        if rows < 0 or values < 0:
            raise FooterError("a page header does not declare its number of values or rows")
        locations.append(encode(dict(zip(_LOCATION, (page.offset, page.size, first_row), strict=True))))
        first_row += rows
        bounds.append((values, decode(data_header.get(_STATISTICS[page.kind], b"\0"))))
    # V1 page headers count values, not rows: for a repeated column they do not give row numbers.
    if first_row != num_rows or not locations:
        return None
    offset_index = encode({_LOCATIONS: encode_structs(locations)})
    return PageIndex(_column_index(bounds, column.physical_type), offset_index)


def _pages(source: IO[bytes], column: Column) -> Iterator[_Page]:
    at, end = column.start, column.start + column.size
    while at < end:
        header, size = read_page_header(source, at, end)
        kind, size = header.get(_KIND), size + header.get(_SIZE, -1)
        if kind not in (_DICTIONARY_PAGE, *_HEADERS) or size <= 0 or at + size > end:
            raise FooterError("a page has an unknown type or does not fit into its column chunk")
        if kind in _HEADERS and (_HEADERS[kind] not in header or at < column.meta[MetaKeys.DATA_PAGE_OFFSET]):
            raise FooterError("a page lacks its data page header or precedes the first data page")
        yield _Page(at, size, kind, header)
        at += size


def read_page_header(source: IO[bytes], start: int, end: int) -> tuple[Fields, int]:
    """The page header at `start`, and its size in bytes."""
    tried = _HEADER_BYTES
    while True:
        size = min(tried, end - start)
        try:
            return decode_first(read_exactly(source, start, size))
        except FooterError:
            if size < tried or tried > _MAX_HEADER_BYTES:
                raise
        tried *= 16


class DataPage(NamedTuple):
    """What the header of a data page declares; the number of rows is None if it does not."""

    values: int
    rows: int | None
    has_dictionary: bool


def read_data_page(page: bytes) -> DataPage:
    """The header of a data page, given with its content.

    Raises:
        FooterError: The bytes are not one data page.
    """
    header, size = decode_first(page)
    kind = header.get(_KIND)
    if kind not in _HEADERS or _HEADERS[kind] not in header or size + header.get(_SIZE, -1) != len(page):
        raise FooterError("an offset index does not point to data pages")
    data_header = decode(header[_HEADERS[kind]])
    rows = data_header.get(_ROWS_V2, -1) if kind == _DATA_PAGE_V2 else None
    return DataPage(data_header.get(_VALUES, -1), rows, data_header.get(_ENCODINGS[kind]) in _DICTIONARY_ENCODINGS)


def _column_index(pages: list[tuple[int, Fields]], physical_type: int) -> bytes:
    """The encoded column index; empty if a page lacks bounds or a null count."""
    nulls, minima, maxima, counts = [], [], [], []
    for values, statistics in pages:
        count = statistics.get(_NULLS)
        low, high = _bounds(statistics, physical_type)
        empty = count is not None and count == values
        if count is None or not (empty or (low is not None and high is not None)):
            return b""
        nulls.append(empty)
        minima.append(b"" if empty or low is None else low)
        maxima.append(b"" if empty or high is None else high)
        counts.append(count)
    return encode(
        {
            key(1, LIST): encode_booleans(nulls),
            key(2, LIST): encode_strings(minima),
            key(3, LIST): encode_strings(maxima),
            key(4, I32): _UNORDERED,
            key(5, LIST): encode_integers(counts, I64),
        }
    )


def _bounds(statistics: Fields, physical_type: int) -> tuple[bytes | None, bytes | None]:
    low, high = statistics.get(_MIN), statistics.get(_MAX)
    if low is None or high is None or physical_type not in _ORDERED_TYPES:
        return None, None
    if max(len(low), len(high)) > _MAX_BOUND_BYTES:
        return None, None
    layout = _FLOATS.get(physical_type)
    if layout is None:
        return low, high
    if len(low) != struct.calcsize(layout) or len(high) != len(low):
        return None, None
    (minimum,), (maximum,) = struct.unpack(layout, low), struct.unpack(layout, high)
    if math.isnan(minimum) or math.isnan(maximum):
        return None, None
    # The format asks for -0.0 as minimum and 0.0 as maximum, so that no zero is skipped.
    return struct.pack(layout, minimum or -0.0), struct.pack(layout, maximum or 0.0)
