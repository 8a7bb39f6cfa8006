"""Footers that differ in their row groups only.

Small files come by the thousand, and are alike: one program has written them with one schema. Nine tenths of what
their footers cost is what they say about each column of each row group, and nobody asks for that of files that are
about to be put together. So of a footer that begins and ends as a known one does, only the number of rows and of
row groups are read; the row groups stay bytes until they are asked for.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, overload

import pyarrow as pa
import pyarrow.parquet as pq

from parketto.errors import FooterError
from parketto.rowgroups.compact import I64, LIST, STRUCT, find_field, list_head, skip, varint
from parketto.rowgroups.footer import MAGIC, ChunkKeys, FileKeys, GroupKeys, MetaKeys
from parketto.storage.row_groups import CODECS_BY_NUMBER, RowGroupInfo, read_row_groups
from parketto.storage.unreadable import naming

_FIELD_AFTER = 1 << 4
_NUM_ROWS, _ROW_GROUPS = bytes([_FIELD_AFTER | I64]), _FIELD_AFTER | LIST


def head_of(footer: bytes) -> bytes:
    """A footer from its beginning to the end of its schema.

    No schema is the beginning of another one: what begins with the same bytes has the same one.
    """
    try:
        return footer[: skip(footer, find_field(footer, 0, FileKeys.SCHEMA), LIST)]
    except (FooterError, IndexError):  # whatever it is, nothing else is like it
        return footer


class Frame(NamedTuple):
    """What footers have in common: all before the number of rows, and all after the row groups.

    What ends with the same tail has nothing between its row groups and that: a tail begins with the number of its
    first field, which is counted from that of the row groups.
    """

    head: bytes
    tail: bytes
    #: Top-level columns by their positions among the leaves.
    names: Mapping[int, str]
    #: What the tail says.
    metadata: Mapping[bytes, bytes] | None
    created_by: str

    @classmethod
    def of(
        cls, footer: bytes, found: pq.FileMetaData, names: Mapping[int, str], codec: str | None
    ) -> Frame | None:
        """That of a footer, if it is one that others can be like: its first column has the codec of the others."""
        head = head_of(footer) + _NUM_ROWS
        try:
            tail = footer[skip(footer, varint(footer, len(head))[1] + 1, LIST) :]
        except (FooterError, IndexError):
            return None
        frame = cls(head, tail, names, found.metadata, found.created_by)
        parts = frame.parts(footer)
        # A tail without any field is the end of every footer.
        return frame if len(tail) > 1 and parts is not None and parts.codec == codec else None

    def parts(self, footer: bytes) -> Parts | None:
        """What differs in a footer that is like this one; None for others, and where anything is strange."""
        end = len(footer) - len(self.tail)
        start = len(self.head)
        if not (end > start and footer.startswith(self.head) and footer.endswith(self.tail)):
            return None
        try:
            num_rows, at = varint(footer, start)
            if footer[at] != _ROW_GROUPS:
                return None
            kind, count, at = list_head(footer, at + 1)
            if kind != STRUCT or count == 0 or num_rows & 1:
                return None
            columns = find_field(footer, at, GroupKeys.COLUMNS)
            kind, width, at = list_head(footer, columns)
            if kind != STRUCT or width == 0:
                return None
            described = find_field(footer, at, ChunkKeys.META_DATA)
            codec = varint(footer, find_field(footer, described, MetaKeys.CODEC))[0]
            return Parts(num_rows >> 1, count, CODECS_BY_NUMBER[codec >> 1], footer[start:end])
        except (FooterError, IndexError, KeyError):
            return None

    def footer(self, middle: bytes) -> pq.FileMetaData:
        """The whole footer again."""
        whole = self.head + middle + self.tail
        found = pq.read_metadata(pa.BufferReader(b"".join((MAGIC, whole, struct.pack("<I", len(whole)), MAGIC))))
        # If bytes of a row group are damaged, what comes after them may be taken for something else.
        told = (found.serialized_size, found.metadata, found.created_by)
        if told != (len(whole), self.metadata, self.created_by):
            raise pa.ArrowInvalid("its footer is damaged")
        return found


class Parts(NamedTuple):
    """What differs between footers that are alike."""

    num_rows: int
    num_row_groups: int
    #: The codec of the first column chunk.
    codec: str
    #: From the number of rows to the end of the row groups.
    middle: bytes


class UnreadRowGroups(Sequence[RowGroupInfo]):
    """The row groups of a file, read out of its footer when somebody asks for one of them. How many is known."""

    __slots__ = ("_frame", "_parts", "_path", "_read")

    def __init__(self, path: str, frame: Frame, parts: Parts) -> None:
        self._path, self._frame, self._parts = path, frame, parts
        self._read: tuple[RowGroupInfo, ...] | None = None

    def __len__(self) -> int:
        return self._parts.num_row_groups

    @overload
    def __getitem__(self, place: int) -> RowGroupInfo: ...

    @overload
    def __getitem__(self, place: slice) -> tuple[RowGroupInfo, ...]: ...

    def __getitem__(self, place: int | slice) -> RowGroupInfo | tuple[RowGroupInfo, ...]:
        return self._all()[place]

    def __iter__(self) -> Iterator[RowGroupInfo]:
        return iter(self._all())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self._all() == tuple(other)

    __hash__ = None  # type: ignore[assignment]  # as for every sequence that is not a tuple

    def __repr__(self) -> str:
        return repr(self._all())

    def _all(self) -> tuple[RowGroupInfo, ...]:
        parts, found = self._parts, self._read  # in this order: another thread may be at the end of this
        if found is None:
            with naming(self._path):
                found = self._read = read_row_groups(self._frame.footer(parts.middle), self._frame.names, {})
            self._parts = parts._replace(middle=b"")
        return found
