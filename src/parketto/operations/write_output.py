"""The output of a write: the partitions, the schema and the form of the dataset that it adds rows to."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from parketto.errors import ColumnNotFound, InvalidArgument, UnreadableFile, quoted
from parketto.merge.append_schema import SchemaMode, appended_schema, fits_file
from parketto.operations.context import DatasetContext
from parketto.operations.partition_form import PartitionForm, check_same_form, in_form
from parketto.parquet.dataset_schema import unified
from parketto.parquet.file_info import FileInfo
from parketto.parquet.output import Output
from parketto.parquet.partition_spec import PartitionSpec, partition_spec_of
from parketto.parquet.snapshot import read_snapshot
from parketto.planning.naming import Naming
from parketto.planning.rewrite import check_partition_columns
from parketto.storage.hive import partition_values
from parketto.storage.listing import directory_of
from parketto.storage.store import FileEntry

if TYPE_CHECKING:
    from parketto.expressions.time_zones import Clock
    from parketto.operations.expectations import Bound, Expect
    from parketto.parquet.row_source import RowSource


@dataclass(frozen=True)
class WriteRequest:
    """What a write replaces, and how its files are named."""

    mode: str
    naming: Naming
    commit_id: str | None = None
    #: A condition: only the rows that match are replaced.
    replace_where: Any = None
    #: Whether new files contain the partition columns; None: as the dataset does.
    partition_columns: PartitionForm | None = None
    #: How rows meet the schema of the dataset that they are added to.
    schema: SchemaMode = "cast"
    #: Whether rows that overwrite a dataset get its partitions, if they have the columns.
    keeps_partitions: bool = False
    #: What rows should meet: conditions over these columns.
    expect: Expect | None = None
    given: pa.Schema | None = None

    def bound(self, source: RowSource, clock: Clock) -> Bound | None:
        """The expectations for the rows of a source."""
        if self.expect is None:
            return None
        return self.expect.bound(source.schema if self.given is None else self.given, source.schema, clock)

    @property
    def edits(self) -> bool:
        """Whether rows of existing files are replaced, not whole files."""
        return self.replace_where is not None

    def arguments(self, output: Output) -> dict[str, Any]:
        """The arguments, as the log records them."""
        where = None if self.replace_where is None else str(self.replace_where)
        return {
            **({} if self.expect is None else self.expect.arguments),
            "partition_by": list(output.partition_by) or None,
            "partition_columns": self.partition_columns,
            "replace_where": where,
        }


def overwrite_output(
    dataset: DatasetContext, existing: Sequence[FileEntry], output: Output, request: WriteRequest
) -> Output:
    """The output for rows that replace all others: in the same partitions, unless others are requested."""
    found, form = _partitioned_file(dataset, existing), request.partition_columns
    if not request.keeps_partitions or found is None:
        return in_form(output, form)
    names = tuple(name for name, _ in partition_values(directory_of(found, dataset.root)))
    if not set(names) <= set(output.row_schema.names):
        return in_form(output, form)
    check_partition_columns(names, output.row_schema)
    with suppress(UnreadableFile):  # a damaged dataset can be overwritten, too
        form = form or ("path" if partition_spec_of(_footers(dataset, [found])).path_only else "files")
    return in_form(replace(output, partition_by=names), form)


def _partitioned_file(dataset: DatasetContext, existing: Sequence[FileEntry]) -> FileEntry | None:
    """A file in a partition folder, if there is one."""
    return next((entry for entry in existing if partition_values(directory_of(entry, dataset.root))), None)


def append_output(
    dataset: DatasetContext,
    existing: Sequence[FileEntry],
    source: RowSource,
    output: Output,
    request: WriteRequest,
) -> Output:
    """The output for appended rows: the partitioning and the schema of the existing files.

    One footer suffices if the rows fit that file. Otherwise all are read: others may have further columns, or
    wider types.
    """
    form = request.partition_columns
    found = _partitioned_file(dataset, existing)
    if found is None:
        if not existing:
            return in_form(output, form)
        if output.partition_by and any(file.num_rows for file in _footers(dataset, existing)):
            raise InvalidArgument(
                "the dataset has no partitions, so appended rows cannot be partitioned by "
                f"{quoted(output.partition_by)}; leave partition_by out, or repartition the dataset first"
            )
        return _like_empty(dataset, existing, source, output, request)
    (like,) = _footers(dataset, [found])
    spec = partition_spec_of([like])
    if output.partition_by and output.partition_by != spec.partition_by:
        raise InvalidArgument(
            f"the dataset is partitioned by {quoted(spec.partition_by)}, not by {quoted(output.partition_by)}; "
            "leave partition_by out, or repartition the dataset first"
        )
    check_same_form(spec, form)
    schema = output.row_schema
    if missing := [name for name in spec.partition_by if name not in schema.names]:
        raise ColumnNotFound(missing, schema.names, "partition columns of the dataset", "in the appended rows")
    check_partition_columns(spec.partition_by, schema)
    partitioned = replace(output, partition_by=spec.partition_by)
    return _like_existing(dataset, existing, source, partitioned, like, spec, request.schema)


def _like_empty(
    dataset: DatasetContext,
    existing: Sequence[FileEntry],
    source: RowSource,
    output: Output,
    request: WriteRequest,
) -> Output:
    """The output for the first rows of a dataset that has no partitions yet, or needs none."""
    (like,) = _footers(dataset, existing[:1])
    assert like.schema is not None, "a footer always has a schema"
    rows, names = output.row_schema, output.partition_by
    spec = PartitionSpec(names, {name: rows.field(name).type for name in names if name not in like.schema.names})
    check_same_form(spec, request.partition_columns)
    return _like_existing(dataset, existing, source, output, like, spec, request.schema)


def _like_existing(
    dataset: DatasetContext,
    existing: Sequence[FileEntry],
    source: RowSource,
    output: Output,
    like: FileInfo,
    spec: PartitionSpec,
    mode: SchemaMode,
) -> Output:
    """The output with the schema and the physical types of the existing files."""
    assert like.schema is not None, "a footer always has a schema"
    if len(existing) > 1 and not fits_file(source, like.schema, spec.path_only):
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
