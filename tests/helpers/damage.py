"""Real damage to Parquet files: flipped bytes in pages, and footers with wrong contents."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from parketto.parquet.footer import FOOTER_SHAPE, ChunkKeys, FileKeys, GroupKeys, MetaKeys, read_footer
from parketto.parquet.page_index import read_page_header
from parketto.parquet.thrift import BINARY, I32, decode, encode, key

DATA_PAGES, DICTIONARY_PAGES = (0, 3), (2,)
MIN_VALUE, MAX_VALUE = key(6, BINARY), key(5, BINARY)


class PageBody(NamedTuple):
    """Where the bytes of a page are, after its header."""

    row_group: int
    column: str
    kind: int
    start: int
    size: int


def page_bodies(data: bytes) -> Iterator[PageBody]:
    """All pages of a file."""
    source = io.BytesIO(data)
    for number, group in enumerate(read_footer(source).row_groups):
        for column in group.columns:
            at, end = column.start, column.start + column.size
            while at < end:
                header, length = read_page_header(source, at, end)
                size = header[key(3, I32)]
                yield PageBody(number, ".".join(column.path), header[key(1, I32)], at + length, size)
                at += length + size


def in_page(
    data: bytes,
    column: str,
    *,
    row_group: int = 0,
    kinds: tuple[int, ...] = DATA_PAGES,
    at: float = 0.5,
    flip: bytes = b"\xff\xff",
) -> bytes:
    """The file with some flipped bits in the first such page of a column, at that share of its bytes."""
    page = next(
        page
        for page in page_bodies(data)
        if (page.row_group, page.column) == (row_group, column) and page.kind in kinds
    )
    return flipped(data, page.start + int((page.size - len(flip)) * at), flip)


def flipped(data: bytes, at: int, flip: bytes = b"\xff\xff") -> bytes:
    changed = bytearray(data)
    for offset, bits in enumerate(flip):
        changed[at + offset] ^= bits
    return bytes(changed)


def with_footer(data: bytes, change: Callable[[dict[int, Any]], None]) -> bytes:
    """The file with a footer that is well formed but wrong."""
    size = struct.unpack("<I", data[-8:-4])[0]
    fields = decode(data[-8 - size : -8], FOOTER_SHAPE)
    change(fields)
    footer = encode(fields)
    return data[: -8 - size] + footer + struct.pack("<I", len(footer)) + b"PAR1"


def with_meta(data: bytes, changes: dict[int, Any], row_group: int = 0, column: int = 0) -> bytes:
    """The file with other fields in the metadata of a column chunk."""

    def change(fields: dict[int, Any]) -> None:
        chunk = fields[FileKeys.ROW_GROUPS][row_group][GroupKeys.COLUMNS][column]
        chunk[ChunkKeys.META_DATA] |= changes

    return with_footer(data, change)


def with_statistics(data: bytes, changes: dict[int, Any], row_group: int = 0, column: int = 0) -> bytes:
    """The file with other statistics of a column chunk."""

    def change(fields: dict[int, Any]) -> None:
        meta = fields[FileKeys.ROW_GROUPS][row_group][GroupKeys.COLUMNS][column][ChunkKeys.META_DATA]
        meta[MetaKeys.STATISTICS] = decode(meta[MetaKeys.STATISTICS]) | changes

    return with_footer(data, change)
