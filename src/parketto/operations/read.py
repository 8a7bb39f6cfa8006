"""Read rows of a dataset: pruned by partitions, files and row groups, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from parketto.arguments import check_columns_exist, check_names
from parketto.errors import InvalidArgument
from parketto.expressions.conditions import Predicate, predicate
from parketto.expressions.pruning import may_match, row_groups_may_match
from parketto.operations.context import DatasetContext
from parketto.parquet.decoded_types import recast
from parketto.parquet.file_info import FileInfo, MentionedColumns
from parketto.parquet.parallel_reader import read_parallel
from parketto.parquet.partition_spec import PartitionSpec, partition_spec_of
from parketto.parquet.reader import LogicalReader
from parketto.parquet.snapshot import Snapshot
from parketto.storage.hive import PartitionFilter

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
    schema = snapshot.files[0].schema
    assert schema is not None, "files to read come from a snapshot"
    return partition_spec_of(snapshot.files).row_schema(schema).remove_metadata()


def scan(dataset: DatasetContext, query: RowQuery) -> pa.RecordBatchReader:
    """The rows as a stream of batches, files ordered by path."""
    mentioned = () if query.where is None else MentionedColumns(str(query.where))
    snapshot = dataset.snapshot(query.partition_filter, mentioned)
    schema = row_schema(snapshot)
    if query.columns is not None:
        names = (query.columns,) if isinstance(query.columns, str) else check_names("columns", query.columns)
        check_columns_exist(names, schema)
        schema = pa.schema([schema.field(name) for name in names])
    condition = None if query.where is None else predicate(query.where, row_schema(snapshot), dataset.clock())
    work = _Scan(dataset, snapshot, schema, condition)
    return pa.RecordBatchReader.from_batches(schema, _limited(work.batches(), query.limit))


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


class _Scan:
    """Reads the rows of a snapshot that match a condition."""

    def __init__(
        self, dataset: DatasetContext, snapshot: Snapshot, schema: pa.Schema, condition: Predicate | None
    ) -> None:
        self._snapshot, self._schema, self._condition = snapshot, schema, condition
        self._spec: PartitionSpec = partition_spec_of(snapshot.files)
        whole = row_schema(snapshot)
        used = () if condition is None else (name for name in condition.columns if name not in schema.names)
        read = pa.schema([*schema, *(whole.field(name) for name in used)])
        # Conditions are evaluated on decoded types; without one, values keep the types of the schema.
        self._reader = LogicalReader(
            dataset.store, read, _BATCH_BYTES, self._spec, use_threads=True, decoded=condition is not None
        )
        self._probe: LogicalReader | None = None
        if condition is not None and 0 < len(condition.columns) < len(read.names):
            fields = [whole.field(name) for name in condition.columns]
            self._probe = LogicalReader(
                dataset.store, pa.schema(fields), _BATCH_BYTES, self._spec, use_threads=True
            )

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The matching rows in the requested schema."""
        rows = read_parallel(self._files(), self._rows, _BATCH_BYTES, threads=_THREADS)
        with closing(rows):
            for batch in rows:
                found = batch.select(self._schema.names)
                yield found if found.schema.equals(self._schema) else recast(found, self._schema)

    def _files(self) -> list[FileInfo]:
        files = self._snapshot.files
        if self._condition is None:
            return [file for file in files if file.num_rows]
        possible = may_match(self._condition, files, self._spec.path_only)
        return [file for file, matches in zip(files, possible, strict=True) if matches]

    def _rows(self, files: Sequence[FileInfo]) -> Iterator[pa.RecordBatch]:
        for file in files:
            yield from (
                self._reader.read(file) if self._condition is None else self._matching(file, self._condition)
            )

    def _matching(self, file: FileInfo, condition: Predicate) -> Iterator[pa.RecordBatch]:
        """The matching rows. The columns of the condition come first: most row groups may have no match."""
        possible = row_groups_may_match(condition, file, self._spec.path_only)
        with self._reader.open(file) as opened:
            for number in (number for number, matches in enumerate(possible) if matches):
                if self._probe is not None:
                    found = (
                        condition.matches(batch) for batch in self._probe.rows(self._probe.also(opened), number)
                    )
                    if not any(mask.true_count for mask in found):
                        continue
                for batch in self._reader.rows(opened, number):
                    rows = batch.filter(condition.matches(batch))
                    if rows.num_rows:
                        yield rows
