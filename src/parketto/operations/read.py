"""Read rows of a dataset: pruned by partitions, files, row groups and pages, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import pyarrow as pa

from parketto.arguments import check_columns_exist, check_names
from parketto.errors import InvalidArgument
from parketto.expressions.conditions import Predicate, predicate
from parketto.expressions.pruning import may_match, row_groups_may_match, rows_may_match
from parketto.operations.context import DatasetContext
from parketto.operations.path_pruning import RowCondition
from parketto.parquet.bounded_columns import MentionedColumns
from parketto.parquet.decoded_types import recast
from parketto.parquet.file_info import FileInfo
from parketto.parquet.logical_reader import LogicalReader
from parketto.parquet.page_reader import PageReader
from parketto.parquet.parallel_reader import read_parallel
from parketto.parquet.partition_spec import PartitionSpec, partition_spec_of
from parketto.parquet.reader import OpenFile
from parketto.parquet.row_ranges import Hits, Ranges
from parketto.parquet.snapshot import Snapshot
from parketto.storage.hive import PartitionFilter
from parketto.storage.store import Store

_BATCH_BYTES = 16 * 1024 * 1024  # decoded; a few batches per thread are in memory at a time
_THREADS = 4  # files that are read ahead of the consumer, in order


@dataclass(frozen=True)
class RowQuery:
    """Which rows and columns to read from a dataset."""

    columns: str | Sequence[str] | None = None
    where: Any = None
    limit: int | None = None
    partition_filter: PartitionFilter = None

    def __post_init__(self) -> None:
        limit = self.limit
        if limit is not None and (type(limit) is not int or limit < 0):
            raise InvalidArgument(f"limit must be a whole number of at least 0, got {limit!r}")


def row_schema(snapshot: Snapshot) -> pa.Schema:
    """The columns that readers of a dataset see: those of its files, then those that only paths contain."""
    return _row_schema(snapshot.files, partition_spec_of(snapshot.files))


def _row_schema(files: Sequence[FileInfo], spec: PartitionSpec) -> pa.Schema:
    schema = files[0].schema
    assert schema is not None, "files to read come from a snapshot"
    return spec.row_schema(schema).remove_metadata()


def scan(dataset: DatasetContext, query: RowQuery) -> pa.RecordBatchReader:
    """The rows as a stream of batches, files ordered by path."""
    plan = planned_scan(dataset, query)
    return pa.RecordBatchReader.from_batches(plan.schema, _limited(plan.batches(), query.limit))


def planned_scan(dataset: DatasetContext, query: RowQuery) -> Scan:
    """The files of the current snapshot that may have rows for a query, and what to read from them."""
    mentioned = () if query.where is None else MentionedColumns(str(query.where))
    rows = None if query.where is None else RowCondition(query.where, dataset.clock())
    return scan_of(dataset, dataset.snapshot(query.partition_filter, mentioned, rows=rows), query)


def scan_of(dataset: DatasetContext, snapshot: Snapshot, query: RowQuery) -> Scan:
    """The files of a snapshot that may have rows for a query, and what to read from them."""
    whole = schema = row_schema(snapshot)
    if query.columns is not None:
        names = (query.columns,) if isinstance(query.columns, str) else check_names("columns", query.columns)
        check_columns_exist(names, schema)
        schema = pa.schema([schema.field(name) for name in names])
    condition = None if query.where is None else predicate(query.where, whole, dataset.clock())
    spec = partition_spec_of(snapshot.files)
    files = _matching_files(snapshot.files, condition, spec)
    return Scan(dataset.snapshot_store(), files, whole, schema, condition, spec)


def _matching_files(
    files: Sequence[FileInfo], condition: Predicate | None, spec: PartitionSpec
) -> tuple[FileInfo, ...]:
    if condition is None:
        return tuple(file for file in files if file.num_rows)
    possible = may_match(condition, files, spec.path_only)
    return tuple(file for file, matches in zip(files, possible, strict=True) if matches)


def _limited(batches: Iterator[pa.RecordBatch], limit: int | None) -> Iterator[pa.RecordBatch]:
    # Readers have threads, which must end with the stream.
    with closing(batches):  # type: ignore[type-var]
        if limit is None:
            yield from batches
            return
        left = limit
        while left > 0 and (batch := next(batches, None)) is not None:
            yield batch.slice(0, left)
            left -= batch.num_rows


@dataclass(frozen=True)
class Scan:
    """Reads the rows of files that match a condition. It can be pickled, and limited to some of the files."""

    store: Store
    files: tuple[FileInfo, ...]
    #: All columns of the dataset, and those to return.
    whole: pa.Schema
    schema: pa.Schema
    condition: Predicate | None
    spec: PartitionSpec

    def of_condition(self) -> Scan:
        """The same rows, with the columns of the condition only."""
        columns = () if self.condition is None else self.condition.columns
        return replace(
            self, schema=pa.schema([self.whole.field(name) for name in columns or self.whole.names[:1]])
        )

    @cached_property
    def _reader(self) -> LogicalReader:
        columns = () if self.condition is None else self.condition.columns
        used = [name for name in columns if name not in self.schema.names]
        read = pa.schema([*self.schema, *(self.whole.field(name) for name in used)])
        # Conditions are evaluated on decoded types; without one, values keep the types of the schema.
        return LogicalReader(
            self.store, read, _BATCH_BYTES, self.spec, use_threads=True, decoded=self.condition is not None
        )

    @cached_property
    def _probe(self) -> LogicalReader | None:
        """Reads only the columns of the condition, if there are others."""
        columns = () if self.condition is None else self.condition.columns
        if not 0 < len(columns) < len(self._reader.schema.names):
            return None
        fields = [self.whole.field(name) for name in columns]
        return LogicalReader(self.store, pa.schema(fields), _BATCH_BYTES, self.spec, use_threads=True)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The matching rows in the requested schema."""
        rows = read_parallel(self.files, self._rows, _BATCH_BYTES, threads=_THREADS)
        with closing(rows):
            for batch in rows:
                found = batch.select(self.schema.names)
                yield found if found.schema.equals(self.schema) else recast(found, self.schema)

    def _rows(self, files: Sequence[FileInfo]) -> Iterator[pa.RecordBatch]:
        for file in files:
            yield from (
                self._reader.read(file) if self.condition is None else self._matching(file, self.condition)
            )

    def _matching(self, file: FileInfo, condition: Predicate) -> Iterator[pa.RecordBatch]:
        """The matching rows. The columns of the condition come first: most row groups may have no match."""
        possible = row_groups_may_match(condition, file, self.spec.path_only)
        with self._reader.open(file) as opened:
            for number in (number for number, matches in enumerate(possible) if matches):
                names = self._reader.schema.names
                pages = opened.pages(number, names, condition.columns)
                rows = rows_may_match(condition, file, number, pages, self.spec.path_only)
                if self._probe is not None:
                    rows = self._probed(self._probe, opened, number, rows, pages)
                for batch in self._reader.rows_in(opened, number, rows, pages) if rows else ():
                    found = batch.filter(condition.matches(batch))
                    if found.num_rows:
                        yield found

    def _probed(
        self, probe: LogicalReader, opened: OpenFile, number: int, rows: Ranges, pages: PageReader | None
    ) -> Ranges:
        """The ranges without those in which no row matches."""
        assert self.condition is not None, "a condition has columns to probe"
        hits = Hits(rows)
        for batch in probe.rows_in(probe.also(opened), number, rows, pages):
            hits.add(self.condition.matches(batch))
            # Without pages to skip, it is enough to know whether any row matches.
            if hits.are_dense or (pages is None and hits.ranges):
                return rows
        return hits.ranges
