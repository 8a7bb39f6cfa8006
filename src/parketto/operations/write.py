"""Write rows to a dataset: append new files, or overwrite the existing ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from parketto.commit.transaction import Transaction
from parketto.commit.verify import verify_written
from parketto.engines.base import ProgressCallback
from parketto.operations.context import DatasetContext
from parketto.operations.expectations import Inspection, begun, inspecting
from parketto.operations.overwrite import ExistingPartitions, check_partitioned, written_folders
from parketto.operations.partition_form import check_added_form
from parketto.operations.write_output import WriteRequest, append_output, overwrite_output
from parketto.parquet.output import Output, Written
from parketto.parquet.row_source import RowSource
from parketto.results import WriteStats
from parketto.storage.listing import refuse_foreign, retry_on_vanished_files
from parketto.storage.store import FileEntry


def write(
    dataset: DatasetContext,
    source: RowSource,
    output: Output,
    request: WriteRequest,
    progress: ProgressCallback | None = None,
) -> WriteStats:
    """Write all rows, then publish their files in one commit."""
    refuse_foreign(dataset.store, dataset.root)
    bound = request.bound(source, dataset.clock()) if request.expect is not None else None
    request = replace(request, commit_id=begun(bound, dataset, request.commit_id))

    def attempt(transaction: Transaction) -> WriteStats:
        with inspecting(bound, dataset, transaction) as inspection:
            return written(transaction, inspection)

    def written(transaction: Transaction, inspection: Inspection) -> WriteStats:
        if request.mode == "overwrite":
            existing = dataset.existing(transaction)
            like = retry_on_vanished_files(
                dataset.root, lambda: overwrite_output(dataset, existing, output, request)
            )
            return publish(dataset, transaction, source, like, existing, request, inspection, progress)
        if request.mode == "overwrite_partitions":
            return _overwrite_partitions(dataset, transaction, source, output, request, inspection, progress)

        def planned() -> tuple[Output, bool]:
            existing = dataset.existing(transaction, loosely=True)
            return append_output(dataset, existing, source, output, request), bool(existing)

        # Other writers may replace the file that the new ones are modelled on.
        like, exists = retry_on_vanished_files(dataset.root, planned)
        return publish(dataset, transaction, source, like, [], request, inspection, progress, exists=exists)

    return dataset.run(
        dataset.request(request.mode, request.arguments(output), request.commit_id),
        attempt,
        known=lambda statistics: cast("WriteStats", statistics),
        repeatable=source.repeatable,
    )


def _overwrite_partitions(
    dataset: DatasetContext,
    transaction: Transaction,
    source: RowSource,
    output: Output,
    request: WriteRequest,
    inspection: Inspection,
    progress: ProgressCallback | None,
) -> WriteStats:
    """Write rows, and replace the files of the partitions that they belong to."""

    def planned() -> tuple[Output, ExistingPartitions]:
        existing = dataset.existing(transaction)
        like = append_output(dataset, existing, source, output, request)
        check_partitioned(like, existing)
        return like, ExistingPartitions.of(dataset, existing, like)

    like, partitions = retry_on_vanished_files(dataset.root, planned)
    written = dataset.engine.write(source, inspection.output(like), dataset.context(transaction, progress))
    inspection.accept(written.violations)
    written = new_rows(written, exists=partitions.exist)
    replaced = partitions.among(written_folders(dataset.root, written))
    return commit_written(dataset, transaction, written, like, replaced, request, inspection)


def publish(
    dataset: DatasetContext,
    transaction: Transaction,
    source: RowSource,
    output: Output,
    replaced: list[FileEntry],
    request: WriteRequest,
    inspection: Inspection,
    progress: ProgressCallback | None = None,
    *,
    exists: bool = False,
) -> WriteStats:
    """Write rows inside a transaction and commit them, replacing other files.

    With `exists`, files of the dataset remain, so that its schema needs no file without rows.
    """
    with transaction.conflicts_over(replaced):
        checked = inspection.output(output)
        written = dataset.engine.write(source, checked, dataset.context(transaction, progress))
    inspection.accept(written.violations)
    written = new_rows(written, exists=exists)
    return commit_written(dataset, transaction, written, output, replaced, request, inspection)


def new_rows(written: Written, *, exists: bool) -> Written:
    """What was written, without a file that would only repeat the schema of a dataset that exists."""
    return Written() if exists and not written.num_rows else written


def commit_written(
    dataset: DatasetContext,
    transaction: Transaction,
    written: Written,
    output: Output,
    replaced: Sequence[FileEntry],
    request: WriteRequest,
    inspection: Inspection,
) -> WriteStats:
    """Verify and commit staged files, replacing other files. Without any, only a `commit_id` is recorded."""
    files = verify_written(dataset.store, written.staged, written.num_rows, output.format)
    stats = WriteStats(
        rows_written=written.num_rows,
        files_written=len(files),
        bytes_written=sum(file.size_bytes for file in files),
        files_replaced=len(replaced),
    )
    stats = inspection.report(stats)
    if files or request.commit_id is not None or inspection.quarantines:
        transaction.commit(
            written.staged,
            replaced,
            naming=request.naming,
            check_added=None if request.mode == "overwrite" else check_added_form(dataset, output),
            follows=output.partition_by,
            names_may_exist=request.naming.scheme != "uuid",
            statistics=stats,
            validate=inspection.before_commit,
        )
    return stats
