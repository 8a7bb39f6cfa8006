"""Files in which only some timestamps are INT96.

Arrow writes all timestamps of a file as INT96, or none. Spark writes files with both: its zoneless timestamps are
never INT96. So columns are encoded both ways, and the file takes the right leaves from each encoding.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import IO, TYPE_CHECKING

import pyarrow as pa
import pyarrow.types as pat

from parketto.parquet.appender import RowGroupAppender
from parketto.parquet.footer import Footer, read_footer
from parketto.parquet.int96 import leaf_names, leaf_types

if TYPE_CHECKING:
    from parketto.parquet.file_format import FileFormat


def int96_numbers(file_format: FileFormat) -> frozenset[int]:
    """The leaf numbers of a format's INT96 timestamps."""
    wanted = file_format.traits.int96
    if not wanted:
        return frozenset()
    return frozenset(at for at, leaf in enumerate(leaf_names(file_format.schema)) if leaf in wanted)


def mixes_int96(file_format: FileFormat) -> bool:
    """Whether some, but not all, timestamps are INT96."""
    int96 = int96_numbers(file_format)
    return bool(int96) and not _timestamps(file_format.schema) <= int96


def _timestamps(schema: pa.Schema) -> frozenset[int]:
    kinds = (kind for item in schema for kind in leaf_types(item.type))
    return frozenset(at for at, kind in enumerate(kinds) if pat.is_timestamp(kind))


class MixedWriter:
    """Writes a file like PyArrow's `ParquetWriter`, but with INT96 only for the timestamps that need it."""

    def __init__(self, sink: IO[bytes], file_format: FileFormat, dictionaries: bool | list[str]) -> None:
        self._dictionaries = dictionaries
        self._order = file_format.declared_order
        plain = replace(file_format, order_by=())
        every = tuple(leaf_names(file_format.schema))
        self._int96 = int96_numbers(file_format)
        # The first format writes no timestamp as INT96, the second one writes all.
        self._formats = (
            replace(plain, traits=plain.traits._replace(int96=())),
            replace(plain, traits=plain.traits._replace(int96=every)),
        )
        ordinary, all_int96 = (_as_file(each.encoded(None)) for each in self._formats)
        self._whole = ordinary[1].with_leaves_of(all_int96[1], self._int96)
        self._empty = ordinary[0]
        self._metadata: dict[bytes, bytes] | None = None
        self._appender = RowGroupAppender(sink)
        self.is_open = True

    def write_table(self, rows: pa.Table, row_group_size: int | None = None) -> None:  # noqa: ARG002 - as in PyArrow
        """Write rows as one row group."""
        if not rows.num_rows:
            return
        numbers = [number for number, _ in enumerate(self._whole.leaves)]
        wanted = ([at for at in numbers if at not in self._int96], sorted(self._int96))
        parts = []
        for file_format, leaves in zip(self._formats, wanted, strict=True):
            columns, leaf_map = _columns_with(rows.schema, leaves)
            if not columns:
                continue
            schema = pa.schema([file_format.schema.field(at) for at in columns], file_format.schema.metadata)
            part = replace(file_format, schema=schema, readable_as=None)
            found = _as_file(part.encoded(rows.select(columns), self._dictionaries))
            parts.append((*found, 0, leaf_map))
        self._appender.weave(self._whole, parts, self._order)

    def add_key_value_metadata(self, notes: dict[bytes, bytes]) -> None:
        """Set the key-value metadata of the file."""
        self._metadata = notes

    def close(self) -> None:
        """Finish the file."""
        if not self.is_open:
            return
        self.is_open = False
        if not self._appender.num_row_groups:
            self._appender.append(self._empty, self._whole)
        self._appender.finish(self._metadata)


def _columns_with(schema: pa.Schema, leaves: Collection[int]) -> tuple[list[int], dict[int, int]]:
    """The positions of columns with these leaves, and the leaves by their numbers in a file of these columns."""
    columns, leaf_map = [], {}
    first = before = 0
    for position, kind in enumerate(schema.types):
        width = sum(1 for _ in leaf_types(kind))
        found = [number for number in range(width) if first + number in leaves]
        if found:
            columns.append(position)
            leaf_map.update({before + number: first + number for number in found})
            before += width
        first += width
    return columns, leaf_map


def _as_file(content: pa.Buffer) -> tuple[pa.BufferReader, Footer]:
    source = pa.BufferReader(content)
    return source, read_footer(source)
