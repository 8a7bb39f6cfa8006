"""Parquet footers as plain data, field by field. All fields are kept, so that footers can be written again."""

from __future__ import annotations

import io
import struct
from collections.abc import Collection, Iterable, Mapping
from functools import cached_property
from typing import IO, Any

from parketto.errors import FooterError
from parketto.parquet.schema import Leaf, exchanged, read_schema, renamed_schema
from parketto.parquet.thrift import (
    BINARY,
    FALSE,
    I16,
    I32,
    I64,
    LIST,
    STRUCT,
    Fields,
    Shape,
    decode,
    decode_first,
    decode_list,
    encode,
    encode_strings,
    encode_structs,
    key,
)

MAGIC = b"PAR1"
_ENCRYPTED_MAGIC = b"PARE"
# Most footers fit into this many bytes, so that one ranged read suffices.
_TAIL_BYTES = 64 * 1024
# Larger footers are refused: none of use is that large, and decoding takes many times the size.
_MAX_BYTES = 128 * 1024 * 1024


class FileKeys:
    """Fields of FileMetaData."""

    VERSION = key(1, I32)
    SCHEMA = key(2, LIST)
    NUM_ROWS = key(3, I64)
    ROW_GROUPS = key(4, LIST)
    KEY_VALUES = key(5, LIST)
    CREATED_BY = key(6, BINARY)
    COLUMN_ORDERS = key(7, LIST)
    ENCRYPTION = key(8, STRUCT)
    SIGNING_KEY = key(9, BINARY)


class GroupKeys:
    """Fields of RowGroup."""

    COLUMNS = key(1, LIST)
    TOTAL_BYTE_SIZE = key(2, I64)
    NUM_ROWS = key(3, I64)
    SORTING_COLUMNS = key(4, LIST)
    FILE_OFFSET = key(5, I64)
    TOTAL_COMPRESSED_SIZE = key(6, I64)
    ORDINAL = key(7, I16)


class ChunkKeys:
    """Fields of ColumnChunk."""

    FILE_PATH = key(1, BINARY)
    FILE_OFFSET = key(2, I64)
    META_DATA = key(3, STRUCT)
    OFFSET_INDEX_OFFSET = key(4, I64)
    OFFSET_INDEX_LENGTH = key(5, I32)
    COLUMN_INDEX_OFFSET = key(6, I64)
    COLUMN_INDEX_LENGTH = key(7, I32)
    CRYPTO = key(8, STRUCT)
    ENCRYPTED_META_DATA = key(9, BINARY)


class MetaKeys:
    """Fields of ColumnMetaData."""

    TYPE = key(1, I32)
    ENCODINGS = key(2, LIST)
    PATH = key(3, LIST)
    CODEC = key(4, I32)
    NUM_VALUES = key(5, I64)
    TOTAL_UNCOMPRESSED_SIZE = key(6, I64)
    TOTAL_COMPRESSED_SIZE = key(7, I64)
    DATA_PAGE_OFFSET = key(9, I64)
    INDEX_PAGE_OFFSET = key(10, I64)
    DICTIONARY_PAGE_OFFSET = key(11, I64)
    STATISTICS = key(12, STRUCT)
    BLOOM_OFFSET = key(14, I64)
    BLOOM_LENGTH = key(15, I32)
    SIZE_STATISTICS = key(16, STRUCT)


# The format reserves this field id for extensions. They may repeat offsets in another form, so structs with
# offsets lose it when they are copied.
EXTENSION_FIELD = 32767
FOOTER_SHAPE: Shape = {
    FileKeys.ROW_GROUPS: {GroupKeys.COLUMNS: {ChunkKeys.META_DATA: {}}},
}


