"""Writing one file out of row groups of other files, copied as bytes, and of rows, encoded here."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from itertools import accumulate
from typing import IO, NamedTuple

import pyarrow as pa

from parketto.errors import FooterError, ParkettoError
from parketto.kernels.memory import release_unused
from parketto.kernels.waiting import StagedWriter, WaitingRows
from parketto.kernels.work import StagedFile
from parketto.kernels.writer import FileFormat
from parketto.rowgroups import Footer, RowGroupAppender, read_footer, why_not_together
from parketto.storage.store import Store

# Of a task's memory an eighth is for rows that wait, and as much for rows that are being encoded.
_ROW_GROUPS_AT_ONCE = 1
# The columns of a row group are encoded in parts: so many for each thread, so that none waits long, and of such a
# size, because as much is held until it is written. To begin one takes about as long as to encode so much.
_PARTS_PER_THREAD = 2
_PART_BYTES = 3 * 1024 * 1024
_LEAST_PART_BYTES = 512 * 1024


_SMALL_ROW_GROUP = 16 * 1024
_TOLD_FOR = 8


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
        threads: How many other threads encode a row group, some columns each, while rows for the next one come;
            then one more row group is in memory.
        index_all: Whether copied row groups without page indexes get some: next to others they would be the reason
            why the file has none.
        choices: Which columns got dictionaries in small row groups of other files, for those that are alike.
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
        threads: int = 0,
        index_all: bool = False,
        choices: Choices | None = None,
    ) -> None:
        self._store, self._format, self._new_file, self._like = store, file_format, new_file, like
        self._index_all = index_all
        self._choices = Choices() if choices is None else choices
        self._waiting = WaitingRows(file_format.readable_as or file_format.schema, row_group_bytes, row_group_rows)
        self._encoders = ThreadPoolExecutor(threads, "parketto-encode") if threads else None
        self._encoding: deque[tuple[deque[Future[pa.Buffer]], bytes | None]] = deque()
        self._threads = threads
        self._parts: list[_Part] = []
        self._decided_by = 0
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
        positions = [self._format.schema.get_field_index(name) for name in columns.schema.names]
        if -1 in positions:
            raise FooterError("several columns have the same name")
        part = _Part.of(columns, positions, replace(self._format, codec=codec), self._choices)
        patch = pa.BufferReader(part.encoded(columns))
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
                empty = pa.BufferReader(self._format.encoded(None))
                appender.append(empty, read_footer(empty))
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
            self._appender = RowGroupAppender(self._sink, same_arrow_schema=_as_planned, index_all=self._index_all)
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
        self._divide(rows)
        parts = ((rows.select(part.columns), part) for part in self._parts)
        if self._encoders is None:
            self._append_encoded((part.encoded(columns) for columns, part in parts), self._declared)
            return
        if len(self._encoding) == _ROW_GROUPS_AT_ONCE:
            self._append_encoding(1)
        begun = (self._encoders.submit(part.encoded, columns) for columns, part in parts)
        self._encoding.append((deque(begun), self._declared))

    def _divide(self, rows: pa.Table) -> None:
        """Which columns make a part, and which get dictionaries: a first row group decides, if it is not small."""
        if self._parts and rows.num_rows <= 2 * self._decided_by:
            return
        self._decided_by = rows.num_rows
        self._parts = [
            _Part.of(rows.select(columns), columns, self._format, self._choices)
            for columns in _parts(rows, self._threads * _PARTS_PER_THREAD)
        ]

    def _append_encoding(self, count: int | None = None) -> None:
        """Append what is being encoded, in its order: all of it, or the first ones."""
        for _ in range(len(self._encoding) if count is None else count):
            begun, declared = self._encoding.popleft()
            self._append_encoded((begun.popleft().result() for _ in range(len(begun))), declared)

    def _append_encoded(self, parts: Iterator[pa.Buffer], declared: bytes | None) -> None:
        """Append a row group whose columns are encoded in several files."""
        whole = self._format.empty_footer
        if not self._bounds_in_order:
            whole = whole.without_orders()
        order = self._format.declared_order if declared is None else declared
        try:
            self._open().assemble(whole, map(_as_file, parts), order)
        except FooterError as error:
            raise DoNotMix(str(error)) from error
        release_unused()


class Choices:
    """Which columns get dictionaries: for small row groups others that were like them have told already.

    To look at the values of 3,000 rows takes a fifth as long as all else that is done to them. Every now and then
    it is done nevertheless, because other files may have other values.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[pa.Schema, pa.Schema], tuple[list[str], int]] = {}

    def dictionaries(self, rows: pa.Table, file_format: FileFormat) -> list[str]:
        """The leaf columns of these rows that are worth one."""
        if rows.num_rows > _SMALL_ROW_GROUP:
            return file_format.dictionaries(rows)
        alike = rows.schema, file_format.readable_as or file_format.schema
        names, left = self._known.get(alike, ([], 0))
        if not left:
            names, left = file_format.dictionaries(rows), _TOLD_FOR
        self._known[alike] = names, left - 1
        return names


def _as_file(part: pa.Buffer) -> tuple[IO[bytes], Footer]:
    source = pa.BufferReader(part)
    return source, read_footer(source)


class _Part(NamedTuple):
    """Some columns of every row group: where they stand, and how they are encoded."""

    columns: Sequence[int]
    format: FileFormat
    dictionaries: list[str]

    @classmethod
    def of(cls, rows: pa.Table, columns: Sequence[int], whole: FileFormat, choices: Choices) -> _Part:
        narrow = whole.narrowed(columns)
        return cls(columns, narrow, choices.dictionaries(rows, narrow))

    def encoded(self, rows: pa.Table) -> pa.Buffer:
        return self.format.encoded(rows, self.dictionaries)


def _parts(rows: pa.Table, at_least: int) -> list[list[int]]:
    """The positions of columns in runs of about the same size, so many, or more if they are large."""
    if len(set(rows.schema.names)) < rows.num_columns:  # parts of a file are told apart by the names in them
        return [list(range(rows.num_columns))]
    sizes = [column.nbytes + 1 for column in rows.columns]
    whole = sum(sizes)
    count = min(max(at_least, whole // _PART_BYTES, 1), max(1, whole // _LEAST_PART_BYTES))
    parts: dict[int, list[int]] = {}
    for at, (size, end) in enumerate(zip(sizes, accumulate(sizes), strict=True)):
        parts.setdefault(int((end - size / 2) * count / whole), []).append(at)
    return list(parts.values())


def why_not_spliced(footer: Footer, file_format: FileFormat) -> str | None:
    """Why row groups of a file and rows that Arrow encodes cannot stand in one file, if they cannot."""
    return why_not_together(footer, file_format.empty_footer, same_arrow_schema=_as_planned)


def _as_planned(_one: bytes | None, _other: bytes | None) -> bool:
    """Files meet here whose Arrow schemas, as Arrow reads them, are equal: the notes need not be."""
    return True
