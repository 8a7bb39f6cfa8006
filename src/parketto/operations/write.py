"""Write rows to a dataset: append new files, or overwrite the existing ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import pyarrow as pa

from parketto.commit.transaction import Transaction
from parketto.commit.verify import verify_written
from parketto.engines.base import ProgressCallback
from parketto.errors import ColumnNotFound, InvalidArgument, quoted
from parketto.merge.append_schema import SchemaMode, appended_schema, has_same_columns
from parketto.operations.context import DatasetContext
from parketto.parquet.dataset_schema import unified
from parketto.parquet.file_info import FileInfo
from parketto.parquet.output import Output
from parketto.parquet.partition_spec import PartitionSpec, partition_spec_of
from parketto.parquet.row_source import RowSource
from parketto.parquet.snapshot import read_snapshot
from parketto.planning.naming import Naming
from parketto.planning.rewrite import check_partition_columns
from parketto.results import WriteStats
from parketto.storage.hive import partition_values
from parketto.storage.listing import refuse_foreign, relative, retry_on_vanished_files
from parketto.storage.store import FileEntry


def write(
    dataset: DatasetContext,
    source: RowSource,
    output: Output,
    mode: str,
    naming: Naming,
    progress: ProgressCallback | None = None,
    *,
    schema: SchemaMode = "cast",
    commit_id: str | None = None,
) -> WriteStats:
    """Write all rows, then publish their files in one commit."""
    refuse_foreign(dataset.store, dataset.root)

    def attempt(transaction: Transaction) -> WriteStats:
        if mode == "overwrite":
            return publish(dataset, transaction, source, output, dataset.existing(transaction), naming, progress)
        # Other writers may replace the file that the new ones are modelled on.
        like = retry_on_vanished_files(
            dataset.root,
            lambda: append_output(dataset, dataset.existing(transaction, loosely=True), output, schema),
        )
        return publish(dataset, transaction, source, like, [], naming, progress)

    arguments = {"partition_by": list(output.partition_by) or None}
    return dataset.run(
        dataset.request(mode, arguments, commit_id),
        attempt,
        known=lambda statistics: cast("WriteStats", statistics),
        repeatable=source.repeatable,
    )


def append_output(
    dataset: DatasetContext, existing: Sequence[FileEntry], output: Output, schema: SchemaMode = "strict"
) -> Output:
    """The output for appended rows: the partitioning and the schema of the existing files.

    One footer suffices if the rows fit that file. Otherwise all are read: others may have further columns, or
    wider types.
    """
    folders = [relative(entry.path, dataset.root).rpartition("/")[0] for entry in existing]
    found = next(
        (entry for entry, folder in zip(existing, folders, strict=True) if partition_values(folder)), None
    )
    if found is None:
        if not existing:
            return output
        if output.partition_by and any(file.num_rows for file in _footers(dataset, existing)):
            raise InvalidArgument(
                "the dataset has no partitions, so appended rows cannot be partitioned by "
                f"{quoted(output.partition_by)}; leave partition_by out, or repartition the dataset first"
            )
        return _like_existing(
            dataset, existing, output, _footers(dataset, existing[:1])[0], PartitionSpec(), schema
        )
    (like,) = _footers(dataset, [found])
    spec = partition_spec_of([like])
    if output.partition_by and output.partition_by != spec.partition_by:
        raise InvalidArgument(
            f"the dataset is partitioned by {quoted(spec.partition_by)}, not by {quoted(output.partition_by)}; "
            "leave partition_by out, or repartition the dataset first"
        )
    given = output.row_schema
    if missing := [name for name in spec.partition_by if name not in given.names]:
        raise ColumnNotFound(missing, given.names, "partition columns of the dataset", "in the appended rows")
    check_partition_columns(spec.partition_by, given)
    return _like_existing(dataset, existing, replace(output, partition_by=spec.partition_by), like, spec, schema)


def _like_existing(
    dataset: DatasetContext,
    existing: Sequence[FileEntry],
    output: Output,
    like: FileInfo,
    spec: PartitionSpec,
    mode: SchemaMode,
) -> Output:
    """The output with the schema and the physical types of the existing files."""
    assert like.schema is not None, "a footer always has a schema"
    if len(existing) > 1 and not has_same_columns(output.row_schema, like.schema, spec.path_only):
        like = unified(_footers(dataset, existing)).files[0]
    assert like.schema is not None, "a footer always has a schema"
    schema = appended_schema(output.row_schema, like.schema, spec.path_only, mode)
    traits = like.traits
    if not schema.equals(like.schema):
        unchanged = {item.name for item in like.schema if schema.field(item.name).type == item.type}
        traits = traits._replace(int96=tuple(leaf for leaf in traits.int96 if leaf[0] in unchanged))
    # Folder names are formatted from values of the dataset's types.
    fields = [
        item.with_type(schema.field(item.name).type)
        if item.name in output.partition_by and item.name not in spec.path_only
        else item
        for item in output.row_schema
    ]
    return replace(
        output,
        row_schema=pa.schema(fields, metadata=output.row_schema.metadata),
        format=replace(output.format, schema=schema, traits=traits),
    )


def _footers(dataset: DatasetContext, entries: Sequence[FileEntry]) -> Sequence[FileInfo]:
    return read_snapshot(dataset.store, dataset.root, entries).files


def publish(
    dataset: DatasetContext,
    transaction: Transaction,
    source: RowSource,
    output: Output,
    replaced: list[FileEntry],
    naming: Naming,
    progress: ProgressCallback | None = None,
) -> WriteStats:
    """Write rows inside a transaction and commit them, replacing other files."""
    with transaction.conflicts_over(replaced):
        written = dataset.engine.write(source, output, dataset.context(transaction, progress))
    files = verify_written(dataset.store, written.staged, written.num_rows, output.format.schema.names)
    stats = WriteStats(
        rows_written=written.num_rows,
        files_written=len(files),
        bytes_written=sum(file.size_bytes for file in files),
        files_replaced=len(replaced),
    )
    transaction.commit(
        written.staged,
        replaced,
        naming=naming,
        follows=output.partition_by,
        names_may_exist=naming.scheme != "uuid",
        statistics=stats,
    )
    return stats
