"""Sorts by DuckDB, which spills what does not fit: along columns, and into partitions."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from parketto.engines.duckdb.feeding import feed_rows
from parketto.engines.duckdb.session import Session
from parketto.kernels.carrier import carrier_schema
from parketto.kernels.clustering import (
    BUCKET,
    NumberBuckets,
    sampled_buckets,
    unpacked_buckets,
    write_buckets,
)
from parketto.kernels.partitions import folder_codes
from parketto.kernels.rewrite import group_writer
from parketto.kernels.rows import ArrowRows, FileRows
from parketto.kernels.travel import travel_name, unpack
from parketto.kernels.work import StagedFile, Worker
from parketto.kernels.write import Output, Written, write_rows
from parketto.plan.rewrite import FileGroup
from parketto.storage.clustering import Clustering
from parketto.storage.footers import FileInfo

_SEQ = pa.field("seq", pa.int64())


@dataclass(frozen=True)
class SortGroup:
    """Put the rows of a group's files into new files, in order. Sorted rows that are equal stay as they were."""

    group: FileGroup
    operation: str
    clustering: Clustering
    session: Session

    @property
    def size_bytes(self) -> int:
        """The size of the group's files."""
        return self.group.size_bytes

    def run(self, worker: Worker) -> tuple[StagedFile, ...]:
        """Stream rows into DuckDB's sort, and out of it into files."""
        schema = carrier_schema(self.group.schema).remove_metadata()
        session = self.session.cursor()
        rows = FileRows(schema, worker.store, self.group.files)
        columns = ", ".join(travel_name(at) for at in range(len(schema.names)))
        order = [f"{travel_name(schema.get_field_index(name))} ASC NULLS LAST" for name in self.clustering.columns]
        with group_writer(self.group, self.operation, self.clustering.columns, worker) as writer:
            if self.clustering.is_linear:
                feed_rows(session, "unordered", rows, schema, worker, _place, [_SEQ])
                query = f"SELECT {columns} FROM unordered ORDER BY {', '.join([*order, 'seq'])}"
                for batch in worker.until_cancelled(session.rows(query)):
                    writer.write(unpack(batch, schema))
            else:
                buckets = sampled_buckets(self.group, self.clustering, worker)
                feed_rows(session, "unordered", rows, schema, worker, NumberBuckets(buckets), [BUCKET])
                query = f"SELECT {columns}, bucket FROM unordered ORDER BY {', '.join(['bucket', *order])}"
                found = unpacked_buckets(worker.until_cancelled(session.rows(query)), schema)
                write_buckets(found, writer, self.group.num_rows / buckets.count)
        return tuple(writer.staged)


@dataclass(frozen=True)
class DealRows:
    """Write rows into the folders of their partitions, one partition after the other."""

    source: ArrowRows | FileRows
    output: Output
    session: Session

    @property
    def size_bytes(self) -> int:
        """The size of the rows, where it is known."""
        return self.source.size_bytes if isinstance(self.source, FileRows) else 0

    def run(self, worker: Worker) -> Written:
        """Number the partitions, sort by that number, and cut."""
        schema = carrier_schema(self.output.row_schema).remove_metadata()
        session = self.session.cursor()
        numbers = _PartitionNumbers(self.output.partition_by)
        fields = [pa.field("seq", pa.int64()), pa.field("part", pa.int32())]
        feed_rows(session, "undealt", self.source, schema, worker, numbers, fields)
        columns = ", ".join(travel_name(at) for at in range(len(schema.names)))
        dealt = session.rows(f"SELECT {columns} FROM undealt ORDER BY part, seq")
        rows = (unpack(batch, schema) for batch in dealt)
        return write_rows(rows, self.output, worker, at_least_one=True, in_partition_order=True)


def _place(_file: FileInfo | None, position: int, row: int, batch: pa.RecordBatch) -> dict[str, pa.Array]:
    return {"seq": pa.array((position << 40) + row + np.arange(batch.num_rows))}


@dataclass
class _PartitionNumbers:
    """Gives every partition a number as it comes along: numbers are sorted faster than names."""

    columns: tuple[str, ...]
    numbers: dict[str, int] = field(default_factory=dict)

    def __call__(
        self, file: FileInfo | None, position: int, row: int, batch: pa.RecordBatch
    ) -> dict[str, pa.Array]:
        codes, names = folder_codes(pa.Table.from_batches([batch]), self.columns)
        known = np.array([self.numbers.setdefault(name, len(self.numbers)) for name in names], np.int32)
        return _place(file, position, row, batch) | {"part": pa.array(known[codes])}