class Column:
    """A column chunk: one leaf column of one row group."""

    __slots__ = ("fields", "meta", "size", "start")

    def __init__(self, fields: Fields) -> None:
        self.fields = fields
        meta = fields.get(ChunkKeys.META_DATA)
        if meta is None:
            raise FooterError("a column chunk has no metadata" + (_ENCRYPTED if _is_encrypted(fields) else ""))
        self.meta: Fields = meta
        for field in _REQUIRED:
            if meta.get(field, -1) < 0:
                raise FooterError(f"field {field >> 4} of a column chunk's metadata is missing or negative")
        #: The size of all its pages in bytes, headers included.
        self.size: int = meta[MetaKeys.TOTAL_COMPRESSED_SIZE]
        first: int = meta[MetaKeys.DATA_PAGE_OFFSET]
        dictionary: int = meta.get(MetaKeys.DICTIONARY_PAGE_OFFSET, 0)
        #: The offset of its first page. Without a dictionary some writers record 0 or nonsense for its offset.
        self.start = dictionary if 0 < dictionary < first else first

    @property
    def physical_type(self) -> int:
        """The number of its physical type."""
        return _number(self.meta, MetaKeys.TYPE)

    @property
    def codec(self) -> int:
        """The number of its compression codec."""
        return _number(self.meta, MetaKeys.CODEC)

    @property
    def path(self) -> tuple[str, ...]:
        """The names on the path to the leaf column."""
        return tuple(
            name.decode(errors="surrogateescape") for name in decode_list(self.meta[MetaKeys.PATH], BINARY)
        )

    @property
    def num_values(self) -> int:
        """The number of its values, nulls included."""
        return _number(self.meta, MetaKeys.NUM_VALUES)

    @property
    def offset_index(self) -> tuple[int, int] | None:
        """The offset and length of its offset index."""
        return _range(self.fields, ChunkKeys.OFFSET_INDEX_OFFSET, ChunkKeys.OFFSET_INDEX_LENGTH)

    @property
    def column_index(self) -> tuple[int, int] | None:
        """The offset and length of its column index."""
        return _range(self.fields, ChunkKeys.COLUMN_INDEX_OFFSET, ChunkKeys.COLUMN_INDEX_LENGTH)

    @property
    def bloom_filter(self) -> tuple[int, int | None] | None:
        """The offset and length of its Bloom filter; older writers do not record the length."""
        offset = self.meta.get(MetaKeys.BLOOM_OFFSET, 0)
        return (offset, self.meta.get(MetaKeys.BLOOM_LENGTH)) if offset else None


class RowGroup:
    """A row group, with its column chunks in schema order."""

    __slots__ = ("columns", "fields")

    def __init__(self, fields: Fields) -> None:
        self.fields = fields
        if self.num_rows < 0:
            raise FooterError("the number of rows of a row group is missing or negative")
        self.columns = [Column(chunk) for chunk in fields.get(GroupKeys.COLUMNS, ())]

    def narrowed(self, positions: Collection[int]) -> RowGroup:
        """The same row group with only some of its columns."""
        narrow = RowGroup.__new__(RowGroup)
        narrow.fields = self.fields
        narrow.columns = [column for position, column in enumerate(self.columns) if position in positions]
        return narrow

    @property
    def num_rows(self) -> int:
        """The number of its rows."""
        return int(self.fields.get(GroupKeys.NUM_ROWS, -1))

    @property
    def total_byte_size(self) -> int:
        """Its size in bytes before compression."""
        return int(self.fields.get(GroupKeys.TOTAL_BYTE_SIZE, 0))

    @property
    def total_uncompressed_size(self) -> int:
        """The size of its pages before compression, as its column chunks declare it."""
        return sum(int(column.meta.get(MetaKeys.TOTAL_UNCOMPRESSED_SIZE, 0)) for column in self.columns)

    @property
    def total_compressed_size(self) -> int:
        """The size of its pages in bytes."""
        return sum(column.size for column in self.columns)

    @property
    def ordinal(self) -> int | None:
        """Its number in the file, if the writer recorded it."""
        return self.fields.get(GroupKeys.ORDINAL)

    @property
    def sorting_columns(self) -> bytes:
        """The sorting columns that it declares, raw; empty if none."""
        return bytes(self.fields.get(GroupKeys.SORTING_COLUMNS, b""))


