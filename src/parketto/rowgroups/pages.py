"""Page indexes out of the headers of the pages themselves, for files whose writer made none."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from typing import IO, NamedTuple

from parketto.errors import FooterError
from parketto.rowgroups.compact import (
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
from parketto.rowgroups.footer import Column, MetaKeys, read_exactly

# The bytes of a header without long bounds. One of more than the most is none.
_HEADER_BYTES = 256
_MOST_HEADER_BYTES = 1024 * 1024
# Longer bounds would make indexes that are read for less than they cost.
_MOST_BOUND_BYTES = 4096

_DATA_PAGE, _DICTIONARY_PAGE, _DATA_PAGE_V2 = 0, 2, 3
_KIND, _SIZE, _CHECKSUM = key(1, I32), key(3, I32), key(4, I32)
_HEADERS = {_DATA_PAGE: key(5, STRUCT), _DATA_PAGE_V2: key(8, STRUCT)}
_STATISTICS = {_DATA_PAGE: key(5, STRUCT), _DATA_PAGE_V2: key(8, STRUCT)}
_VALUES, _ROWS_V2 = key(1, I32), key(3, I32)
_NULLS, _MAX, _MIN = key(3, I64), key(5, BINARY), key(6, BINARY)
_LOCATION = (key(1, I64), key(2, I32), key(3, I64))
_LOCATIONS = key(1, LIST)
_UNORDERED = 0
# Types whose bounds are in an order that all agree on: not INT96, and not what stands in bytes of fixed length.
_ORDERED_TYPES = frozenset({0, 1, 2, 4, 5, 6})
_FLOATS = {4: "<f", 5: "<d"}


class PageIndex(NamedTuple):
    """Both indexes of a column chunk, encoded; of bounds there may be none."""

    column_index: bytes
    offset_index: bytes


class _Page(NamedTuple):
    offset: int
    size: int
    kind: int
    header: Fields


def has_checksums(source: IO[bytes], start: int, end: int) -> bool:
    """Whether the page that begins there has a checksum. Writers give one to all pages or to none."""
    return _CHECKSUM in read_page_header(source, start, end)[0]


def index_pages(source: IO[bytes], column: Column, num_rows: int) -> PageIndex | None:
    """The page index of a column chunk, as far as its pages tell; None if they do not tell their rows.

    Args:
        source: The file.
        column: The column chunk.
        num_rows: The rows of its row group.

    Raises:
        FooterError: The pages are not what the footer says.
    """
    locations, bounds, first_row = [], [], 0
    for page in _pages(source, column):
        if page.kind == _DICTIONARY_PAGE:
            continue
        described = decode(page.header[_HEADERS[page.kind]])
        values = described.get(_VALUES, -1)
        rows = described.get(_ROWS_V2, -1) if page.kind == _DATA_PAGE_V2 else values
        if rows < 0 or values < 0:
            raise FooterError("a page does not say how much is in it")
        locations.append(encode(dict(zip(_LOCATION, (page.offset, page.size, first_row), strict=True))))
        first_row += rows
        bounds.append((values, decode(described.get(_STATISTICS[page.kind], b"\0"))))
    # Several values of one row count as rows here: then the pages do not tell.
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
            raise FooterError("a page is none, or not in its column")
        if kind in _HEADERS and (_HEADERS[kind] not in header or at < column.meta[MetaKeys.DATA_PAGE_OFFSET]):
            raise FooterError("a page is not described, or before the first one")
        yield _Page(at, size, kind, header)
        at += size


def read_page_header(source: IO[bytes], start: int, end: int) -> tuple[Fields, int]:
    """The page header that begins there, and its size in bytes."""
    tried = _HEADER_BYTES
    while True:
        size = min(tried, end - start)
        try:
            return decode_first(read_exactly(source, start, size))
        except FooterError:
            if size < tried or tried > _MOST_HEADER_BYTES:
                raise
        tried *= 16


def _column_index(pages: list[tuple[int, Fields]], physical_type: int) -> bytes:
    """The bounds of pages, encoded; nothing if one has none."""
    nulls, least, most, counts = [], [], [], []
    for values, statistics in pages:
        count = statistics.get(_NULLS)
        low, high = _bounds(statistics, physical_type)
        empty = count is not None and count == values
        if count is None or not (empty or (low is not None and high is not None)):
            return b""
        nulls.append(empty)
        least.append(b"" if empty or low is None else low)
        most.append(b"" if empty or high is None else high)
        counts.append(count)
    return encode(
        {
            key(1, LIST): encode_booleans(nulls),
            key(2, LIST): encode_strings(least),
            key(3, LIST): encode_strings(most),
            key(4, I32): _UNORDERED,
            key(5, LIST): encode_integers(counts, I64),
        }
    )


def _bounds(statistics: Fields, physical_type: int) -> tuple[bytes | None, bytes | None]:
    low, high = statistics.get(_MIN), statistics.get(_MAX)
    if low is None or high is None or physical_type not in _ORDERED_TYPES:
        return None, None
    if max(len(low), len(high)) > _MOST_BOUND_BYTES:
        return None, None
    form = _FLOATS.get(physical_type)
    if form is None:
        return low, high
    if len(low) != struct.calcsize(form) or len(high) != len(low):
        return None, None
    (least,), (most,) = struct.unpack(form, low), struct.unpack(form, high)
    if math.isnan(least) or math.isnan(most):
        return None, None
    # Of the two zeros the one that leaves no value out, as the format asks.
    return struct.pack(form, least or -0.0), struct.pack(form, most or 0.0)
