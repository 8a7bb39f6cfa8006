"""Helpers shared by the operations that change rows in place."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import pyarrow as pa

from parketto.commit.transaction import Transaction
from parketto.commit.verify import verify_edits
from parketto.engines.base import Context, Engine
from parketto.operations.context import DatasetContext, entries
from parketto.parquet.file_info import FileInfo
from parketto.parquet.output import Output, Replaced, Rewrite, output_like
from parketto.parquet.row_source import ArrowRows
from parketto.planning.edit_groups import EditGroup, edit_groups
from parketto.planning.naming import Replacement, in_place
from parketto.results import EditStats
from parketto.runtime.staging import StagedFile
from parketto.storage.listing import relative_paths

#: A file, and how many of its rows are dropped.
Drop = tuple[FileInfo, int]


def write_empty_file(engine: Engine, output: Output, directory: str, context: Context) -> list[StagedFile]:
    """Write an empty file, which keeps the schema of a dataset without rows."""
    schema: pa.Schema = output.format.schema
    empty = replace(output, directory=directory, partition_by=(), row_schema=schema)
    return list(engine.write(ArrowRows(schema, ()), empty, context).staged)


def in_same_places(operation: str, rewritten: Sequence[Replaced], paths: Iterable[str]) -> list[StagedFile]:
    """Staged files under names that take the places of the files that they replace, in the order of names.

    Args:
        operation: What has replaced the files.
        rewritten: Neighbouring files, with those that replace them.
        paths: The paths of all files in their folders.
    """
    replaced = {file.path for each in rewritten for file in each.files}
    return in_place(
        operation,
        [Replacement(each.files[0].path, each.written.staged) for each in rewritten],
        [path for path in paths if path not in replaced],
    )


def drop_groups(
    engine: Engine, files: Sequence[FileInfo], drops: Sequence[Drop], compression: str | None, *, pack: bool
) -> list[EditGroup]:
    """The groups of files that lose some of their rows, see `edit_groups`."""
    left = {file.path: file.num_rows - dropped for file, dropped in drops}
    kept = {path: rows for path, rows in left.items() if rows}
    removed = left.keys() - kept.keys()
    processes = engine.task_processes()
    return edit_groups(files, kept, removed, same_codec=compression is None, pack=pack, processes=processes)


def staged_drops(
    dataset: DatasetContext,
    transaction: Transaction,
    files: Sequence[FileInfo],
    drops: Sequence[Drop],
    groups: Sequence[EditGroup],
    results: Sequence[Rewrite],
) -> list[StagedFile]:
    """The verified files that replace those that lose rows; an empty one if the dataset has no rows left."""
    dropped = {file.path: count for file, count in drops}
    for group, result in zip(groups, results, strict=True):
        expected = sum(file.num_rows - dropped[file.path] for file in group)
        assert result.written.num_rows == expected, "every row is kept or dropped"
    replaced = Rewrite.total(results).replaced
    verify_edits(dataset.store, replaced)
    staged = in_same_places(transaction.operation, replaced, [file.path for file in files])
    if drops and not staged and len(drops) == len(files) and transaction.lists_only(entries(files)):
        first = drops[0][0]
        output = output_like(first, "delete")
        return write_empty_file(dataset.engine, output, first.directory, dataset.context(transaction))
    return staged


def drop_stats(
    root: str,
    files: Sequence[FileInfo],
    scanned: int,
    drops: Sequence[Drop],
    groups: Sequence[EditGroup],
    staged: Sequence[StagedFile] = (),
    *,
    dry_run: bool = False,
    backup_path: str | None = None,
) -> EditStats:
    """The statistics of an operation that only removes rows."""
    dropped = sum(count for _, count in drops)
    before = sum(file.num_rows for file in files)
    rewritten = [file for file, count in drops if count < file.num_rows]
    return EditStats(
        rows_matched=dropped,
        rows_before=before,
        rows_after=before - dropped,
        files_before=len(files),
        files_scanned=scanned,
        files_rewritten=len(rewritten),
        files_removed=len(drops) - len(rewritten),
        files_written=len(groups) if dry_run or not groups else len(staged),
        rewritten_bytes=sum(file.size_bytes for file in rewritten),
        partitions_affected=len({file.directory for file, _ in drops}),
        dry_run=dry_run,
        backup_path=backup_path,
        rewritten_files=relative_paths((file.path for file, _ in drops), root),
        added_files=relative_paths((file.destination for file in staged), root),
    )
