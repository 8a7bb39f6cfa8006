"""Rewrites neighbouring files, row group by row group: unchanged ones are copied as bytes, the others encoded."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from types import TracebackType

import pyarrow as pa

from parketto.arguments import DEFAULT_TARGET_MB, MEGABYTE
from parketto.errors import FooterError
from parketto.parquet.calendars import CalendarCheck
from parketto.parquet.copy_rules import codec_of, copyable, copyable_footer
from parketto.parquet.decoded_types import decoded_schema, recast
from parketto.parquet.encoders.arrow import ENCODED_ROWS
from parketto.parquet.encoders.polars import encode_changed_rows, suits_changes
from parketto.parquet.file_info import FileInfo
from parketto.parquet.file_writer import FileWriter, file_writer, why_not_combined
from parketto.parquet.footer import Footer
from parketto.parquet.output import Output, Replaced, Rewrite, Written, output_like
from parketto.parquet.reader import OpenFile
from parketto.parquet.row_changes import RowChanges
from parketto.parquet.row_group_buffer import RowGroupBuffer
from parketto.parquet.thrift import I32, STRUCT, decode, decode_list, encode_structs, key
from parketto.planning.copy_policy import is_worth_copying
from parketto.runtime.task import Worker

_COLUMN = key(1, I32)
# New values may be larger than old ones. A compaction leaves files up to this size alone.
_MAX_PACKED_BYTES = int(1.8 * DEFAULT_TARGET_MB * MEGABYTE)


class FileRewriter:
    """Takes the row groups of files in order, and writes what replaces them.

    A file alone keeps its row groups. An unchanged one is copied as it is, codec included. If only some columns
    change, the others are copied. A row group that loses rows is encoded, and keeps its boundaries, unless it is
    too large for one row group. If Arrow would not write the file's schema as it is (legacy list encodings, say),
    nothing is copied and everything is encoded.

    Several neighbours become one file. Their small row groups are encoded together; large ones are treated as
    above. Clustered files keep all of their row groups, because the clustering is in them. A file that stays ends
    the new file of the neighbours before it.

    Args:
        files: Neighbouring files of one directory, schema, layout, clustering and codec.
        prefix: The prefix of the names of new files.
        worker: The resources of the task.
        compression: The codec of encoded rows; None: that of the files.
        changed: The columns with new values.
        codec: The codec that row groups must have to be copied; None accepts any.
    """

    def __init__(
        self,
        files: Sequence[FileInfo],
        prefix: str,
        worker: Worker,
        compression: str | None = None,
        changed: Collection[str] = (),
        codec: str | None = None,
    ) -> None:
        first = files[0]
        assert first.schema is not None, "files to rewrite come from a snapshot"
        self._files, self._prefix, self._worker = files, prefix, worker
        self._compression, self._changed, self._codec = compression, changed, codec
        self._alone = len(files) == 1
        self._keeps_row_groups = self._alone or first.clustering is not None
        self._readable, self._schema = first.schema, decoded_schema(first.schema).remove_metadata()
        self._calendar = CalendarCheck(self._schema, first.metadata, first.traits.int96)
        self._format = output_like(first, prefix, compression).format
        self._at = -1
        self._file: FileInfo | None = None
        self._opened: OpenFile | None = None
        self._writer: FileWriter | None = None
        self._rows_before = 0
        self._neighbours: list[FileInfo] = []
        self._replaced: list[Replaced] = []
        self._emptied: list[FileInfo] = []

    def __enter__(self) -> FileRewriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._end_file()
            self._end_neighbours()
        elif self._writer is not None:
            self._writer.abandon()

    @property
    def result(self) -> Rewrite:
        """What became of the files, once all are done."""
        return Rewrite(tuple(self._replaced), tuple(self._emptied))

    def rewrite_at_once(self, find_changes: Callable[[], RowChanges | None]) -> bool:
        """Rewrite all files as one, if every row group that is worth copying has changes.

        Args:
            find_changes: Called if that may be possible. Returns the changes of all files; None if they do not
                fit into memory, or are not all that happens to the rows.

        Returns:
            False if nothing was written, and each file must be rewritten by itself.
        """
        files = [file for file in self._files if file.num_rows]
        if not files or not self._may_rewrite_at_once(files):
            return False
        output = self._output(files[0])
        changes = find_changes() if suits_changes(files, output, self._worker) else None
        if changes is None or not self._fit_one_file(files, changes):
            return False
        filled, kept_groups, start = [], 0, 0
        for file, copies in zip(files, map(self.copies_unchanged, files), strict=True):
            first = start
            for group, copied in zip(file.row_groups, copies, strict=True):
                rows = start, start + group.num_rows
                if copied and not changes.touch(*rows):
                    return False
                kept_groups += changes.rows_left(*rows) > 0
                start += group.num_rows
            if changes.rows_left(first, start):
                filled.append(file)
        left = changes.rows_left(0, start)
        if not left:
            return False
        if self._keeps_row_groups:
            output = replace(output, row_group_rows=math.ceil(left / kept_groups))
        staged = encode_changed_rows(files, changes, output, self._worker)
        if staged is None:
            return False
        self._replaced.append(Replaced(tuple(filled), Written((staged,), left)))
        paths = {file.path for file in filled}
        self._emptied += [file for file in self._files if file.path not in paths]
        return True

    def _may_rewrite_at_once(self, files: Sequence[FileInfo]) -> bool:
        """Whether no row group must keep its boundaries or its declared order, and values need no check."""
        return not (
            self._calendar.limits_any
            or files[0].clustering is not None
            or any(group.sorted_by for file in files for group in file.row_groups)
        )

    def _fit_one_file(self, files: Sequence[FileInfo], changes: RowChanges) -> bool:
        return self._alone or sum(file.size_bytes for file in files) + changes.values.nbytes <= _MAX_PACKED_BYTES

    def copies_unchanged(self, file: FileInfo) -> list[bool]:
        """Which row groups of a file are copied if they do not change."""
        worth = self._worth_copying(file)
        return [copied and group.num_rows > 0 for copied, group in zip(worth, file.row_groups, strict=True)]

    def encodes(self, file: FileInfo) -> bool:
        """Whether none of a file's row groups is copied: they are small, and encoded together with others."""
        return not any(self._worth_copying(file))

    def next_encoded(self, file: FileInfo) -> None:
        """Begin a file that it `encodes`. It need not be open. Files of the group that are skipped stay."""
        self._end_file()
        at = self._at + 1
        while self._files[at].path != file.path:
            at += 1
        if at > self._at + 1:
            self._end_neighbours()
        self._at, self._file, self._opened = at, file, None
        self._rows_before = 0 if self._writer is None else self._writer.num_rows
        self._order = b""
        self._footer: Footer | None = None
        self._copyable: Sequence[bool] = ()

    def next_file(self, opened: OpenFile) -> None:
        """Begin a file. Files of the group that are skipped stay."""
        self.next_encoded(opened.file)
        self._opened = opened
        worth = self._worth_copying(opened.file)
        if any(worth) and opened.file.has_stored_types:
            footer = copyable_footer(opened.source, len(opened.file.row_groups))
            self._footer = footer
            if footer is not None and why_not_combined(footer, self._format) is None:
                allowed = copyable(footer, self._readable, self._codec)
                self._copyable = [one and other for one, other in zip(worth, allowed, strict=True)]

    def keep_file(self) -> None:
        """The file stays as it is: nothing of it was written."""
        self._file = self._opened = None
        self._end_neighbours()

    def may_copy(self, number: int) -> bool:
        """Whether a row group of the current file may be copied, as a whole or in some columns."""
        return bool(self._copyable) and self._copyable[number]

    def copy(self, number: int) -> bool:
        """Copy a row group; False if it cannot be copied, and its rows must be written."""
        self._worker.check_cancelled()
        opened, footer = self._opened, self._footer
        if opened is None or footer is None or not self.may_copy(number):
            return False
        try:
            self._writing().copy(opened.source, footer, [number])
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
        opened = self._opened
        if opened is None or footer is None or not self.may_copy(number):
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
            self._writing().replace_columns(opened.source, footer, number, buffer.flush(), old_codec, declared)
        except FooterError:
            return False
        return True

    def begin(self, number: int, changed: Collection[str] = ()) -> None:
        """Begin the rows that replace a row group. Columns in `changed` lose their order."""
        if self._keeps_row_groups:
            self._order = b"" if self._footer is None else _declared_order(self._footer, number, changed)
            if self._writer is not None:
                self._writer.end_row_group(self._order)

    def write(self, batch: pa.RecordBatch) -> None:
        """Write rows, cast to the types of the file; other columns are ignored."""
        if not batch.num_rows:
            return
        rows = recast(batch.select(self._schema.names), self._schema)
        self._calendar.refuse_written(rows)
        self._writing().write(rows)

    def _output(self, file: FileInfo) -> Output:
        """The specification of a new file that begins with the rows of `file`."""
        others = () if self._alone else self._files
        output = output_like(file, self._prefix, self._compression, self._changed, others)
        if self._keeps_row_groups:
            return output
        return replace(output, roll_bytes=_MAX_PACKED_BYTES, row_group_rows=ENCODED_ROWS)

    def _writing(self) -> FileWriter:
        """The writer of the new file, which begins with the current file's first row."""
        if self._writer is None:
            assert self._file is not None, "rows belong to a file"
            output = self._output(self._file)
            self._writer = file_writer(output, self._worker, single_file=self._keeps_row_groups, index_all=True)
            if self._alone and self._opened is not None and self._footer is not None and self._copyable:
                self._writer.adopt_schema(self._opened.source, self._footer)
            if self._keeps_row_groups:
                self._writer.end_row_group(self._order)
        return self._writer

    def _end_file(self) -> None:
        """Note whether the current file has rows left."""
        file, self._file, self._opened = self._file, None, None
        if file is None:
            return
        if self._writer is not None and self._writer.num_rows > self._rows_before:
            self._neighbours.append(file)
        else:
            self._emptied.append(file)

    def _end_neighbours(self) -> None:
        """Finish the new file: a file that stays follows, or none."""
        writer, self._writer = self._writer, None
        if writer is not None and self._neighbours:
            writer.finish()
            self._replaced.append(
                Replaced(tuple(self._neighbours), Written(tuple(writer.staged), writer.num_rows))
            )
        elif writer is not None:
            writer.abandon()
        self._neighbours = []

    def _worth_copying(self, file: FileInfo) -> list[bool]:
        columns = len(file.traits.leaves)
        return [self._keeps_row_groups or is_worth_copying(group, columns) for group in file.row_groups]


def _declared_order(footer: Footer, number: int, changed: Collection[str]) -> bytes:
    """The sorting columns that a row group declares, up to the first one that has changed."""
    raw = footer.row_groups[number].sorting_columns
    kept = []
    for column in decode_list(raw, STRUCT) if raw else ():
        position = decode(column).get(_COLUMN, -1)
        if not 0 <= position < len(footer.leaves) or footer.leaves[position].path[0].decode() in changed:
            break
        kept.append(column)
    return encode_structs(kept) if kept else b""
