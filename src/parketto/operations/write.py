"""Writing rows into a dataset: as new files beside the others, or in their place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import pyarrow as pa

from parketto.commit.transaction import Transaction
from parketto.commit.verify import verify_written
from parketto.engines.base import ProgressCallback
from parketto.errors import ColumnNotFound, InvalidArgument, quoted
from parketto.kernels.rows import RowSource
from parketto.kernels.write import Output
from parketto.operations.place import Place
from parketto.plan.appending import appended_schema
from parketto.plan.form import Form, form_of
from parketto.plan.naming import Naming
from parketto.plan.rewrite import check_partition_columns
from parketto.stats import WriteStats
from parketto.storage.footers import FileInfo
from parketto.storage.hive import partition_values
from parketto.storage.snapshot import read_snapshot, refuse_foreign, relative, while_files_vanish
from parketto.storage.store import FileEntry


def write(
    place: Place,
    source: RowSource,
    output: Output,
    mode: str,
    naming: Naming,
    progress: ProgressCallback | None = None,
    *,
    commit_id: str | None = None,
) -> WriteStats:
    """Write all rows, then publish their files together."""
    refuse_foreign(place.store, place.root)

    def attempt(transaction: Transaction) -> WriteStats:
        if mode == "overwrite":
            return publish(place, transaction, source, output, place.existing(transaction), naming, progress)
        # Others may replace the file whose form the new ones follow.
        like = while_files_vanish(
            place.root, lambda: following(place, place.existing(transaction, loosely=True), output)
        )
        return publish(place, transaction, source, like, [], naming, progress)

    arguments = {"partition_by": list(output.partition_by) or None}
    return place.run(
        place.request(mode, arguments, commit_id),
        attempt,
        known=lambda statistics: cast("WriteStats", statistics),
        repeatable=source.repeatable,
    )


def following(place: Place, existing: Sequence[FileEntry], output: Output) -> Output:
    """What is added to a dataset has its form: its folders, and partition columns where the others have them."""
    folders = [relative(entry.path, place.root).rpartition("/")[0] for entry in existing]
    found = next(
        (entry for entry, folder in zip(existing, folders, strict=True) if partition_values(folder)), None
    )
    if found is None:
        if not existing:
            return output
        if output.partition_by and any(file.num_rows for file in _footers(place, existing)):
            raise InvalidArgument(
                f"the dataset has no partitions, so rows cannot be added by {quoted(output.partition_by)}; leave "
                "partition_by out, or repartition the dataset first"
            )
        return _fitting(output, _footers(place, existing[:1])[0], Form())
    (like,) = _footers(place, [found])
    form = form_of([like])
    if output.partition_by and output.partition_by != form.partition_by:
        raise InvalidArgument(
            f"the dataset is partitioned by {quoted(form.partition_by)}, not by {quoted(output.partition_by)}; "
            "leave partition_by out, or repartition the dataset first"
        )
    schema = output.row_schema
    if missing := [name for name in form.partition_by if name not in schema.names]:
        raise ColumnNotFound(missing, schema.names, "partition columns of the dataset in the rows that are added")
    check_partition_columns(form.partition_by, schema)
    return _fitting(replace(output, partition_by=form.partition_by), like, form)


def _fitting(output: Output, like: FileInfo, form: Form) -> Output:
    """New files have the schema of one that is there, and its physical types."""
    assert like.schema is not None, "a footer always has a schema"
    schema = appended_schema(output.row_schema, like.schema, form.path_only)
    # Folders are named after values of the dataset's own types.
    fields = [
        item.with_type(schema.field(item.name).type)
        if item.name in output.partition_by and item.name not in form.path_only
        else item
        for item in output.row_schema
    ]
    return replace(
        output,
        row_schema=pa.schema(fields, metadata=output.row_schema.metadata),
        format=replace(output.format, schema=schema, traits=like.traits),
    )


def _footers(place: Place, entries: Sequence[FileEntry]) -> Sequence[FileInfo]:
    return read_snapshot(place.store, place.root, entries).files


def publish(
    place: Place,
    transaction: Transaction,
    source: RowSource,
    output: Output,
    replaced: list[FileEntry],
    naming: Naming,
    progress: ProgressCallback | None = None,
) -> WriteStats:
    """Write rows inside a transaction and commit them in the place of other files."""
    with transaction.conflicts_over(replaced):
        written = place.engine.write(source, output, place.context(transaction, progress))
    files = verify_written(place.store, written.staged, written.num_rows, output.format.schema.names)
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
