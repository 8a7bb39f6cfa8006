"""Writing the successor of one file, row group by row group: those that stay as bytes, the others from rows."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from types import TracebackType

import pyarrow as pa

from parketto.errors import FooterError
from parketto.kernels.carrier import carrier_schema, recast
from parketto.kernels.copying import can_be_read_back, codec_of, copier, has_codec, small_categories
from parketto.kernels.reader import OpenFile
from parketto.kernels.splicing import why_not_spliced
from parketto.kernels.waiting import WaitingRows
from parketto.kernels.work import Worker
from parketto.kernels.write import Output, Written
from parketto.rowgroups import Footer, read_footer
from parketto.rowgroups.compact import I32, STRUCT, decode, decode_list, encode_structs, key
from parketto.storage.calendars import CalendarCheck

_COLUMN = key(1, I32)


class Successor:
    """Takes the row groups of a file in their order, and writes the file that follows it.

    A row group that stays is copied, and keeps its codec and all that it has. One in which some columns change is
    copied but for these. One that loses rows is encoded; its borders stay where they are, unless it has become too
    large for one. If Arrow would not write the file as it is
    (legacy forms of lists, say), nothing is copied and everything is encoded.

    Args:
        opened: The file.
        output: What the new file is like.
        worker: What to work with.
        codec: The codec that row groups must have to be copied; None leaves each its own.
    """

    def __init__(self, opened: OpenFile, output: Output, worker: Worker, codec: str | None = None) -> None:
        file = opened.file
        assert file.schema is not None, "files to rewrite come from a snapshot"
        self._opened, self._worker, self._codec = opened, worker, codec
        self._readable, self._schema = file.schema, carrier_schema(file.schema).remove_metadata()
        self._small = small_categories(file.schema)
        self._calendar = CalendarCheck(self._schema, file.metadata, file.traits.int96)
        self._footer = _footer(opened)
        self._copies = self._footer is not None and why_not_spliced(self._footer, output.format) is None
        like = (opened.source, self._footer) if self._footer is not None and self._copies else None
        self._writer = copier(output, worker, like=like)

    def __enter__(self) -> Successor:
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
        """What was written; no file if no rows were."""
        return Written(tuple(self._writer.staged) if self._writer.num_rows else (), self._writer.num_rows)

    def copy(self, number: int) -> bool:
        """Take a row group as it is; False if that cannot be, and its rows must be written."""
        self._worker.check_cancelled()
        if self._footer is None or not self._is_copied(self._footer, number):
            return False
        try:
            self._writer.copy(self._opened.source, self._footer, [number])
        except FooterError:
            return False
        return True

    def graft(
        self, number: int, changed: Collection[str], rows: Iterator[pa.RecordBatch], codec: str | None = None
    ) -> bool:
        """Take a row group as it is, but for some columns.

        Args:
            number: The number of the row group.
            changed: The columns.
            rows: The new values of these columns, for all rows. Further columns are left out.
            codec: The codec that they must get; None leaves them the one of the old values.

        Returns:
            False if that cannot be, or is too much at once, and rows must be written.
        """
        footer, names = self._footer, [name for name in self._schema.names if name in changed]
        if footer is None or not self._is_copied(footer, number):
            return False
        if not 0 < len(names) < len(self._schema.names):
            return False
        places = [at for at, leaf in enumerate(footer.leaves) if leaf.path[0].decode() in names]
        # Never another one: a row group of two codecs would be taken for one of either by whoever looks at some of
        # its columns only.
        old_codec = codec_of(footer.row_groups[number], places)
        if old_codec is None or codec not in (None, old_codec):
            return False
        schema = pa.schema([self._schema.field(name) for name in names])
        readable = pa.schema([self._readable.field(name) for name in names])
        waiting = WaitingRows(readable, self._worker.row_group_bytes)
        for batch in rows:
            part = recast(batch.select(names), schema)
            self._calendar.refuse_written(part)
            if waiting.is_full or waiting.take(part) < part.num_rows:
                return False
        try:
            declared = _declared(footer, number, names)
            self._writer.graft(self._opened.source, footer, number, waiting.leave(), old_codec, declared)
        except FooterError:
            return False
        return True

    def begin(self, number: int, changed: Collection[str] | None = ()) -> None:
        """Rows come that take the place of a row group. None of `changed` stays in order; None: no column does."""
        self._writer.cut(b"" if self._footer is None else _declared(self._footer, number, changed))

    def write(self, batch: pa.RecordBatch) -> None:
        """Take rows, in whatever types Arrow has carried them; further columns are left out."""
        rows = recast(batch.select(self._schema.names), self._schema)
        self._calendar.refuse_written(rows)
        self._writer.write(rows)

    def _is_copied(self, footer: Footer, number: int) -> bool:
        group = footer.row_groups[number]
        return (
            self._copies
            and (self._codec is None or has_codec(group, self._codec))
            and can_be_read_back(group, footer, self._small)
        )


def _footer(opened: OpenFile) -> Footer | None:
    try:
        footer = read_footer(opened.source)
    except FooterError:
        return None
    # What is not the file that was listed is found out before anything is published.
    return footer if len(footer.row_groups) == len(opened.file.row_groups) else None


def _declared(footer: Footer, number: int, changed: Collection[str] | None) -> bytes:
    """The order that a row group declares, as far as it is one of columns that have not changed."""
    raw = footer.row_groups[number].sorting_columns
    kept = []
    for column in decode_list(raw, STRUCT) if raw and changed is not None else ():
        place = decode(column).get(_COLUMN, -1)
        if not 0 <= place < len(footer.leaves) or footer.leaves[place].path[0].decode() in (changed or ()):
            break
        kept.append(column)
    return encode_structs(kept) if kept else b""
