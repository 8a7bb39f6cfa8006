"""Rewriting a group of files into new ones, in order if the plan says so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from parketto.kernels.carrier import carrier_schema
from parketto.kernels.external_sort import sort_batches
from parketto.kernels.reader import BatchReader
from parketto.kernels.work import StagedFile, Worker
from parketto.kernels.write import Output
from parketto.kernels.writer import FileFormat, RollingWriter
from parketto.plan.rewrite import FileGroup
from parketto.storage.footers import FileInfo

_PREFIXES: Mapping[str, str] = {"compact": "compact", "optimize": "optimized"}
# A file that is cut by its size consists of at least so many row groups, for the cut to be near the target.
_ROW_GROUPS_PER_FILE = 8
_MIN_ROW_GROUP_ROWS = 1024


@dataclass(frozen=True)
class RewriteGroup:
    """Put the rows of a group's files into new files."""

    group: FileGroup
    operation: str
    order_by: tuple[str, ...] = ()

    @property
    def size_bytes(self) -> int:
        """The size of the group's files."""
        return self.group.size_bytes

    def run(self, worker: Worker) -> tuple[StagedFile, ...]:
        """Stream the rows through, sorted on the way if need be."""
        group, schema = self.group, carrier_schema(self.group.schema)
        reader = BatchReader(worker.store, schema, worker.batch_bytes, use_threads=worker.use_threads)
        batches = worker.until_cancelled(reader.read(group.files))
        if self.order_by:
            batches = sort_batches(
                batches, schema.remove_metadata(), self.order_by, worker.run_bytes, worker.scratch_directory()
            )
        with group_writer(group, self.operation, self.order_by, worker) as writer:
            for batch in worker.until_cancelled(batches):
                writer.write(batch)
        return tuple(writer.staged)


def group_writer(group: FileGroup, operation: str, order_by: tuple[str, ...], worker: Worker) -> RollingWriter:
    """A writer for the new files of a group, which takes rows in the group's carrier schema."""
    output = group_output(group, operation, order_by)
    return RollingWriter(
        worker.store,
        output.format,
        worker.new_files(output.prefix, group.directory),
        row_group_bytes=worker.row_group_bytes,
        row_group_rows=output.row_group_rows,
        row_limits=group.row_limits(),
        roll_bytes=group.roll_bytes,
    )


def group_output(group: FileGroup, operation: str, order_by: tuple[str, ...]) -> Output:
    """What the new files of a group are like."""
    schema = carrier_schema(group.schema)
    return Output(
        group.directory,
        FileFormat(schema, group.codec, group.metadata, group.traits, order_by, group.schema),
        schema,
        max_rows=group.max_rows,
        roll_bytes=group.roll_bytes,
        row_group_rows=_row_group_rows(group),
        prefix=_PREFIXES.get(operation, operation),
    )


def _row_group_rows(group: FileGroup) -> int | None:
    if group.roll_bytes is None or not group.num_rows:
        return None
    row_bytes = max(1.0, group.size_bytes / group.num_rows)
    return max(_MIN_ROW_GROUP_ROWS, int(group.roll_bytes / _ROW_GROUPS_PER_FILE / row_bytes))


def file_writer(
    file: FileInfo, operation: str, compression: str | None, worker: Worker, order_by: tuple[str, ...] = ()
) -> RollingWriter:
    """A writer for the successor of one file: the same place, schema, metadata and codec."""
    return group_writer(FileGroup((file,), compression=compression), operation, order_by, worker)
