"""Merge a source into a dataset: match by keys, rewrite the files with matches, write new rows to new files."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from parketto.commit.transaction import Transaction
from parketto.commit.verify import verify_edits, verify_written
from parketto.engines.base import Context, ProgressCallback
from parketto.errors import CommitConflict, CommitFailed, DatasetNotFound
from parketto.expressions.dispatch import predicate
from parketto.expressions.pruning import may_match
from parketto.expressions.time_zones import Clock
from parketto.merge.enum_notes import files_without_enum_notes
from parketto.merge.keys import may_share_key
from parketto.merge.rules import MergeRules, MergeStats, check_schemas, check_source
from parketto.merge.scope import Scope
from parketto.merge.target import MergeOutcome, MergeTarget
from parketto.operations.context import Backups, DatasetContext, entries
from parketto.operations.edits import in_same_places, write_empty_file
from parketto.operations.expectations import Expect, Inspection, begun, inspecting
from parketto.parquet.dataset_schema import unified
from parketto.parquet.file_info import FileInfo
from parketto.parquet.partition_spec import PartitionSpec, partition_spec_of
from parketto.parquet.row_source import RowSource
from parketto.parquet.snapshot import read_snapshot
from parketto.planning.naming import appended
from parketto.runtime.staging import StagedFile
from parketto.storage.listing import refuse_foreign, relative_paths
from parketto.storage.store import FileEntry
from parketto.tasks.edit import Edit, FindMatches


@dataclass(frozen=True)
class MergeReport:
    """What a merge did, or would do, to rows and files."""

    stats: MergeStats
    rows_before: int = 0
    files_scanned: int = 0
    files_rewritten: int = 0
    files_added: int = 0
    files_removed: int = 0
    #: The number of new files; neighbouring small files that were rewritten became one.
    files_written: int = 0
    partitions_affected: int = 0
    rewritten_bytes: int = 0
    backup_path: str | None = None
    #: The files that were rewritten or removed, and those that were written: relative paths, sorted.
    rewritten_files: Sequence[str] = ()
    added_files: Sequence[str] = ()


def merge(
    dataset: DatasetContext,
    source: RowSource,
    rules: MergeRules,
    compression: str,
    partition_by: tuple[str, ...],
    progress: ProgressCallback | None = None,
    *,
    dry_run: bool = False,
    backups: Backups | None = None,
    commit_id: str | None = None,
    expect: Expect | None = None,
    pack: bool = True,
) -> MergeReport:
    """Discover → match → decide → rewrite → verify → commit → report."""
    check_source(rules, source.schema)
    refuse_foreign(dataset.store, dataset.root)
    clock = dataset.clock()
    bound = None if expect is None else expect.bound(source.schema, source.schema, clock)
    if not dry_run:
        commit_id = begun(bound, dataset, commit_id)

    def attempt(transaction: Transaction) -> MergeReport:
        with inspecting(bound, dataset, transaction, dry_run=dry_run) as inspection:
            return merged(transaction, inspection)

    def merged(transaction: Transaction, inspection: Inspection) -> MergeReport:
        try:
            # The bounds of partition columns give the values of a folder, whatever its name is.
            files = files_without_enum_notes(
                dataset.snapshot_in(transaction, stats_columns=None).files, source.schema
            )
        except DatasetNotFound:
            if not rules.inserts:
                inspection.passed(dataset, source, dataset.context(transaction, progress))  # may raise
                inspection.withhold()
                return MergeReport(inspection.report(MergeStats(inserted=0, updated=0, deleted=0, total=0)))
            target = MergeTarget(
                dataset.root,
                (),
                PartitionSpec(partition_by),
                source.schema,
                rules,
                compression,
                source.schema,
                dry_run,
            ).with_clauses(clock)
        else:
            target = MergeTarget.of(
                dataset.root, files, rules, compression, source.schema, partition_by, dry_run=dry_run, pack=pack
            ).with_clauses(clock)
            if rules.schema == "evolve":
                target = target.evolved().with_clauses(clock)
            check_schemas(rules, source.schema, target.schema, target.spec, target.unwritten)
        context = dataset.context(transaction, progress)
        if rules.within is not None:
            target = _within(dataset, target, clock, context)
        target = replace(target, processes=dataset.engine.task_processes())
        target.refuse_null_keys()
        rows = inspection.passed(dataset, source, context)
        with transaction.conflicts_over(entries(target.files)):
            outcome = dataset.engine.merge(rows, target, context)
        staged: Sequence[StagedFile] = ()
        if not dry_run:
            always = commit_id is not None
            staged = publish_merge(dataset, transaction, rows, target, outcome, context, inspection, always=always)
        return _report(target, outcome, transaction.backup_path, staged, inspection)

    arguments = {
        "key_columns": list(rules.keys),
        "strategy": rules.strategy,
        "update_columns": rules.update_columns,
        "update_when": rules.update_when,
        "delete_when": rules.delete_when,
        "insert_when": rules.insert_when,
        "schema": None if rules.schema == "strict" else rules.schema,
        "within": None if rules.within is None else str(rules.within),
        "null_keys": "match" if rules.null_keys_match else None,
        "partition_by": list(partition_by) or None,
        **({} if expect is None else expect.arguments),
    }
    return dataset.run(
        dataset.request("merge", arguments, commit_id),
        attempt,
        known=_logged_report,
        backups=backups,
        dry_run=dry_run,
        repeatable=source.repeatable,
    )


def _within(dataset: DatasetContext, target: MergeTarget, clock: Clock, context: Context) -> MergeTarget:
    """The target, limited to the rows of the scope. Files that paths and bounds rule out are not read."""
    scope = Scope(predicate(target.rules.within, target.schema, clock), target.spec.path_only)
    possible = may_match(scope.condition, target.files, target.spec.path_only)
    tasks = [
        FindMatches(file, Edit("merge", scope.condition, None, target.spec), dry_run=True)
        for file, read in zip(target.files, possible, strict=True)
        if read
    ]
    with_counts = replace(context, operation="scope", progress=None)
    counted = dataset.engine.run(tasks, with_counts) if tasks else []
    counts = {task.file.path: found.num_rows for task, found in zip(tasks, counted, strict=True) if found.num_rows}
    return target.within(replace(scope, counts=counts))


def _logged_report(statistics: Mapping[str, Any]) -> MergeReport:
    """The report of an earlier merge, from its statistics in the log."""
    found = dict(statistics)
    stats = cast("MergeStats", {**found.pop("stats"), "repeated_commit": found.pop("repeated_commit")})
    return MergeReport(stats, **found)


def _total(target: MergeTarget, outcome: MergeOutcome) -> int:
    return target.num_rows + outcome.inserted - outcome.deleted


def _report(
    target: MergeTarget,
    outcome: MergeOutcome,
    backup_path: str | None,
    staged: Sequence[StagedFile],
    inspection: Inspection,
) -> MergeReport:
    rewritten = outcome.rewritten_files
    touched = [*rewritten, *outcome.removed]
    folders = {file.directory for file in touched}
    names = target.additions.folders
    added = {posixpath.dirname(file.destination) for file in outcome.added.staged} | {
        f"{target.root}/{names.get(folder, folder)}".rstrip("/") for folder in outcome.added_folders
    }
    added_files = len(outcome.added_folders) or len(outcome.added.staged)
    stats = MergeStats(
        inserted=outcome.inserted,
        updated=outcome.updated,
        deleted=outcome.deleted,
        total=_total(target, outcome),
    )
    return MergeReport(
        inspection.report(stats),
        rows_before=target.num_rows,
        files_scanned=outcome.scanned,
        files_rewritten=len(rewritten),
        files_added=added_files,
        files_written=added_files + sum(len(each.written.staged) or 1 for each in outcome.rewritten),
        files_removed=len(outcome.removed),
        partitions_affected=len(folders | added),
        rewritten_bytes=sum(file.size_bytes for file in touched),
        backup_path=backup_path,
        rewritten_files=relative_paths((file.path for file in touched), target.root),
        added_files=relative_paths((file.destination for file in staged), target.root),
    )


@dataclass(frozen=True)
class _ConflictCheck:
    """Refuses concurrently added files that may share keys with a merge: by bounds, then by their keys."""

    dataset: DatasetContext
    source: RowSource
    target: MergeTarget
    outcome: MergeOutcome
    context: Context

    def refuse(self, added: Sequence[FileEntry], who: Callable[[str], str]) -> None:
        rules, dataset = self.target.rules, self.dataset
        found = read_snapshot(dataset.store, dataset.root, added, stats_columns=None).files
        like = self.target.all_files[:1]
        files = unified([*like, *found]).files[len(like) :]
        candidates = [file for file in files if may_share_key(file, rules.keys, self.outcome.ranges)]
        if self.target.scope is not None:
            possible = may_match(self.target.scope.condition, files, self.target.spec.path_only)
            candidates = [file for file, matters in zip(files, possible, strict=True) if matters]
        elif rules.removes_missing:
            candidates = [file for file in files if file.num_rows]
        elif candidates and self.source.repeatable and not self._shares_keys(candidates):
            candidates = []
        if candidates:
            path = candidates[0].path
            raise CommitConflict.because_of(
                path, operation=self.context.operation, matters="may have the same keys", who=who(path)
            )

    def _shares_keys(self, files: Sequence[FileInfo]) -> bool:
        """Whether a merge into these files alone would match a key."""
        if self.target.spec.partition_by != partition_spec_of(files).partition_by:
            return True  # the partition layout has changed: the merge must be planned again
        rules = self.target.rules
        added_target = MergeTarget.of(
            self.target.root,
            files,
            rules if rules.deduplicates else replace(rules, strategy="update"),
            self.target.compression,
            self.source.schema,
            self.target.spec.partition_by,
            dry_run=True,
        )
        return self.dataset.engine.merge(self.source, added_target, self.context).updated > 0


def _read_files(target: MergeTarget) -> Sequence[FileInfo]:
    """The files whose rows the result depends on."""
    if target.scope is None:
        return target.files
    possible = may_match(target.scope.condition, target.all_files, target.spec.path_only)
    return [file for file, matters in zip(target.all_files, possible, strict=True) if matters]


def publish_merge(
    dataset: DatasetContext,
    transaction: Transaction,
    source: RowSource,
    target: MergeTarget,
    outcome: MergeOutcome,
    context: Context,
    inspection: Inspection,
    *,
    always: bool,
    statistics: Any = None,
    validate: Callable[[], None] | None = None,
) -> Sequence[StagedFile]:
    """Verify and commit what the merge wrote; return the published files. Arguments as in `Transaction.commit`."""
    total = _total(target, outcome)
    retired = [*outcome.rewritten_files, *outcome.removed]
    after = target.num_rows - sum(file.num_rows for file in retired) + outcome.added.num_rows
    after += sum(each.written.num_rows for each in outcome.rewritten)
    if after != total:
        raise CommitFailed(f"the merge would leave {after} rows, expected {total}. Nothing was changed")
    verify_edits(dataset.store, outcome.rewritten)
    verify_written(dataset.store, outcome.added.staged, outcome.added.num_rows, target.additions.format)
    removed = {file.path for file in outcome.removed}
    stay = [file.path for file in target.all_files if file.path not in removed]
    staged = [*in_same_places("merge", outcome.rewritten, stay), *appended(outcome.added.staged)]
    if not staged and len(retired) == len(target.all_files):
        first = retired[0].directory if retired else target.root
        staged = write_empty_file(dataset.engine, target.additions, first, context)
    if staged or retired or always or inspection.quarantines:

        def before_commit() -> None:
            if validate is not None:
                validate()
            inspection.before_commit()

        serializable = dataset.isolation == "serializable"
        transaction.commit(
            staged,
            entries(retired),
            read=entries(_read_files(target)) if serializable else (),
            check_added=_ConflictCheck(dataset, source, target, outcome, context).refuse if serializable else None,
            follows=target.spec.partition_by,
            statistics=statistics
            or (lambda backup_path: _report(target, outcome, backup_path, staged, inspection)),
            validate=before_commit,
        )
    return staged
