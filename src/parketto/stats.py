"""The canonical statistics of maintenance operations: the same keys from every engine, planned or done."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypedDict

from parketto.plan.clustering import file_reads
from parketto.plan.copying import filled
from parketto.plan.rewrite import FileGroup, RewritePlan, prevailing_codec
from parketto.plan.skipping import ColumnReads
from parketto.storage.footers import FileInfo
from parketto.storage.row_groups import HADOOP_LZ4


class PlannedRewrite(TypedDict):
    """How the row groups of a group of files come into the new files.

    Those without rows do not count, unless they are in a small file that has some: nobody looks at each of those.
    """

    copied_row_groups: int
    encoded_row_groups: int


class MaintenanceStats(TypedDict):
    """What a compaction or optimisation did, or, in a dry run, would do.

    Counts and bytes are those of the files that were considered, that is, that match `partition_filter`.
    """

    before_file_count: int
    #: In a dry run: how many files the plan aims at.
    after_file_count: int
    before_total_bytes: int
    #: In a dry run: the same as before, because only writing tells how well data compresses.
    after_total_bytes: int
    #: How many of the files were rewritten, and their size.
    compacted_file_count: int
    rewritten_bytes: int
    #: The codec of the rewritten files, `mixed` if they keep several.
    compression_codec: str | None
    dry_run: bool
    #: The clustering columns; None for a compaction.
    zorder_columns: list[str] | None
    #: What rows are laid out along: a curve, or `linear`; None for a compaction.
    curve: str | None
    #: For each clustering column, what share of the row groups a point and a range of 1 % read, before and after.
    #: In a dry run `after` is an estimate for evenly spread values.
    expected_reads: dict[str, dict[Literal["before", "after"], ColumnReads]] | None
    #: Why nothing was rewritten, if nothing was.
    unchanged_because: str | None
    #: The paths of the files that are put together, one list for each group.
    planned_groups: list[list[str]] | None

    #: For each of these groups, how many row groups are copied as they are, and how many are encoded anew.
    planned_rewrites: list[PlannedRewrite] | None


class WriteStats(TypedDict):
    """What a write did."""

    rows_written: int
    files_written: int
    bytes_written: int
    files_replaced: int


class RestoreStats(TypedDict):
    """What bringing a backup back did."""

    files_restored: int
    #: Files of the operation that was undone.
    files_removed: int
    rows_restored: int


class EditStats(TypedDict):
    """What a delete or an update did, or, in a dry run, would do: the counts are true either way."""

    rows_matched: int
    rows_before: int
    rows_after: int
    files_before: int
    #: Files that footers and paths could not rule out.
    files_scanned: int
    files_rewritten: int
    #: Files of which no row was left.
    files_removed: int
    #: New files: the successors of rewritten ones, and those for rows that moved to another partition.
    files_written: int
    rewritten_bytes: int
    partitions_affected: int
    dry_run: bool
    #: Where the files that were retired are kept; None without a backup.
    backup_path: str | None


class Damage(TypedDict):
    """A place in a dataset that is damaged."""

    path: str
    #: The number of the row group, from 0; None if the whole file is concerned.
    row_group: int | None
    #: The column, with dots inside of nested ones (`trade.price`); None if the file or row group is concerned.
    column: str | None
    reason: str


class ChangedFile(TypedDict):
    """A file that is not the one that is expected at its path."""

    path: str
    reason: str


class OtherSchema(TypedDict):
    """Files whose schema is not the one that most files have."""

    paths: list[str]
    difference: str


class CheckReport(TypedDict):
    """What a check of a dataset found. Plain data: `json.dumps` takes it."""

    #: Whether nothing is damaged, missing or changed.
    healthy: bool
    #: Whether all pages were decoded, or only footers read.
    deep: bool
    files_checked: int
    #: Rows, row groups and bytes of the files; of those with an unreadable footer only the bytes are known.
    rows: int
    row_groups: int
    bytes: int
    #: Column chunks and pages that were decoded; 0 unless `deep`.
    columns_checked: int
    pages_checked: int
    #: Every damaged file, row group or column, in the order of the paths.
    damaged: list[Damage]
    #: Files that are expected and not there; empty if nothing says which files to expect.
    missing: list[str]
    #: Files that were replaced or rewritten since they were recorded; empty if there is no record.
    changed: list[ChangedFile]
    #: Files that are there and not expected: other programs added them. No damage.
    unknown: list[str]
    #: Files whose columns differ from those of most files. No damage.
    other_schemas: list[OtherSchema]
    #: Remarks, such as files that other writers removed during the check.
    notes: list[str]


def maintenance_stats(
    plan: RewritePlan, after: Sequence[FileInfo] | None = None, *, dry_run: bool
) -> MaintenanceStats:
    """Statistics of a plan; `after` are the files that there are when it has been carried out."""
    before = plan.files
    rewritten = [file for group in plan.groups for file in group]
    before_bytes = sum(file.size_bytes for file in before)
    if after is None:
        planned = sum(group.outputs for group in plan.groups)
        after_count, after_bytes = len(plan.untouched) + planned, before_bytes
    else:
        after_count, after_bytes = len(after), sum(file.size_bytes for file in after)
        gone = {file.path for file in before} - {file.path for file in after}
        rewritten = [file for file in before if file.path in gone]
    return MaintenanceStats(
        before_file_count=len(before),
        after_file_count=after_count,
        before_total_bytes=before_bytes,
        after_total_bytes=after_bytes,
        compacted_file_count=len(rewritten),
        rewritten_bytes=sum(file.size_bytes for file in rewritten),
        compression_codec=_codec(plan),
        dry_run=dry_run,
        zorder_columns=list(plan.order_by) or None,
        curve=None if plan.clustering is None else plan.clustering.curve,
        expected_reads=_expected_reads(plan, after),
        unchanged_because=plan.unchanged_because,
        planned_groups=[group.paths for group in plan.groups],
        planned_rewrites=[_planned_rewrite(group) for group in plan.groups],
    )


def _planned_rewrite(group: FileGroup) -> PlannedRewrite:
    copied = sum(map(sum, group.copies))
    found = sum(len(filled(file)) for file in group)
    return PlannedRewrite(copied_row_groups=copied, encoded_row_groups=found - copied)


def _expected_reads(
    plan: RewritePlan, after: Sequence[FileInfo] | None
) -> dict[str, dict[Literal["before", "after"], ColumnReads]] | None:
    if plan.clustering is None:
        return None
    return {
        column: {"before": before, "after": planned if after is None else file_reads(after, column)}
        for column, (before, planned) in plan.reads.items()
    }


def _new_codecs(group: FileGroup) -> set[str | None]:
    """The codecs of what a group becomes: copied row groups keep theirs."""
    parts = [part for file in group for part in file.row_groups]
    copied = [is_copied for file in group.copies for is_copied in file]
    kept = {part.codec for part, is_copied in zip(parts, copied, strict=True) if is_copied}
    encodes = any(part.num_rows and not is_copied for part, is_copied in zip(parts, copied, strict=True))
    return kept | {group.codec} if encodes or not kept else kept


def _codec(plan: RewritePlan) -> str | None:
    if plan.compression is not None:
        return plan.compression
    if not plan.groups:
        return prevailing_codec(plan.untouched)
    codecs = {file.codec for group in plan.groups for file in group}
    if len(codecs) > 1 or HADOOP_LZ4 in codecs:
        codecs = {codec for group in plan.groups for codec in _new_codecs(group)}
    return codecs.pop() if len(codecs) == 1 else "mixed"
