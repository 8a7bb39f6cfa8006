"""Compaction and clustering: groups of files become other files with the same rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from parketto.commit.transaction import Transaction
from parketto.commit.verify import verify_groups, verify_total
from parketto.engines.base import GroupResult, ProgressCallback
from parketto.kernels.work import StagedFile
from parketto.operations.place import Backups, Place, entries
from parketto.plan.rewrite import RewritePlan
from parketto.stats import MaintenanceStats, maintenance_stats
from parketto.storage.footers import FileInfo
from parketto.storage.hive import PartitionFilter
from parketto.storage.snapshot import Snapshot

Planner = Callable[[Sequence[FileInfo]], RewritePlan]


@dataclass(frozen=True)
class MaintenanceReport:
    """What was planned, what came of it, and where the files that were retired are kept, if anywhere."""

    stats: MaintenanceStats
    plan: RewritePlan
    backup_path: str | None = None


def maintain(
    place: Place,
    planner: Planner,
    operation: str,
    partition_filter: PartitionFilter,
    *,
    dry_run: bool,
    progress: ProgressCallback | None,
    stats_columns: Sequence[str] = (),
    until_settled: bool = False,
    backups: Backups | None = None,
    arguments: Mapping[str, Any] | None = None,
    verify: bool = False,
) -> MaintenanceReport:
    """Discover → plan → execute → verify → commit → report."""
    if dry_run:
        plan = planner(place.snapshot(partition_filter, stats_columns).files)
        return MaintenanceReport(maintenance_stats(plan, dry_run=True), plan)
    place.check_exists(partition_filter)

    def attempt(transaction: Transaction) -> MaintenanceReport:
        snapshot = place.snapshot_in(transaction, partition_filter, stats_columns)
        plan = planner(snapshot.files)
        work = _Rewriting(place, transaction, snapshot, stats_columns, progress, verify=verify)
        after = work.run(plan, planner if until_settled else None)
        stats = maintenance_stats(plan, after, dry_run=False)
        work.commit(after, stats)
        return MaintenanceReport(stats, plan, transaction.backup_path)

    asked = {**(arguments or {}), "partition_filter": partition_filter}
    return place.run(place.request(operation, asked), attempt, backups=backups)


class _Rewriting:
    """Carries a plan out inside a transaction, again and again while the results leave something to plan."""

    def __init__(
        self,
        place: Place,
        transaction: Transaction,
        snapshot: Snapshot,
        stats_columns: Sequence[str],
        progress: ProgressCallback | None,
        *,
        verify: bool,
    ) -> None:
        self._verify = verify
        self._engine, self._store = place.engine, place.store
        self._transaction, self._snapshot, self._stats_columns = transaction, snapshot, stats_columns
        self._context = place.context(transaction, progress)
        self._staged: dict[str, StagedFile] = {}

    def run(self, plan: RewritePlan, planner: Planner | None) -> list[FileInfo]:
        """Execute and verify; returns the files that there are afterwards."""
        files: list[FileInfo] = list(self._snapshot.files)
        while plan.groups:
            results = self._execute(plan)
            new = verify_groups(self._store, results, self._stats_columns)
            files = [*plan.untouched, *new]
            for file in (file for group in plan.groups for file in group):
                if file.path in self._staged:
                    self._transaction.discard(self._staged.pop(file.path).path)
            self._staged |= {staged.path: staged for result in results for staged in result.staged}
            if planner is None:
                break
            plan = planner(files)
        verify_total(self._snapshot.files, files)
        return files

    def commit(self, after: Sequence[FileInfo], stats: MaintenanceStats) -> None:
        """Publish what was staged, if anything was."""
        if self._staged:
            remaining = {file.path for file in after}
            retired = entries([file for file in self._snapshot.files if file.path not in remaining])
            # Which files became which is in the record itself.
            told = {name: value for name, value in stats.items() if not name.startswith("planned_")}
            self._transaction.commit(list(self._staged.values()), retired, statistics=told)

    def _execute(self, plan: RewritePlan) -> Sequence[GroupResult]:
        inputs = [file for group in plan.groups for file in group if file.path not in self._staged]
        with self._transaction.conflicts_over(entries(inputs)):
            if self._verify:  # staged files were verified when they were written
                plan = _verifying(plan, frozenset(file.path for file in inputs))
            return self._engine.rewrite(plan, self._context)


def _verifying(plan: RewritePlan, paths: frozenset[str]) -> RewritePlan:
    groups = tuple(replace(group, verify=paths.intersection(group.paths)) for group in plan.groups)
    return replace(plan, groups=groups)
