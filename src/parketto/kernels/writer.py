"""Writing staged Parquet files: row groups of bounded size, outputs cut at the planned place."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import IO

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pat

from parketto.kernels.annotating import AnnotatingWriter
from parketto.kernels.memory import release_unused
from parketto.kernels.mixed_timestamps import MixedWriter, int96_numbers, mixes_int96
from parketto.kernels.sizes import HUGE_VALUE_BYTES, hardly_repeats, has_huge_values
from parketto.kernels.waiting import StagedWriter, WaitingRows
from parketto.kernels.work import StagedFile
from parketto.layout.buckets import roundest
from parketto.rowgroups import Footer, read_footer
from parketto.rowgroups.footer import ascending
from parketto.rowgroups.spark_note import noted_annotations
from parketto.storage.bounds import leaf_index
from parketto.storage.footers import STANDARD_LAYOUT, PhysicalTraits
from parketto.storage.spark_note import fitting_note
from parketto.storage.store import Store

# How full a file is that may end where it suits best.
_LEAST_FULL = 0.8
_MOST_FULL = 1.2
_ENDLESS = 2.0**31
# A row group of fewer rows says nothing of the next ones.
_TELLING_ROWS = 4096


@dataclass(frozen=True)
class FileFormat:
    """How the files of one group are written."""

    schema: pa.Schema
    codec: str
    #: Verbatim key-value metadata, Arrow's own schema entry included; None lets the writer make it.
    metadata: Mapping[bytes, bytes] | None = None
    traits: PhysicalTraits = STANDARD_LAYOUT
    order_by: Sequence[str] = ()
    #: The schema that readers will see, if rows are carried in another one.
    readable_as: pa.Schema | None = None

    def open(
        self, sink: IO[bytes], dictionaries: bool | list[str] = True, first: pa.Table | None = None
    ) -> pq.ParquetWriter:
        """A writer for one file.

        Args:
            sink: Where it goes.
            dictionaries: The leaf columns that get one, or whether all do.
            first: The first rows: columns of huge values in them get no statistics. Arrow would copy values
                several times to find bounds, and then leave them out because they are too long.
        """
        if mixes_int96(self):
            return MixedWriter(sink, self, dictionaries)
        verbatim = self.metadata is not None
        schema = self.schema.remove_metadata() if verbatim else fitting_note(self.schema)
        order = [pq.SortingColumn(leaf_index(self.schema, name)) for name in self.order_by]
        return AnnotatingWriter(
            sink,
            schema,
            self.traits.annotations or (() if verbatim else noted_annotations(schema.metadata)),
            compression=self.codec.upper(),
            use_dictionary=dictionaries,
            store_schema=not verbatim,
            # A rewritten list keeps the name of its elements; new files get the standard's name.
            use_compliant_nested_type=not verbatim,
            # Arrow writes all timestamps so, or none.
            use_deprecated_int96_timestamps=bool(int96_numbers(self)),
            store_decimal_as_integer=self.traits.integer_decimals,
            write_time_adjusted_to_utc=self.traits.utc_times,
            write_page_index=True,
            write_statistics=self._with_statistics(first),
            sorting_columns=order or None,
        )

    def _with_statistics(self, rows: pa.Table | None) -> bool | list[str]:
        columns = [] if rows is None else zip(rows.schema.names, rows.columns, strict=True)
        huge = {name for name, column in columns if has_huge_values(column)}
        if not huge:
            return True
        return [
            b".".join(leaf.path).decode() for leaf in self.empty_footer.leaves if leaf.path[0].decode() not in huge
        ]

    def close(self, writer: pq.ParquetWriter) -> None:
        """End a file."""
        if self.metadata:
            writer.add_key_value_metadata(dict(self.metadata))
        writer.close()

    @property
    def empty_footer(self) -> Footer:
        """The footer that Arrow gives such a file without any rows."""
        notes = None if self.metadata is None else frozenset(self.metadata.items())
        # Not the schema itself: to Arrow two are equal that differ in the ids of their fields.
        schema = self.schema.serialize().to_pybytes()
        return _empty_footer(schema, self.codec, notes, self.traits, tuple(self.order_by))

    @property
    def declared_order(self) -> bytes:
        """The order that row groups declare, raw."""
        return ascending(leaf_index(self.schema, name) for name in self.order_by)

    def dictionaries(self, rows: pa.Table) -> list[str]:
        """The leaf columns that are worth a dictionary, as these rows tell. Categories always have one."""
        kinds = self.readable_as or self.schema
        without = {
            name
            for name, column, kind in zip(rows.schema.names, rows.columns, kinds.types, strict=True)
            if not pat.is_dictionary(kind) and hardly_repeats(column)
        }
        leaves = (b".".join(leaf.path).decode() for leaf in self.empty_footer.leaves)
        return [path for path in leaves if path not in without]

    def narrowed(self, positions: Sequence[int]) -> FileFormat:
        """The format of a part of such a file: some of its columns, and no notes."""
        assert self.metadata is not None, "without notes to keep, lists would be called something else in a part"
        readable = (
            None if self.readable_as is None else pa.schema([self.readable_as.field(at) for at in positions])
        )
        schema = pa.schema([self.schema.field(at) for at in positions])
        return replace(self, schema=schema, metadata={}, order_by=(), readable_as=readable)

    def encoded(self, rows: pa.Table | None, dictionaries: bool | list[str] = True) -> pa.Buffer:
        """A whole file in memory, with the rows as one row group, or without any."""
        sink = pa.BufferOutputStream()
        writer = self.open(sink, dictionaries, rows)
        if rows is not None:
            writer.write_table(rows, row_group_size=rows.num_rows)
        self.close(writer)
        return sink.getvalue()


@functools.lru_cache(maxsize=64)
def _empty_footer(
    raw_schema: bytes,
    codec: str,
    notes: frozenset[tuple[bytes, bytes]] | None,
    traits: PhysicalTraits,
    order_by: tuple[str, ...],
) -> Footer:
    """Thousands of files mostly share one format: it is tried out once."""
    metadata = None if notes is None else dict(notes)
    schema = pa.ipc.read_schema(pa.py_buffer(raw_schema))
    return read_footer(pa.BufferReader(FileFormat(schema, codec, metadata, traits, order_by).encoded(None)))


def _is_huge(rows: pa.Table) -> bool:
    return bool(rows.nbytes > HUGE_VALUE_BYTES * rows.num_rows)


class RollingWriter(StagedWriter):
    """Takes batches and makes staged files of them.

    Rows wait, decoded, until they make a row group of `row_group_bytes`; that and one row group's encoded
    bytes are all that is held.
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
    ) -> None:
        self._store, self._format, self._new_file = store, file_format, new_file
        self._row_limits, self._roll_bytes = row_limits, roll_bytes
        self._max_rows = None if row_limits is None else next(row_limits)
        schema = file_format.readable_as or file_format.schema
        self._waiting = WaitingRows(schema, row_group_bytes, row_group_rows)
        self.staged: list[StagedFile] = []
        self._sink: IO[bytes] | None = None
        self._writer: pq.ParquetWriter | None = None
        self._file_rows = 0
        self._row_groups = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Take a batch in; full row groups and full files go out on the way."""
        while batch.num_rows:
            room = None
            if self._max_rows is not None:
                room = self._max_rows - self._file_rows - self._waiting.num_rows
            taken = self._waiting.take(batch, room)
            if not taken:
                self._write_row_group()
                continue
            batch = batch.slice(taken)
            if self._waiting.is_full:
                self._write_row_group()
                self._roll()
            if self._max_rows is not None and self._file_rows + self._waiting.num_rows >= self._max_rows:
                self._close_file()

    def cut(self, expected_rows: float = 0, number: int | None = None) -> None:
        """End the row group here, and perhaps the file.

        Args:
            expected_rows: How many rows the next row group has, about.
            number: The number of the next row group. Of the borders near the target the one before the roundest
                number is where a file ends best.
        """
        self._write_row_group()
        if self._writer is None:
            return
        more = self._row_groups_to_come(expected_rows)
        if more < 1 or (
            number is not None and self._is_full_enough() and roundest(number - 1, number + more) == number
        ):
            self._close_file()

    def _row_groups_to_come(self, expected_rows: float) -> int:
        """How many more row groups the file can take."""
        room = _ENDLESS
        if self._max_rows is not None:
            room = (self._max_rows - self._file_rows) / max(1.0, expected_rows)
        if self._roll_bytes is not None and self._sink is not None:
            written = self._sink.tell()
            room = min(room, (self._roll_bytes * _MOST_FULL - written) / (written / self._row_groups))
        return int(room)

    def _is_full_enough(self) -> bool:
        assert self._sink is not None, "an open writer has a sink"
        by_rows = 0 if self._max_rows is None else self._file_rows / self._max_rows
        by_bytes = 0 if self._roll_bytes is None else self._sink.tell() / self._roll_bytes
        return max(by_rows, by_bytes) >= _LEAST_FULL

    def finish(self) -> None:
        """Write what waits. Without any rows at all, one file with the schema is still made."""
        if self._waiting.num_rows or self._writer is not None or not self.staged:
            self._close_file()

    def abandon(self) -> None:
        """Let go of a file that nobody will use."""
        if self._writer is not None:
            self._writer.is_open = False  # or it would write its footer when it is collected
        if self._sink is not None:
            self._sink.close()

    def _write_row_group(self) -> None:
        if not self._waiting.num_rows:
            return
        table = self._waiting.leave()
        self._open_file(table).write_table(table, row_group_size=table.num_rows)
        self._file_rows += table.num_rows
        self._row_groups += 1
        del table
        release_unused()

    def _roll(self) -> None:
        if self._roll_bytes is None or self._sink is None:
            return
        written = self._sink.tell()
        # Stop at the border that is nearer to the target: now, or after one more row group.
        if written + written / self._row_groups / 2 >= self._roll_bytes:
            self._close_file()

    def _open_file(self, first: pa.Table | None = None) -> pq.ParquetWriter:
        """The writer of the file; its first row group tells which columns are worth a dictionary."""
        if self._writer is None:
            staged = self._new_file()
            self._sink = self._store.open_output(staged.path)
            self.staged.append(staged)
            telling = first is not None and (first.num_rows >= _TELLING_ROWS or _is_huge(first))
            dictionaries = self._format.dictionaries(first) if telling else True
            self._writer = self._format.open(self._sink, dictionaries, first)
        return self._writer

    def _close_file(self) -> None:
        self._write_row_group()
        writer = self._open_file()
        assert self._sink is not None, "an open writer has a sink"
        self._format.close(writer)
        self._sink.close()
        self._writer = self._sink = None
        self._file_rows = self._row_groups = 0
        if self._row_limits is not None:
            self._max_rows = next(self._row_limits)
