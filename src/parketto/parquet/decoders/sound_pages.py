"""Checks the headers of pages before Polars decodes them.

Polars trusts them: it verifies neither the checksums of pages nor those of gzip, and a damaged number of values
makes it abort the process.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from parketto.errors import FooterError
from parketto.parquet.footer import MAGIC
from parketto.parquet.thrift import I32, STRUCT, Fields, Shape, decode_first, key

_HEADER_BYTES = 512  # enough for a page header without long bounds
_LONG_HEADER_BYTES = 64 * 1024  # a longer header is left to Arrow
_KIND, _DECOMPRESSED, _COMPRESSED, _CHECKSUM = (key(number, I32) for number in (1, 2, 3, 4))
_DICTIONARY_PAGE = 2
_TYPE_HEADERS = {0: key(5, STRUCT), _DICTIONARY_PAGE: key(7, STRUCT), 3: key(8, STRUCT)}
_VALUES = key(1, I32)
_SHAPE: Shape = {place: {} for place in _TYPE_HEADERS.values()}

Read = Callable[[int, int], bytes]


class MemoryFile(pa.BufferReader):  # type: ignore[misc]
    """A file in memory, whose bytes other libraries read without a copy."""

    def __init__(self, content: bytes) -> None:
        super().__init__(content)
        self.content = content


def are_sound(
    source: Any, metadata: pq.FileMetaData, numbers: Iterable[int], names: Collection[str] | None = None
) -> bool:
    """Whether Polars may decode the pages of row groups: headers agree with the footer, and none has a checksum.

    Args:
        source: The file: a `MemoryFile`, or one with a file descriptor.
        metadata: Its footer.
        numbers: The numbers of the row groups.
        names: The columns, which are not nested; None: all.
    """
    read = _reader(source)
    schema = metadata.schema
    columns = [at for at in range(metadata.num_columns) if names is None or schema.column(at).path in names]
    try:
        for number in numbers:
            group = metadata.row_group(number)
            if group.num_rows and not all(_is_sound(group.column(at), read) for at in columns):
                return False
    except FooterError:
        return False
    return True


def _reader(source: Any) -> Read:
    if isinstance(source, MemoryFile):
        content = source.content
        return lambda at, size: content[at : at + size]
    descriptor = source.fileno()
    return lambda at, size: os.pread(descriptor, size, at)


def _is_sound(chunk: pq.ColumnChunkMetaData, read: Read) -> bool:
    codec, values, decoded = chunk.compression, chunk.num_values, chunk.total_uncompressed_size
    if codec == "GZIP":
        return False
    at = _start(chunk)
    end = at + chunk.total_compressed_size
    if at < len(MAGIC):
        return False
    while at < end:
        header, size = _header(read, at, end)
        kind, decompressed, compressed = (header.get(name, -1) for name in (_KIND, _DECOMPRESSED, _COMPRESSED))
        details: Fields = header.get(_TYPE_HEADERS.get(kind, -1), {})
        declared = details.get(_VALUES, -1)
        if (
            _CHECKSUM in header
            or declared < 0
            or any(isinstance(value, int) and value < 0 for value in details.values())
            or not 0 <= decompressed <= decoded
            or compressed < 0
            or (codec == "UNCOMPRESSED" and compressed != decompressed)
        ):
            return False
        if kind != _DICTIONARY_PAGE:
            values -= declared
        elif declared > decompressed:  # a value takes a byte or more
            return False
        at += size + compressed
        decoded -= size + decompressed
    return bool(at == end and not values and not decoded)


def _header(read: Read, at: int, end: int) -> tuple[Fields, int]:
    """A page header, and its size."""
    try:
        return decode_first(read(at, min(_HEADER_BYTES, end - at)), _SHAPE)
    except FooterError:
        return decode_first(read(at, min(_LONG_HEADER_BYTES, end - at)), _SHAPE)


def _start(chunk: pq.ColumnChunkMetaData) -> int:
    """The offset of a column chunk. An offset of 0, or behind the first data page, means no dictionary."""
    first, dictionary = int(chunk.data_page_offset), int(chunk.dictionary_page_offset or 0)
    return dictionary if 0 < dictionary < first else first
