"""Rewriting a group of files into new ones, in order if the plan says so."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace

import pyarrow as pa

from parketto.errors import UnreadableFile
from parketto.kernels.bucket_sort import sort_by_bucket
from parketto.kernels.carrier import carrier_schema
from parketto.kernels.clustering import bucket_column, sampled_buckets, with_buckets, write_buckets
from parketto.kernels.copying import copy_files
from parketto.kernels.damage import refuse_damage
from parketto.kernels.external_sort import sort_batches
from parketto.kernels.reader import BatchReader
from parketto.kernels.splicing import DoNotMix
from parketto.kernels.streaming import stream_files
from parketto.kernels.work import StagedFile, Worker
from parketto.kernels.write import Output
from parketto.kernels.writer import FileFormat, RollingWriter
from parketto.plan.rewrite import FileGroup
from parketto.storage.clustering import Clustering, recorded
from parketto.storage.footers import FileInfo

_BUCKET_ROOM = 2
_PREFIXES: Mapping[str, str] = {"compact": "compact", "optimize": "optimized"}


@dataclass(frozen=True)
class RewriteGroup:
    """Put the rows of a group's files into new files."""

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
        """Copy row groups, or stream the rows through, sorted on the way if need be."""
        try:
            return self._rewrite(worker)
        except UnreadableFile as error:
            for file in self.group:
                if error.column is None and file.path == error.path and file.path in self.group.verify:
                    refuse_damage(file, worker)  # an error that names the column
            raise

    def _rewrite(self, worker: Worker) -> tuple[StagedFile, ...]:
        group, schema = self.group, carrier_schema(self.group.schema).remove_metadata()
        columns = group.kept_order if self.clustering is None else self.clustering.columns
        if self.clustering is None and group.outputs == 1:
            output = group_output(group, self.operation, columns)
            try:
                streamed = stream_files(group, output, worker)
                return copy_files(group, output, worker) if streamed is None else streamed
            except DoNotMix:  # what was begun is swept with the rest
                return copy_files(replace(group, rewrite="encode"), output, worker)
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

    def _stream(self, writer: RollingWriter, schema: pa.Schema, worker: Worker) -> None:
        reader = BatchReader(
            worker.store, schema, worker.batch_bytes, use_threads=worker.use_threads, widths=worker.widths
        )
        for rows in reader.read_row_groups(self.group.files):
            for batch in worker.until_cancelled(rows):
                writer.write(batch)
            if self.group.keeps_row_groups:
                writer.cut()


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
        row_group_rows=_most_row_group_rows(group),
        prefix=_PREFIXES.get(operation, operation),
    )


def _most_row_group_rows(group: FileGroup) -> int | None:
    clustering = None if group.record is None else recorded(group.metadata)
    if group.row_group_rows is None or clustering is None or clustering.is_linear:
        return group.row_group_rows
    return _BUCKET_ROOM * group.row_group_rows  # a bucket may well be larger than foreseen
