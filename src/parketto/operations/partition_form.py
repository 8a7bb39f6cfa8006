"""The form of partition columns: stored in the files as well, or only in the paths."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal, cast

import pyarrow as pa

from parketto.commit.request import CheckAdded
from parketto.errors import CommitConflict, InvalidArgument, quoted
from parketto.operations.context import DatasetContext
from parketto.parquet.output import Output
from parketto.parquet.partition_spec import PartitionSpec
from parketto.parquet.snapshot import read_snapshot
from parketto.storage.hive import partition_values
from parketto.storage.listing import directory_of
from parketto.storage.store import FileEntry

PartitionForm = Literal["files", "path"]
PARTITION_FORMS = ("files", "path")


def check_form(form: Any) -> PartitionForm | None:
    """The validated form; None: the one that the dataset has."""
    if form is not None and form not in PARTITION_FORMS:
        raise InvalidArgument(f"unknown partition_columns {form!r}; valid choices: {quoted(PARTITION_FORMS)}")
    return cast("PartitionForm | None", form)


def in_form(output: Output, form: PartitionForm | None) -> Output:
    """The output of new files with the partition columns in this form; by default the files contain them."""
    if form != "path":
        return output
    check_has_partitions(output.partition_by)
    schema = stored_schema(output.row_schema, output.partition_by, form)
    return replace(output, format=replace(output.format, schema=schema))


def stored_schema(schema: pa.Schema, partition_by: tuple[str, ...], form: PartitionForm | None) -> pa.Schema:
    """The columns that files contain."""
    if form != "path":
        return schema
    return pa.schema([item for item in schema if item.name not in partition_by], metadata=schema.metadata)


def check_same_form(spec: PartitionSpec, form: PartitionForm | None) -> None:
    """Refuse to add files in another form than that of the dataset."""
    if form == "path":
        check_has_partitions(spec.partition_by)
    stored = [name for name in spec.partition_by if name not in spec.path_only]
    if (form == "files" and spec.path_only) or (form == "path" and stored):
        names, where = (spec.path_only, "only in the path") if form == "files" else (stored, "in the files")
        raise InvalidArgument(
            f"partition_columns={form!r} contradicts the dataset, which stores {quoted(names)} {where}; leave it "
            f"out, or convert the dataset first with repartition({list(spec.partition_by)!r}, "
            f"partition_columns={form!r})"
        )


def check_has_partitions(partition_by: tuple[str, ...]) -> None:
    """Refuse to store partition columns in the path if there are none."""
    if not partition_by:
        raise InvalidArgument("partition_columns='path' needs partition columns: name them with partition_by")


def check_added_form(dataset: DatasetContext, output: Output) -> CheckAdded | None:
    """Refuses to commit files if another writer has converted the dataset to the other form meanwhile.

    A conversion replaces all files, so one added file shows it. Object stores are not checked: it would cost a
    listing.
    """
    if not output.partition_by or not dataset.workspace.locks:
        return None
    expected = _stored(output.partition_by, output.format.schema)

    def refuse(added: Sequence[FileEntry], who: Callable[[str], str]) -> None:
        inside = [entry for entry in added if partition_values(directory_of(entry, dataset.root))]
        for file in read_snapshot(dataset.store, dataset.root, inside[:1]).files:
            if file.schema is not None and _stored(output.partition_by, file.schema) != expected:
                raise CommitConflict.over(file.path, gone=False, who=who(file.path))

    return refuse


def _stored(partition_by: tuple[str, ...], schema: pa.Schema) -> frozenset[str]:
    return frozenset(partition_by).intersection(schema.names)