class Footer:
    """The footer of a Parquet file.

    Args:
        fields: The decoded FileMetaData.
        file_size: The size of the file in bytes.
        data_end: The offset of the footer: everything it refers to is before it.
    """

    def __init__(self, fields: Fields, file_size: int, data_end: int) -> None:
        self.fields, self.file_size, self.data_end = fields, file_size, data_end
        if FileKeys.ENCRYPTION in fields or FileKeys.SIGNING_KEY in fields:
            raise FooterError("its columns are encrypted")
        if FileKeys.SCHEMA not in fields:
            raise FooterError("it has no schema")
        self.row_groups = [RowGroup(group) for group in fields.get(FileKeys.ROW_GROUPS, ())]
        rows = sum(group.num_rows for group in self.row_groups)
        if fields.get(FileKeys.NUM_ROWS) != rows:
            raise FooterError(f"its row groups have {rows} rows, not {fields.get(FileKeys.NUM_ROWS)}")

    @property
    def num_rows(self) -> int:
        """The number of rows in the file."""
        return _number(self.fields, FileKeys.NUM_ROWS)

    @property
    def schema(self) -> bytes:
        """The schema, raw."""
        return bytes(self.fields[FileKeys.SCHEMA])

    @cached_property
    def leaves(self) -> tuple[Leaf, ...]:
        """The leaf columns, one per column chunk of each row group."""
        return read_schema(self.schema).leaves

    @cached_property
    def key_value_metadata(self) -> Mapping[bytes, bytes | None]:
        """The key-value metadata. Of duplicate keys the first counts."""
        found: dict[bytes, bytes | None] = {}
        for raw in decode_list(self.fields.get(FileKeys.KEY_VALUES, b"\x0c"), STRUCT):
            entry = decode(raw)
            found.setdefault(entry.get(_KEY, b""), entry.get(_VALUE))
        return found

    @cached_property
    def elsewhere(self) -> str | None:
        """Why pages cannot be read from this file; None if they can."""
        for group in self.row_groups:
            for column in group.columns:
                if column.fields.get(ChunkKeys.FILE_PATH):
                    return "its columns are in other files"
                if _is_encrypted(column.fields):
                    return "its columns are encrypted"
        return None

    @property
    def created_by(self) -> bytes | None:
        """The name and version that the writer recorded."""
        return self.fields.get(FileKeys.CREATED_BY)

    @property
    def column_orders(self) -> bytes | None:
        """The column orders of bounds, raw. Without them readers do not trust all bounds."""
        return self.fields.get(FileKeys.COLUMN_ORDERS)

    def without_orders(self) -> Footer:
        """The same footer without column orders."""
        fields = {field: value for field, value in self.fields.items() if field != FileKeys.COLUMN_ORDERS}
        return Footer(fields, self.file_size, self.data_end)

    def created_as(self, other: Footer) -> Footer:
        """The same footer with the `created_by` of another one."""
        fields = {field: value for field, value in self.fields.items() if field != FileKeys.CREATED_BY}
        if other.created_by is not None:
            fields[FileKeys.CREATED_BY] = other.created_by
        return Footer(fields, self.file_size, self.data_end)

    def renamed(self, names: Mapping[bytes, bytes]) -> Footer:
        """The same footer with other names of top-level columns, by their old names."""
        groups = [
            {**group.fields, GroupKeys.COLUMNS: [_renamed_chunk(column.fields, names) for column in group.columns]}
            for group in self.row_groups
        ]
        fields = {
            **self.fields,
            FileKeys.SCHEMA: renamed_schema(self.schema, names),
            FileKeys.ROW_GROUPS: groups,
        }
        return Footer(fields, self.file_size, self.data_end)

    def with_leaves_of(self, other: Footer, leaves: Collection[int]) -> Footer:
        """The same footer, with leaves of its schema, given by number, replaced by those of another one."""
        fields = {**self.fields, FileKeys.SCHEMA: exchanged(self.schema, other.schema, leaves)}
        return Footer(fields, self.file_size, self.data_end)


