"""Writing one file out of row groups of other files, copied as bytes, and of rows, encoded here."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import IO

import pyarrow as pa
import pyarrow.types as pat

from parketto.errors import FooterError, ParkettoError
from parketto.kernels.memory import release_unused
from parketto.kernels.sizes import hardly_repeats
from parketto.kernels.waiting import StagedWriter, WaitingRows
from parketto.kernels.work import StagedFile
from parketto.kernels.writer import FileFormat
from parketto.rowgroups import Footer, RowGroupAppender, read_footer, why_not_together
from parketto.rowgroups.footer import FileKeys, GroupKeys
from parketto.storage.store import Store

# Of a task's memory a sixth is for rows that wait, and as much for rows that are being encoded.
_ENCODERS = 1
# Writers give a dictionary up that has more values of eight bytes than this: in larger row groups one of values
# that hardly repeat is begun in vain. In smaller ones it stays, and files have the sizes that a plan expects.
DICTIONARY_VALUES = 128 * 1024


class DoNotMix(ParkettoError):
    """Rows that Arrow encodes cannot stand in one file with the row groups that were copied before."""


class SplicingWriter(StagedWriter):
    """Takes row groups as bytes and rows as batches, in the order of the new file, and makes one staged file.

    Rows wait until they make a row group, which is encoded in memory and appended like any other. What was written
    and what waits are in the order in which they came: a row group that is copied ends the one that waits.

    Args:
        store: Where the file goes.
        file_format: How rows are encoded. Its metadata is what the file says in the end, to the letter.
        new_file: Gives the file's name.
        row_group_bytes: How large, decoded, the rows of a row group may be.
        row_group_rows: How many rows a row group may have.
        like: A file, open, and its footer: the new file's schema is its schema to the letter. Both must go
            together, see `why_not_spliced`.
        in_background: Whether another thread encodes row groups while more rows come; then one more of them is in
            memory.
        plain_from: Row groups of so many rows have no dictionary where values hardly repeat.
    """

    def __init__(
        self,
        store: Store,
        file_format: FileFormat,
        new_file: Callable[[], StagedFile],
        *,
        row_group_bytes: int,
        row_group_rows: int | None = None,
        like: tuple[IO[bytes], Footer] | None = None,
        in_background: bool = False,
        plain_from: int = DICTIONARY_VALUES,
    ) -> None:
        self._store, self._format, self._new_file, self._like = store, file_format, new_file, like
        self._waiting = WaitingRows(file_format.readable_as or file_format.schema, row_group_bytes, row_group_rows)
        self._plain_from = plain_from
        self._encoders = ThreadPoolExecutor(_ENCODERS, "parketto-encode") if in_background else None
        self._encoding: deque[tuple[Future[pa.Buffer], bytes | None]] = deque()
        self._sink: IO[bytes] | None = None
        self._appender: RowGroupAppender | None = None
        self._declared: bytes | None = None
        # Bounds that come without a declared order are dropped beside those that have one.
        self._bounds_in_order = True
        self.staged: list[StagedFile] = []
        self.num_rows = 0

    def copy(self, source: IO[bytes], footer: Footer, row_groups: Sequence[int]) -> None:
        """Append row groups of another file as they are.

        Raises:
            FooterError: They cannot be copied, and nothing of them was; their rows can still be written.
        """
        self.cut()
        self._append_encoding()
        before = self._open().num_rows
        self._append_copy(source, footer, row_groups)
        self.num_rows += self._open().num_rows - before

    def graft(
        self,
        source: IO[bytes],
        footer: Footer,
        number: int,
        columns: pa.Table,
        codec: str,
        declared: bytes | None = None,
    ) -> None:
        """Append a row group of another file, with new values in some of its columns.

        Args:
            source: The other file.
            footer: Its footer. The file must go together with what Arrow writes, see `why_not_spliced`.
            number: The number of the row group.
            columns: New values for as many rows, in the types in which they are carried.
            codec: The codec of the new values.
            declared: The order that the row group declares now, raw.

        Raises:
            FooterError: It cannot be copied, and nothing of it was; its rows can still be written.
        """
        self.cut()
        self._append_encoding()
        narrow = replace(self._format.narrowed(columns.schema.names), codec=codec)
        patch = pa.BufferReader(self._encoded(columns, narrow))
        with self._changing(footer) as appender:
            appender.graft(source, footer, number, patch, read_footer(patch), declared)
        self.num_rows += columns.num_rows
        release_unused()

    def write(self, batch: pa.RecordBatch) -> None:
        """Take rows in; full row groups go out on the way.

        Raises:
            DoNotMix: What was copied before and what Arrow writes do not go together.
        """
        self.num_rows += batch.num_rows
        while batch.num_rows:
            taken = self._waiting.take(batch)
            batch = batch.slice(taken)
            if not taken or self._waiting.is_full:
                self._write_row_group()

    def cut(self, declared: bytes | None = None) -> None:
        """End the row group that waits. The next ones declare that order, raw as in a footer, or the format's."""
        if self._waiting.num_rows:
            self._write_row_group()
        self._declared = declared

    def finish(self) -> None:
        """Make it a file; without any rows one that has the schema."""
        try:
            self.cut()
            self._append_encoding()
            appender = self._open()
            if not appender.num_row_groups:
                self._append_encoded(self._format.encoded(None))
            appender.finish(self._format.metadata or {})
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Let go of the file; unless it was finished, nobody can use it."""
        if self._encoders is not None:
            self._encoders.shutdown(cancel_futures=True)
        if self._sink is not None:
            self._sink.close()

    def _open(self) -> RowGroupAppender:
        if self._appender is None:
            staged = self._new_file()
            self._sink = self._store.open_output(staged.path)
            self.staged.append(staged)
            self._appender = RowGroupAppender(self._sink, same_arrow_schema=_as_planned)
            if self._like is not None:
                self._append_copy(*self._like, ())
        return self._appender

    def _append_copy(self, source: IO[bytes], footer: Footer, row_groups: Sequence[int]) -> None:
        with self._changing(footer) as appender:
            appender.append(source, footer, row_groups)

    @contextlib.contextmanager
    def _changing(self, footer: Footer) -> Iterator[RowGroupAppender]:
        """Append something of a file with such a footer."""
        appender = self._open()
        try:
            yield appender
        except FooterError as error:
            if not appender.is_open:  # in the middle of a page
                raise ParkettoError(f"a file has changed while it was copied: {error}") from error
            raise
        self._bounds_in_order = self._bounds_in_order and footer.column_orders is not None

    def _write_row_group(self) -> None:
        rows = self._waiting.leave()
        if self._encoders is None:
            self._append_encoded(self._encoded(rows, self._format), self._declared)
            return
        if len(self._encoding) == _ENCODERS:
            self._append_encoding(1)
        self._encoding.append((self._encoders.submit(self._encoded, rows, self._format), self._declared))

    def _encoded(self, rows: pa.Table, file_format: FileFormat) -> pa.Buffer:
        dictionaries = _dictionaries(rows, file_format) if rows.num_rows >= self._plain_from else True
        return file_format.encoded(rows, dictionaries)

    def _append_encoding(self, count: int | None = None) -> None:
        """Append what is being encoded, in its order: all of it, or the first ones."""
        for _ in range(len(self._encoding) if count is None else count):
            encoded, declared = self._encoding.popleft()
            self._append_encoded(encoded.result(), declared)

    def _append_encoded(self, encoded: pa.Buffer, declared: bytes | None = None) -> None:
        source = pa.BufferReader(encoded)
        footer = read_footer(source)
        if declared is not None:
            for group in footer.row_groups:
                group.fields.pop(GroupKeys.SORTING_COLUMNS, None)
                if declared:
                    group.fields[GroupKeys.SORTING_COLUMNS] = declared
        if not self._bounds_in_order:
            footer.fields.pop(FileKeys.COLUMN_ORDERS, None)
        try:
            self._open().append(source, footer)
        except FooterError as error:
            raise DoNotMix(str(error)) from error
        release_unused()


def _dictionaries(rows: pa.Table, file_format: FileFormat) -> list[str]:
    """The leaf columns that are worth a dictionary. A column of categories always has one."""
    kinds = file_format.readable_as or file_format.schema
    without = {
        name
        for name, column, kind in zip(rows.schema.names, rows.columns, kinds.types, strict=True)
        if not pat.is_dictionary(kind) and hardly_repeats(column)
    }
    leaves = (b".".join(leaf.path).decode() for leaf in file_format.empty_footer.leaves)
    return [path for path in leaves if path not in without]


def why_not_spliced(footer: Footer, file_format: FileFormat) -> str | None:
    """Why row groups of a file and rows that Arrow encodes cannot stand in one file, if they cannot."""
    return why_not_together(footer, file_format.empty_footer, same_arrow_schema=_as_planned)


def _as_planned(_one: bytes | None, _other: bytes | None) -> bool:
    """Files meet here whose Arrow schemas, as Arrow reads them, are equal: the notes need not be."""
    return True
