"""Rewrites a group of files into new ones, clustered if the plan requires it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace

import pyarrow as pa

from parketto.errors import UnreadableFile
from parketto.parquet.clustering_metadata import Clustering, read_clustering
from parketto.parquet.damage import refuse_damage
from parketto.parquet.decoded_types import decoded_schema
from parketto.parquet.encoders.files import encode_files
from parketto.parquet.file_format import FileFormat
from parketto.parquet.file_info import FileInfo
from parketto.parquet.file_writer import CannotCombine, FileWriter, file_writer
from parketto.parquet.output import Output
from parketto.parquet.reader import BatchReader
from parketto.planning.rewrite import FileGroup
from parketto.runtime.staging import StagedFile
from parketto.runtime.task import Worker
from parketto.sorting.bucket_sort import sort_by_bucket
from parketto.sorting.external_sort import sort_batches
from parketto.tasks.cluster import bucket_column, sampled_buckets, with_buckets, write_buckets
from parketto.tasks.copy import copy_files

_BUCKET_ROOM = 2  # row groups may have twice the planned rows, because buckets vary in size
#: The prefix of the names of new files, by operation.
PREFIXES: Mapping[str, str] = {"compact": "compact", "optimize": "optimized"}


@dataclass(frozen=True)
class RewriteGroup:
    """Write the rows of a group's files to new files."""

    group: FileGroup
    operation: str
    clustering: Clustering | None = None

    @property
    def size_bytes(self) -> int:
        """The size of the group's files."""
        return self.group.size_bytes

    @property
    def files(self) -> tuple[FileInfo, ...]:
        """The files that it reads."""
        return tuple(self.group.files)

    def run(self, worker: Worker) -> tuple[StagedFile, ...]:
        """Copy row groups, or stream the rows, sorted if needed."""
        try:
            return self._rewrite(worker)
        except UnreadableFile as error:
            for file in self.group:
                if error.column is None and file.path == error.path and file.path in self.group.verify:
                    refuse_damage(file, worker)  # raises an error that names the column
            raise

    def _rewrite(self, worker: Worker) -> tuple[StagedFile, ...]:
        group, schema = self.group, decoded_schema(self.group.schema).remove_metadata()
        columns = group.kept_order if self.clustering is None else self.clustering.columns
        if self.clustering is None and group.outputs == 1:
            output = group_output(group, self.operation, columns)
            try:
                return _one_file(group, output, worker)
            except CannotCombine:  # the unfinished file is removed with the staging area
                return _one_file(replace(group, rewrite="encode"), output, worker)
        with group_writer(group, self.operation, columns, worker) as writer:
            if self.clustering is None:
                self._stream(writer, schema, worker)
            elif self.clustering.is_linear:
                ordered = sort_batches(
                    self._read(schema, worker),
                    schema,
                    columns,
                    worker.run_bytes,
                    worker.scratch_directory(),
                    threads=worker.threads,
                )
                with closing(ordered):
                    for batch in worker.until_cancelled(ordered):
                        writer.write(batch)
            else:
                buckets = sampled_buckets(group, self.clustering, worker)
                name = bucket_column(schema)
                rows = with_buckets(self._read(schema, worker), buckets, name)
                numbered = schema.append(pa.field(name, pa.int32()))
                ordered = sort_by_bucket(
                    rows,
                    numbered,
                    columns,
                    buckets.count,
                    worker.run_bytes,
                    worker.scratch_directory(),
                    group.num_rows,
                    threads=worker.threads,
                )
                with closing(ordered):
                    write_buckets(worker.until_cancelled(ordered), writer, group.num_rows / buckets.count)
        return tuple(writer.staged)

    def _read(self, schema: pa.Schema, worker: Worker) -> Iterator[pa.RecordBatch]:
        reader = BatchReader(
            worker.store, schema, worker.batch_bytes, use_threads=worker.use_threads, widths=worker.widths
        )
        return worker.until_cancelled(reader.read(self.group.files))

    def _stream(self, writer: FileWriter, schema: pa.Schema, worker: Worker) -> None:
        reader = BatchReader(
            worker.store, schema, worker.batch_bytes, use_threads=worker.use_threads, widths=worker.widths
        )
        for rows in reader.read_row_groups(self.group.files):
            for batch in worker.until_cancelled(rows):
                writer.write(batch)
            if self.group.keeps_row_groups:
                writer.end_row_group()


def _one_file(group: FileGroup, output: Output, worker: Worker) -> tuple[StagedFile, ...]:
    if group.encodes_all:
        return (encode_files(group.files, output, worker),)
    return copy_files(group, output, worker)


def group_writer(group: FileGroup, operation: str, order_by: tuple[str, ...], worker: Worker) -> FileWriter:
    """A writer for the new files of a group, which takes rows in the group's decoded schema."""
    output = group_output(group, operation, order_by)
    return file_writer(output, worker, directory=group.directory, row_limits=group.row_limits())


def group_output(group: FileGroup, operation: str, order_by: tuple[str, ...]) -> Output:
    """The output for the new files of a group."""
    schema = decoded_schema(group.schema)
    return Output(
        group.directory,
        FileFormat(schema, group.codec, group.metadata, group.traits, order_by, group.schema),
        schema,
        max_rows=group.max_rows,
        roll_bytes=group.roll_bytes,
        row_group_rows=_most_row_group_rows(group),
        prefix=PREFIXES.get(operation, operation),
    )


def _most_row_group_rows(group: FileGroup) -> int | None:
    clustering = None if group.record is None else read_clustering(group.metadata)
    if group.row_group_rows is None or clustering is None or clustering.is_linear:
        return group.row_group_rows
    return _BUCKET_ROOM * group.row_group_rows