def _renamed_chunk(chunk: Fields, names: Mapping[bytes, bytes]) -> Fields:
    meta = chunk[ChunkKeys.META_DATA]
    first, *rest = decode_list(meta[MetaKeys.PATH], BINARY)
    path = encode_strings([names.get(first, first), *rest])
    return {**chunk, ChunkKeys.META_DATA: {**meta, MetaKeys.PATH: path}}


def ascending(positions: Iterable[int]) -> bytes:
    """Raw sorting columns for a row group: ascending by these leaf columns, NULLs last."""
    raw = [encode({key(1, I32): at, key(2, FALSE): b"", key(3, FALSE): b""}) for at in positions]
    return encode_structs(raw) if raw else b""


def read_footer(source: IO[bytes]) -> Footer:
    """Read the footer of a Parquet file, binary and seekable.

    Raises:
        FooterError: It is not a Parquet file, or is damaged or encrypted.
    """
    size = size_of(source)
    if size < 12:
        raise FooterError(f"{size} bytes are too few for a Parquet file")
    tail = read_exactly(source, max(0, size - _TAIL_BYTES), min(size, _TAIL_BYTES))
    length, magic = struct.unpack("<I4s", tail[-8:])
    if magic == _ENCRYPTED_MAGIC:
        raise FooterError("its footer is encrypted")
    head = tail[:4] if len(tail) == size else read_exactly(source, 0, 4)
    if magic != MAGIC or head != MAGIC:
        raise FooterError("it does not begin and end with PAR1: it is damaged, or not a Parquet file")
    if length > _MAX_BYTES:
        raise FooterError(f"a footer of {length} bytes is too long: at most {_MAX_BYTES} are read")
    if length > size - 12:
        raise FooterError(f"a footer of {length} bytes does not fit into a file of {size} bytes")
    data = tail[-8 - length : -8] if length + 8 <= len(tail) else read_exactly(source, size - 8 - length, length)
    return parse_footer(data, size)


def parse_footer(data: bytes, file_size: int) -> Footer:
    """Decode a footer: the bytes between the data and the last eight bytes of a file."""
    fields, end = decode_first(data, FOOTER_SHAPE)
    footer = Footer(fields, file_size, file_size - 8 - len(data))
    # A signature follows only if columns are encrypted, which `Footer` has refused.
    if end != len(data):
        raise FooterError(f"{len(data) - end} bytes follow its footer")
    return footer


def size_of(source: IO[bytes]) -> int:
    """The size of a file in bytes."""
    source.seek(0, io.SEEK_END)
    return source.tell()


def read_exactly(source: IO[bytes], start: int, size: int) -> bytes:
    """Exactly `size` bytes from `start`. Callers have checked the range, so a short read means a changed file."""
    source.seek(start)
    parts = []
    missing = size
    while missing:
        part = source.read(missing)
        if not part:
            raise FooterError(f"the file ends at byte {start + size - missing}: it has changed while it was read")
        parts.append(bytes(part))
        missing -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


_ENCRYPTED = ": it is encrypted"
_KEY, _VALUE = key(1, BINARY), key(2, BINARY)
_REQUIRED = (
    MetaKeys.TYPE,
    MetaKeys.CODEC,
    MetaKeys.NUM_VALUES,
    MetaKeys.TOTAL_COMPRESSED_SIZE,
    MetaKeys.DATA_PAGE_OFFSET,
)
_CRYPTO = frozenset({ChunkKeys.CRYPTO, ChunkKeys.ENCRYPTED_META_DATA})


def _is_encrypted(fields: Fields) -> bool:
    return not _CRYPTO.isdisjoint(fields)


def _number(fields: Fields, field: int) -> int:
    value: int = fields[field]
    return value


def _range(fields: Fields, offset_key: int, length_key: int) -> tuple[int, int] | None:
    offset: Any = fields.get(offset_key)
    length: Any = fields.get(length_key)
    # Writers without an index omit both, or record 0.
    return (offset, length) if offset and length else None
