"""Merging a source into a dataset: match by keys, rewrite the files with matches, add files for what is new."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from parketto.commit.transaction import Transaction
from parketto.commit.verify import verify_edits, verify_written
from parketto.engines.base import Context, ProgressCallback
from parketto.errors import CommitConflict, CommitFailed, DatasetNotFound
from parketto.kernels.keys import may_share_key
from parketto.kernels.merge_target import MergeOutcome, MergeTarget
from parketto.kernels.rows import RowSource
from parketto.operations.edits import leave_schema
from parketto.operations.place import Backups, Place, entries
from parketto.plan.form import Form, form_of
from parketto.plan.merge import MergeRules, MergeStats, check_schemas, check_source
from parketto.storage.footers import FileInfo
from parketto.storage.snapshot import read_snapshot, refuse_foreign
from parketto.storage.store import FileEntry


@dataclass(frozen=True)
class MergeReport:
    """What a merge did, or would do, to rows and files."""

    stats: MergeStats
    rows_before: int = 0
    files_scanned: int = 0
    files_rewritten: int = 0
    files_added: int = 0
    files_removed: int = 0
    partitions_affected: int = 0
    rewritten_bytes: int = 0
    backup_path: str | None = None


def merge(
    place: Place,
    source: RowSource,
    rules: MergeRules,
    compression: str,
    partition_by: tuple[str, ...],
    progress: ProgressCallback | None = None,
    *,
    dry_run: bool = False,
    backups: Backups | None = None,
    commit_id: str | None = None,
) -> MergeReport:
    """Discover → match → decide → rewrite → verify → commit → report."""
    check_source(rules, source.schema)
    refuse_foreign(place.store, place.root)

    def attempt(transaction: Transaction) -> MergeReport:
        try:
            # Bounds of partition columns tell what a folder is called today, whatever its name is.
            files = place.snapshot_in(transaction, stats_columns=None).files
        except DatasetNotFound:
            if not rules.inserts:
                return MergeReport(MergeStats(inserted=0, updated=0, deleted=0, total=0))
            target = MergeTarget(
                place.root, (), Form(partition_by), source.schema, rules, compression, source.schema, dry_run
            )
        else:
            target = MergeTarget.of(
                place.root, files, rules, compression, source.schema, partition_by, dry_run=dry_run
            )
            check_schemas(rules, source.schema, target.schema, target.form)
            target.refuse_null_keys()
        context = place.context(transaction, progress)
        with transaction.conflicts_over(entries(target.files)):
            outcome = place.engine.merge(source, target, context)
        if not dry_run:
            _publish(place, transaction, source, target, outcome, context, always=commit_id is not None)
        return _report(target, outcome, transaction.backup_path)

    arguments = {
        "key_columns": list(rules.keys),
        "strategy": rules.strategy,
        "update_columns": rules.update_columns,
        "partition_by": list(partition_by) or None,
    }
    return place.run(
        place.request("merge", arguments, None if dry_run else commit_id),
        attempt,
        known=_known,
        backups=backups,
        repeatable=source.repeatable,
    )


def _known(statistics: Mapping[str, Any]) -> MergeReport:
    """The report of a merge that the log knows."""
    return MergeReport(**{**statistics, "stats": cast("MergeStats", statistics["stats"])})


def _total(target: MergeTarget, outcome: MergeOutcome) -> int:
    return target.num_rows + outcome.inserted - outcome.deleted


def _report(target: MergeTarget, outcome: MergeOutcome, backup_path: str | None) -> MergeReport:
    touched = [*(file for file, _ in outcome.rewritten), *outcome.removed]
    folders = {file.directory for file in touched}
    names = target.additions.folders
    added = {posixpath.dirname(file.destination) for file in outcome.added.staged} | {
        f"{target.root}/{names.get(folder, folder)}".rstrip("/") for folder in outcome.added_folders
    }
    return MergeReport(
        MergeStats(
            inserted=outcome.inserted,
            updated=outcome.updated,
            deleted=outcome.deleted,
            total=_total(target, outcome),
        ),
        rows_before=target.num_rows,
        files_scanned=outcome.scanned,
        files_rewritten=len(outcome.rewritten),
        files_added=len(outcome.added_folders) or len(outcome.added.staged),
        files_removed=len(outcome.removed),
        partitions_affected=len(folders | added),
        rewritten_bytes=sum(file.size_bytes for file in touched),
        backup_path=backup_path,
    )


@dataclass(frozen=True)
class _Concerns:
    """Which files that others have added meanwhile matter to a merge: by bounds, then by their keys."""

    place: Place
    source: RowSource
    target: MergeTarget
    outcome: MergeOutcome
    context: Context

    def refuse(self, added: Sequence[FileEntry], who: Callable[[str], str]) -> None:
        rules, place = self.target.rules, self.place
        files = read_snapshot(place.store, place.root, added, stats_columns=None).files
        near = [file for file in files if may_share_key(file, rules.keys, self.outcome.ranges)]
        if rules.removes_missing:
            near = [file for file in files if file.num_rows]
        elif near and self.source.repeatable and not self._shares_keys(near):
            near = []
        if near:
            path = near[0].path
            raise CommitConflict.because_of(
                path, operation="merge", matters="may have the same keys", who=who(path)
            )

    def _shares_keys(self, files: Sequence[FileInfo]) -> bool:
        """Whether a merge into these files alone would find a key."""
        if self.target.form.partition_by != form_of(files).partition_by:
            return True  # they are not laid out as the dataset was: all must be looked at anew
        rules = self.target.rules
        beside = MergeTarget.of(
            self.target.root,
            files,
            rules if rules.deduplicates else replace(rules, strategy="update"),
            self.target.compression,
            self.source.schema,
            self.target.form.partition_by,
            dry_run=True,
        )
        return self.place.engine.merge(self.source, beside, self.context).updated > 0


def _publish(
    place: Place,
    transaction: Transaction,
    source: RowSource,
    target: MergeTarget,
    outcome: MergeOutcome,
    context: Context,
    *,
    always: bool,
) -> None:
    total = _total(target, outcome)
    rewritten = [file for file, _ in outcome.rewritten]
    retired = [*rewritten, *outcome.removed]
    after = target.num_rows - sum(file.num_rows for file in retired) + outcome.added.num_rows
    after += sum(written.num_rows for _, written in outcome.rewritten)
    if after != total:
        raise CommitFailed(f"{after} rows would be left where {total} were expected. Nothing was changed")
    verify_edits(place.store, outcome.rewritten)
    names = target.additions.format.schema.names
    verify_written(place.store, outcome.added.staged, outcome.added.num_rows, names)
    staged = [*(file for _, written in outcome.rewritten for file in written.staged), *outcome.added.staged]
    if not staged and len(retired) == len(target.files):
        first = retired[0].directory if retired else target.root
        staged = leave_schema(place.engine, target.additions, first, context)
    if staged or retired or always:
        serializable = place.isolation == "serializable"
        transaction.commit(
            staged,
            entries(retired),
            read=entries(target.files) if serializable else (),
            check_added=_Concerns(place, source, target, outcome, context).refuse if serializable else None,
            follows=target.form.partition_by,
            statistics=lambda backup_path: _report(target, outcome, backup_path),
        )
