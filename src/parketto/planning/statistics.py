"""Statistics of a rewrite plan, before and after its execution."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from parketto.parquet.file_info import FileInfo
from parketto.parquet.row_group_info import HADOOP_LZ4
from parketto.planning.clustering import file_reads
from parketto.planning.copy_policy import non_empty_row_groups
from parketto.planning.rewrite import FileGroup, RewritePlan, prevailing_codec
from parketto.results import ColumnReads, MaintenanceStats, PlannedRewrite


def maintenance_stats(
    plan: RewritePlan, after: Sequence[FileInfo] | None = None, *, dry_run: bool
) -> MaintenanceStats:
    """Statistics of a plan; `after` are the files that exist after its execution."""
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
        reconciled_columns=list(plan.reconciled_columns),
        planned_groups=[group.paths for group in plan.groups],
        planned_rewrites=[_planned_rewrite(group) for group in plan.groups],
        backup_path=None,
    )


def _planned_rewrite(group: FileGroup) -> PlannedRewrite:
    copied = sum(map(sum, group.copies))
    found = sum(len(non_empty_row_groups(file)) for file in group)
    return PlannedRewrite(
        copied_row_groups=copied,
        encoded_row_groups=found - copied,
        rows=sum(file.num_rows for file in group),
        bytes=sum(file.size_bytes for file in group),
        files_after=group.outputs,
    )


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
    """The codecs of the outputs of a group: copied row groups keep theirs."""
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
