"""Sorts by columns and by partition in DuckDB, which spills what does not fit into memory."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from parketto.engines.duckdb.arrow_input import feed_rows
from parketto.engines.duckdb.session import Session
from parketto.parquet.clustering_metadata import Clustering
from parketto.parquet.decoded_types import decoded_schema
from parketto.parquet.exchange_types import exchange_name, from_exchange
from parketto.parquet.file_info import FileInfo
from parketto.parquet.output import Output, Written
from parketto.parquet.partitions import folder_codes
from parketto.parquet.row_source import ArrowRows, FileRows
from parketto.planning.rewrite import FileGroup
from parketto.runtime.staging import StagedFile
from parketto.runtime.task import Worker
from parketto.tasks.cluster import BUCKET, NumberBuckets, sampled_buckets, unpacked_buckets, write_buckets
from parketto.tasks.rewrite import group_writer
from parketto.tasks.write import write_rows

_SEQ = pa.field("seq", pa.int64())


@dataclass(frozen=True)
class SortGroup:
    """Write the rows of a group's files to new files, clustered. The sort by columns is stable."""

    group: FileGroup
    operation: str
    clustering: Clustering
    session: Session

    @property
    def size_bytes(self) -> int:
        """The size of the group's files."""
        return self.group.size_bytes

    def run(self, worker: Worker) -> tuple[StagedFile, ...]:
        """Stream rows into DuckDB's sort, and its result into files."""
        schema = decoded_schema(self.group.schema).remove_metadata()
        session = self.session.cursor()
        rows = FileRows(schema, worker.store, self.group.files)
        columns = ", ".join(exchange_name(at) for at in range(len(schema.names)))
        order = [
            f"{exchange_name(schema.get_field_index(name))} ASC NULLS LAST" for name in self.clustering.columns
        ]
        with group_writer(self.group, self.operation, self.clustering.columns, worker) as writer:
            if self.clustering.is_linear:
                feed_rows(session, "unordered", rows, schema, worker, _row_position, [_SEQ])
                query = f"SELECT {columns} FROM unordered ORDER BY {', '.join([*order, 'seq'])}"
                for batch in worker.until_cancelled(session.rows(query)):
                    writer.write(from_exchange(batch, schema))
            else:
                buckets = sampled_buckets(self.group, self.clustering, worker)
                feed_rows(session, "unordered", rows, schema, worker, NumberBuckets(buckets), [BUCKET])
                query = f"SELECT {columns}, bucket FROM unordered ORDER BY {', '.join(['bucket', *order])}"
                found = unpacked_buckets(worker.until_cancelled(session.rows(query)), schema)
                write_buckets(found, writer, self.group.num_rows / buckets.count)
        return tuple(writer.staged)


@dataclass(frozen=True)
class DistributeRows:
    """Write rows into the folders of their partitions, one partition after the other."""

    source: ArrowRows | FileRows
    output: Output
    session: Session

    @property
    def size_bytes(self) -> int:
        """The size of the rows, where it is known."""
        return self.source.size_bytes if isinstance(self.source, FileRows) else 0

    def run(self, worker: Worker) -> Written:
        """Number the partitions, sort by that number, and write them."""
        if self.output.checks is None:
            return self._distributed(self.source, self.output, worker)
        with self.output.checks.checking(worker) as check:
            rows = ArrowRows(self.source.schema, check.passed(self.source.read(worker)))
            written = self._distributed(rows, replace(self.output, checks=None), worker)
        return replace(written, violations=check.found)

    def _distributed(self, source: ArrowRows | FileRows, output: Output, worker: Worker) -> Written:
        schema = decoded_schema(output.row_schema).remove_metadata()
        session = self.session.cursor()
        numbers = _PartitionNumbers(output.partition_by)
        fields = [pa.field("seq", pa.int64()), pa.field("part", pa.int32())]
        feed_rows(session, "unpartitioned", source, schema, worker, numbers, fields)
        columns = ", ".join(exchange_name(at) for at in range(len(schema.names)))
        found = session.rows(f"SELECT {columns} FROM unpartitioned ORDER BY part, seq")
        rows = (from_exchange(batch, schema) for batch in found)
        return write_rows(rows, output, worker, at_least_one=True, in_partition_order=True)


def _row_position(_file: FileInfo | None, position: int, row: int, batch: pa.RecordBatch) -> dict[str, pa.Array]:
    return {"seq": pa.array((position << 40) + row + np.arange(batch.num_rows))}


@dataclass
class _PartitionNumbers:
    """Numbers partitions in the order of their first rows: numbers sort faster than names."""

    columns: tuple[str, ...]
    numbers: dict[str, int] = field(default_factory=dict)

    def __call__(
        self, file: FileInfo | None, position: int, row: int, batch: pa.RecordBatch
    ) -> dict[str, pa.Array]:
        codes, names = folder_codes(pa.Table.from_batches([batch]), self.columns)
        known = np.array([self.numbers.setdefault(name, len(self.numbers)) for name in names], np.int32)
        return _row_position(file, position, row, batch) | {"part": pa.array(known[codes])}
