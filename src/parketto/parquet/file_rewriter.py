"""Rewrites one file, row group by row group: unchanged ones are copied as bytes, the others encoded."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from types import TracebackType

import pyarrow as pa

from parketto.errors import FooterError
from parketto.parquet.calendars import CalendarCheck
from parketto.parquet.copy_rules import codec_of, copyable, copyable_footer
from parketto.parquet.decoded_types import decoded_schema, recast
from parketto.parquet.file_writer import file_writer, why_not_combined
from parketto.parquet.footer import Footer
from parketto.parquet.output import Output, Written
from parketto.parquet.reader import OpenFile
from parketto.parquet.row_group_buffer import RowGroupBuffer
from parketto.parquet.thrift import I32, STRUCT, decode, decode_list, encode_structs, key
from parketto.runtime.task import Worker

_COLUMN = key(1, I32)


class FileRewriter:
    """Takes the row groups of a file in order, and writes the file that replaces it.

    An unchanged row group is copied as it is, codec included. If some columns change, the others are copied. A row
    group that loses rows is encoded; its boundaries stay, unless it is too large for one row group. If Arrow would
    not write the file's schema as it is (legacy list encodings, say), nothing is copied and everything is encoded.

    Args:
        opened: The file.
        output: The format of the new file.
        worker: The resources of the task.
        codec: The codec that row groups must have to be copied; None accepts any.
    """

    def __init__(self, opened: OpenFile, output: Output, worker: Worker, codec: str | None = None) -> None:
        file = opened.file
        assert file.schema is not None, "files to rewrite come from a snapshot"
        self._opened, self._worker = opened, worker
        self._readable, self._schema = file.schema, decoded_schema(file.schema).remove_metadata()
        self._calendar = CalendarCheck(self._schema, file.metadata, file.traits.int96)
        footer = copyable_footer(opened.source, len(file.row_groups))
        self._footer = footer
        if footer is not None and file.has_stored_types and why_not_combined(footer, output.format) is None:
            self._copyable, like = copyable(footer, file.schema, codec), (opened.source, footer)
        else:
            self._copyable, like = [False] * len(file.row_groups), None
        self._writer = file_writer(output, worker, single_file=True, like=like, index_all=True)

    def __enter__(self) -> FileRewriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and self._writer.num_rows:
            self._writer.finish()
        else:
            self._writer.abandon()

    @property
    def written(self) -> Written:
        """The written file and its number of rows; no file without rows."""
        return Written(tuple(self._writer.staged) if self._writer.num_rows else (), self._writer.num_rows)

    def copy(self, number: int) -> bool:
        """Copy a row group; False if it cannot be copied, and its rows must be written."""
        self._worker.check_cancelled()
        if self._footer is None or not self._copyable[number]:
            return False
        try:
            self._writer.copy(self._opened.source, self._footer, [number])
        except FooterError:
            return False
        return True

    def replace_columns(
        self, number: int, changed: Collection[str], rows: Iterator[pa.RecordBatch], codec: str | None = None
    ) -> bool:
        """Copy a row group with new values in some columns.

        Args:
            number: The number of the row group.
            changed: The columns.
            rows: The new values of these columns, for all rows. Other columns are ignored.
            codec: The codec that they must get; None keeps that of the old values.

        Returns:
            False if that is not possible, or exceeds one row group, and rows must be written.
        """
        footer, names = self._footer, [name for name in self._schema.names if name in changed]
        if footer is None or not self._copyable[number]:
            return False
        if not 0 < len(names) < len(self._schema.names):
            return False
        positions = [at for at, leaf in enumerate(footer.leaves) if leaf.path[0].decode() in names]
        # Codecs are never mixed: code that looks at some columns only would take one of them for the row group's.
        old_codec = codec_of(footer.row_groups[number], positions)
        if old_codec is None or codec not in (None, old_codec):
            return False
        schema = pa.schema([self._schema.field(name) for name in names])
        readable = pa.schema([self._readable.field(name) for name in names])
        buffer = RowGroupBuffer(readable, self._worker.row_group_bytes)
        for batch in rows:
            part = recast(batch.select(names), schema)
            self._calendar.refuse_written(part)
            if buffer.is_full or buffer.add(part) < part.num_rows:
                return False
        try:
            declared = _declared_order(footer, number, names)
            self._writer.replace_columns(self._opened.source, footer, number, buffer.flush(), old_codec, declared)
        except FooterError:
            return False
        return True

    def begin(self, number: int, changed: Collection[str] | None = ()) -> None:
        """Begin the rows that replace a row group. Columns in `changed` lose their order; None: all columns do."""
        self._writer.end_row_group(b"" if self._footer is None else _declared_order(self._footer, number, changed))

    def write(self, batch: pa.RecordBatch) -> None:
        """Write rows, cast to the types of the file; other columns are ignored."""
        rows = recast(batch.select(self._schema.names), self._schema)
        self._calendar.refuse_written(rows)
        self._writer.write(rows)


def _declared_order(footer: Footer, number: int, changed: Collection[str] | None) -> bytes:
    """The sorting columns that a row group declares, up to the first one that has changed."""
    raw = footer.row_groups[number].sorting_columns
    kept = []
    for column in decode_list(raw, STRUCT) if raw and changed is not None else ():
        position = decode(column).get(_COLUMN, -1)
        if not 0 <= position < len(footer.leaves) or footer.leaves[position].path[0].decode() in (changed or ()):
            break
        kept.append(column)
    return encode_structs(kept) if kept else b""
