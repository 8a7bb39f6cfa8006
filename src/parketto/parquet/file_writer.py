"""Writes staged files: row groups of other files as bytes, and rows, encoded in parallel per column."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from itertools import repeat
from types import TracebackType
from typing import IO, NamedTuple

import pyarrow as pa

from parketto.errors import FooterError, ParkettoError
from parketto.parquet.appender import RowGroupAppender
from parketto.parquet.column_parts import ColumnPart, column_parts
from parketto.parquet.compatible import why_not_combinable
from parketto.parquet.file_format import FileFormat
from parketto.parquet.footer import Footer, read_footer
from parketto.parquet.output import Output
from parketto.parquet.row_group_buffer import RowGroupBuffer
from parketto.runtime.memory import release_unused
from parketto.runtime.staging import StagedFile
from parketto.runtime.task import Worker
from parketto.sorting.buckets import roundest
from parketto.storage.store import Store

_ROW_GROUPS_AT_ONCE = 1  # row groups encoded in the background; each holds its decoded rows in memory
# A file may end at the best row group boundary between 80 % and 120 % of its target size.
_MIN_FILL = 0.8
_MAX_FILL = 1.2
_UNLIMITED = 2.0**31  # row groups in a file without a limit
_MAX_EXPANSION = (
    4  # an encoded row group has at most this many times its decoded bytes: INT32 stores 8-bit integers
)


class CannotCombine(ParkettoError):
    """Encoded rows cannot be in one file with the row groups that were copied before."""


class FileWriter:
    """Takes batches of rows, and row groups as bytes, in output order, and writes staged files.

    Rows are buffered until they fill a row group. It is encoded in memory, some columns at a time, and appended.
    Copying a row group ends the buffered one. Without any rows, one file with the schema is written.

    Args:
        store: The store of the files.
        file_format: How rows are encoded. Its metadata, if any, becomes that of the files verbatim.
        new_file: Returns the next staged file.
        row_group_bytes: The maximum decoded bytes per row group.
        row_group_rows: The maximum rows per row group.
        row_limits: The maximum rows of each file in turn.
        roll_bytes: The target size of files; at about that size the next one begins.
        threads: How many threads encode while the caller reads on. Then one more row group is in memory.
        encoders: These threads, if several writers share them. See `settle`.
        index_all: Build page indexes for copied row groups that have none. Otherwise the whole file has none.
    """

    def __init__(
        self,
        store: Store,
        file_format: FileFormat,
        new_file: Callable[[], StagedFile],
        *,
        row_group_bytes: int,
        row_group_rows: int | None = None,
        row_limits: Iterator[int] | None = None,
        roll_bytes: int | None = None,
        threads: int = 0,
        encoders: ThreadPoolExecutor | None = None,
        index_all: bool = False,
    ) -> None:
        self._store, self._format, self._new_file = store, file_format, new_file
        self._row_limits, self._roll_bytes, self._index_all = row_limits, roll_bytes, index_all
        self._max_rows = None if row_limits is None else next(row_limits)
        schema = file_format.readable_as or file_format.schema
        self._buffer = RowGroupBuffer(schema, row_group_bytes, row_group_rows)
        self._threads = threads
        self._encoders, self._own_encoders = encoders, encoders is None
        self._encoding: deque[_Encoding] = deque()
        self._parts: list[ColumnPart] = []
        self._parts_rows = 0  # rows of the row group from which the parts were chosen
        self._sink: IO[bytes] | None = None
        self._appender: RowGroupAppender | None = None
        self._sorted_by: bytes | None = None
        # Bounds without a declared order are dropped if others in the file have one.
        self._has_column_orders = True
        self._file_rows = self._row_groups = 0
        #: The files so far, and their rows.
        self.staged: list[StagedFile] = []
        self.num_rows = 0

    def __enter__(self) -> FileWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.finish()
        else:
            self.abandon()

    def write(self, batch: pa.RecordBatch) -> None:
        """Add rows. Full row groups and files are written at once.

        Raises:
            CannotCombine: The row groups copied before cannot be in one file with encoded rows.
        """
        self.num_rows += batch.num_rows
        while batch.num_rows:
            room = None if self._max_rows is None else self._max_rows - self._file_rows - self._buffer.num_rows
            added = self._buffer.add(batch, room)
            batch = batch.slice(added)
            if not added or self._buffer.is_full:
                self._write_row_group()
                self._roll()
            if self._max_rows is not None and self._file_rows + self._buffer.num_rows >= self._max_rows:
                self._close_file()

    def adopt_schema(self, source: IO[bytes], footer: Footer) -> None:
        """Give the new file the schema of an open one verbatim, before anything else. See `why_not_combined`."""
        self._append_copy(source, footer, ())

    def copy(self, source: IO[bytes], footer: Footer, row_groups: Sequence[int]) -> None:
        """Append row groups of another file as bytes.

        Raises:
            FooterError: They cannot be copied. Nothing of them was written; their rows can still be.
        """
        self.end_row_group()
        self._append_encoded()
        before = self._open().num_rows
        self._append_copy(source, footer, row_groups)
        self.num_rows += self._open().num_rows - before

    def replace_columns(
        self,
        source: IO[bytes],
        footer: Footer,
        number: int,
        columns: pa.Table,
        codec: str,
        sorted_by: bytes | None = None,
    ) -> None:
        """Append a row group of another file, with new values in some of its columns.

        Args:
            source: The other file.
            footer: Its footer. It must be compatible with what Arrow writes, see `why_not_combined`.
            number: The number of the row group.
            columns: New values for all of its rows, in decoded types.
            codec: The codec of the new values.
            sorted_by: The sorting columns that the row group declares now, raw.

        Raises:
            FooterError: It cannot be copied. Nothing of it was written; its rows can still be.
        """
        self.end_row_group()
        self._append_encoded()
        positions = [self._format.schema.get_field_index(name) for name in columns.schema.names]
        if -1 in positions:
            raise FooterError("the file has duplicate column names")
        part = ColumnPart.of(columns, positions, replace(self._format, codec=codec))
        patch = pa.BufferReader(part.encoded(columns))
        with self._appending(footer) as appender:
            appender.replace_columns(source, footer, number, patch, read_footer(patch), sorted_by)
        self.num_rows += columns.num_rows
        release_unused()

    def end_row_group(self, sorted_by: bytes | None = None) -> None:
        """End the buffered row group. The next ones declare these raw sorting columns; None: the format's."""
        if self._buffer.num_rows:
            self._write_row_group()
        self._sorted_by = sorted_by

    def settle(self) -> None:
        """Append the row groups that are being encoded, and end the file if it has reached its target size.

        For writers that share their encoders: until then, each holds its row group, decoded or encoded.
        """
        self._append_encoded()
        self._roll()

    def end_bucket(self, next_rows: float, next_number: int) -> None:
        """End the buffered row group, and the file if this is the best boundary near its target size.

        Args:
            next_rows: The approximate rows of the next row group.
            next_number: Its number. The best boundary is the one before the roundest number.
        """
        self.end_row_group()
        if self._sink is None or (self._max_rows is None and self._is_below(_MIN_FILL, 1)):
            return
        more = self._remaining_row_groups(next_rows)
        if more < 1 or (self._is_full_enough() and roundest(next_number - 1, next_number + more) == next_number):
            self._close_file()

    def finish(self) -> None:
        """Write buffered rows and end the file. Without any rows, write one file with the schema."""
        try:
            if self._buffer.num_rows or self._sink is not None or not self.staged:
                self._close_file()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Close an unfinished file, which is never published."""
        if self._encoders is not None and self._own_encoders:
            self._encoders.shutdown(cancel_futures=True)
        if self._sink is not None:
            self._sink.close()

    def _close_file(self) -> None:
        if self._appender is None and self._sink is None and self._sorted_by is None:
            # A file of a single row group is encoded directly.
            rows = self._buffer.flush() if self._buffer.num_rows else None
            self._new_sink().write(self._format.encoded(rows))
        else:
            self.end_row_group()
            self._append_encoded()
            appender = self._open()
            if not appender.num_row_groups:
                empty = pa.BufferReader(self._format.encoded(None))
                appender.append(empty, read_footer(empty))
            appender.finish(self._format.metadata)
        assert self._sink is not None, "it was opened"
        self._sink.close()
        self._sink = self._appender = None
        self._file_rows = self._row_groups = 0
        if self._row_limits is not None:
            self._max_rows = next(self._row_limits)

    def _is_below(self, fill: float, more: float) -> bool:
        """Whether the file is surely below this share of its target size, also with so many more row groups.

        Nothing waits for row groups that are being encoded.
        """
        encoded = 0 if self._appender is None else self._appender.size_bytes
        most = encoded + _MAX_EXPANSION * sum(each.decoded_bytes for each in self._encoding)
        return (
            self._roll_bytes is not None and most * (1 + more / max(1, self._row_groups)) < fill * self._roll_bytes
        )

    def _size(self) -> int:
        """The size of the file so far, in bytes."""
        self._append_encoded()
        return self._open().size_bytes

    def _roll(self) -> None:
        if self._roll_bytes is None or self._sink is None or self._is_below(1, 0.5):
            return
        # Stop at the boundary that is nearer to the target: now, or after one more row group.
        size = self._size()
        if size + size / self._row_groups / 2 >= self._roll_bytes:
            self._close_file()

    def _remaining_row_groups(self, next_rows: float) -> int:
        """How many more row groups fit into the file."""
        room = _UNLIMITED
        if self._max_rows is not None:
            room = (self._max_rows - self._file_rows) / max(1.0, next_rows)
        if self._roll_bytes is not None:
            size = self._size()
            room = min(room, (self._roll_bytes * _MAX_FILL - size) / (size / self._row_groups))
        return int(room)

    def _is_full_enough(self) -> bool:
        by_rows = 0 if self._max_rows is None else self._file_rows / self._max_rows
        by_bytes = 0 if self._roll_bytes is None else self._size() / self._roll_bytes
        return max(by_rows, by_bytes) >= _MIN_FILL

    def _new_sink(self) -> IO[bytes]:
        staged = self._new_file()
        self._sink = self._store.open_output(staged.path)
        self.staged.append(staged)
        return self._sink

    def _open(self) -> RowGroupAppender:
        if self._appender is None:
            sink = self._new_sink() if self._sink is None else self._sink
            self._appender = RowGroupAppender(sink, same_arrow_schema=_always, index_all=self._index_all)
        return self._appender

    def _append_copy(self, source: IO[bytes], footer: Footer, row_groups: Sequence[int]) -> None:
        with self._appending(footer) as appender:
            appender.append(source, footer, row_groups)

    @contextlib.contextmanager
    def _appending(self, footer: Footer) -> Iterator[RowGroupAppender]:
        """The appender, for copying from a file with this footer."""
        appender = self._open()
        try:
            yield appender
        except FooterError as error:
            if not appender.is_open:  # part of a row group was written
                raise ParkettoError(f"a file has changed while it was copied: {error}") from error
            raise
        self._has_column_orders = self._has_column_orders and footer.column_orders is not None

    def _write_row_group(self) -> None:
        rows = self._buffer.flush()
        self._file_rows += rows.num_rows
        self._row_groups += 1
        if self._sink is None:
            self._new_sink()
        self._choose_parts(rows)
        parts = ((rows.select(part.columns), part) for part in self._parts)
        if not self._threads:
            self._append_parts((part.encoded(columns) for columns, part in parts), self._sorted_by)
            return
        if self._encoders is None:
            self._encoders = ThreadPoolExecutor(self._threads, "parketto-encode")
        if len(self._encoding) == _ROW_GROUPS_AT_ONCE:
            self._append_encoded(1)
        submitted = (self._encoders.submit(part.encoded, columns) for columns, part in parts)
        self._encoding.append(_Encoding(deque(submitted), self._sorted_by, rows.nbytes))

    def _choose_parts(self, rows: pa.Table) -> None:
        """Divide columns into parts and choose dictionaries; again for a row group more than twice as large."""
        if self._parts and rows.num_rows <= 2 * self._parts_rows:
            return
        self._parts_rows = rows.num_rows
        self._parts = column_parts(self._format, rows, self._threads)

    def _append_encoded(self, count: int | None = None) -> None:
        """Append row groups that are being encoded, in order: all, or the first `count`."""
        for _ in range(len(self._encoding) if count is None else count):
            parts, sorted_by, _ = self._encoding.popleft()
            self._append_parts((parts.popleft().result() for _ in range(len(parts))), sorted_by)

    def _append_parts(self, parts: Iterator[pa.Buffer], sorted_by: bytes | None) -> None:
        """Append a row group whose columns are encoded as several files in memory."""
        whole = self._format.empty_footer
        if not self._has_column_orders:
            whole = whole.without_orders()
        order = self._format.declared_order if sorted_by is None else sorted_by
        try:
            self._open().assemble(whole, map(_as_file, parts), order)
        except FooterError as error:
            raise CannotCombine(str(error)) from error
        release_unused()


class _Encoding(NamedTuple):
    """A row group that is being encoded, as several files in memory."""

    parts: deque[Future[pa.Buffer]]
    sorted_by: bytes | None
    decoded_bytes: int


def _as_file(part: pa.Buffer) -> tuple[IO[bytes], Footer]:
    source = pa.BufferReader(part)
    return source, read_footer(source)


def why_not_combined(footer: Footer, file_format: FileFormat) -> str | None:
    """Why row groups of a file and encoded rows cannot be in one file, if they cannot."""
    return why_not_combinable(footer, file_format.empty_footer, same_arrow_schema=_always)


def _always(_one: bytes | None, _other: bytes | None) -> bool:
    """Accept any `ARROW:schema` entries: Arrow reads these files with equal schemas, however serialized."""
    return True


def file_writer(
    output: Output,
    worker: Worker,
    *,
    directory: str | None = None,
    single_file: bool = False,
    row_limits: Iterator[int] | None = None,
    row_group_rows: int | None = None,
    encoders: ThreadPoolExecutor | None = None,
    index_all: bool = False,
) -> FileWriter:
    """A writer of new files within a task's share of memory and threads.

    Args:
        output: The format, directory and limits of the files.
        worker: The resources of the task.
        directory: Overrides the directory of the output.
        single_file: Write one file of any size.
        row_limits: The maximum rows of each file in turn; overrides the output's.
        row_group_rows: The maximum rows per row group, unless the output has a limit.
        encoders: See `FileWriter`.
        index_all: See `FileWriter`; ignored where reading pages again is expensive.
    """
    if row_limits is None and output.max_rows is not None and not single_file:
        row_limits = repeat(output.max_rows)
    return FileWriter(
        worker.store,
        output.format,
        worker.new_files(output.prefix, directory or output.directory),
        row_group_bytes=worker.row_group_bytes,
        row_group_rows=output.row_group_rows or row_group_rows,
        row_limits=row_limits,
        roll_bytes=None if single_file else output.roll_bytes,
        threads=worker.threads if worker.use_threads else 0,
        encoders=encoders if worker.use_threads else None,
        index_all=index_all and worker.store.often_cached,
    )
