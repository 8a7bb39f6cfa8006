"""Compaction and clustering: rewrite groups of files into other files with the same rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from parketto.commit.transaction import Transaction
from parketto.commit.verify import verify_groups, verify_total
from parketto.engines.base import GroupResult, ProgressCallback
from parketto.operations.context import Backups, DatasetContext, entries
from parketto.parquet.file_info import FileInfo
from parketto.parquet.snapshot import Snapshot
from parketto.planning.naming import Replacement, in_place
from parketto.planning.rewrite import RewritePlan
from parketto.planning.statistics import maintenance_stats
from parketto.results import MaintenanceStats
from parketto.runtime.staging import StagedFile
from parketto.storage.hive import PartitionFilter
from parketto.tasks.rewrite import PREFIXES

_Place = tuple[str, *tuple[int, ...]]
Planner = Callable[[Sequence[FileInfo]], RewritePlan]


@dataclass(frozen=True)
class MaintenanceReport:
    """The plan and its statistics."""

    stats: MaintenanceStats
    plan: RewritePlan


def maintain(
    dataset: DatasetContext,
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
    own_schemas: bool = False,
) -> MaintenanceReport:
    """Discover → plan → execute → verify → commit → report."""
    if dry_run:
        plan = _planned(planner, dataset.snapshot(partition_filter, stats_columns, own_schemas=own_schemas))
        return MaintenanceReport(maintenance_stats(plan, dry_run=True), plan)
    dataset.check_exists(partition_filter)

    def attempt(transaction: Transaction) -> MaintenanceReport:
        snapshot = dataset.snapshot_in(transaction, partition_filter, stats_columns, own_schemas=own_schemas)
        plan = _planned(planner, snapshot)
        work = _Rewrite(dataset, transaction, snapshot, stats_columns, progress, verify=verify)
        after = work.run(plan, planner if until_settled else None)
        stats = maintenance_stats(plan, after, dry_run=False)
        work.commit(after, plan, stats)
        stats["backup_path"] = transaction.backup_path
        return MaintenanceReport(stats, plan)

    request_arguments = {**(arguments or {}), "partition_filter": partition_filter}
    return dataset.run(dataset.request(operation, request_arguments), attempt, backups=backups)


def _planned(planner: Planner, snapshot: Snapshot) -> RewritePlan:
    plan = planner(snapshot.files)
    reconciles = any(file.own is not None for group in plan.groups for file in group)
    return replace(plan, reconciled_columns=snapshot.reconciled_columns if reconciles else ())


class _Rewrite:
    """Executes a plan inside a transaction, and replans the results until nothing is left to do."""

    def __init__(
        self,
        dataset: DatasetContext,
        transaction: Transaction,
        snapshot: Snapshot,
        stats_columns: Sequence[str],
        progress: ProgressCallback | None,
        *,
        verify: bool,
    ) -> None:
        self._verify = verify
        self._engine, self._store = dataset.engine, dataset.store
        self._transaction, self._snapshot, self._stats_columns = transaction, snapshot, stats_columns
        self._context = dataset.context(transaction, progress)
        self._staged: dict[str, StagedFile] = {}
        #: For each staged file, the first file that it replaces, and its number among those that replace it.
        self._places: dict[str, _Place] = {}

    def run(self, plan: RewritePlan, planner: Planner | None) -> list[FileInfo]:
        """Execute and verify; returns the resulting files."""
        files: list[FileInfo] = list(self._snapshot.files)
        while plan.groups:
            results = self._execute(plan)
            new = verify_groups(self._store, results, self._stats_columns)
            for result in results:
                first = self._place(result.group.files[0].path)
                self._places |= {staged.path: (*first, n) for n, staged in enumerate(result.staged)}
            files = sorted([*plan.untouched, *new], key=lambda file: self._place(file.path))
            for file in (file for group in plan.groups for file in group):
                if file.path in self._staged:
                    self._transaction.discard(self._staged.pop(file.path).path)
            self._staged |= {staged.path: staged for result in results for staged in result.staged}
            if planner is None:
                break
            plan = planner(files)
        verify_total(self._snapshot.files, files)
        return files

    def _place(self, path: str) -> _Place:
        """Where a file is in the order of the rows."""
        return self._places.get(path, (path,))

    def commit(self, after: Sequence[FileInfo], plan: RewritePlan, stats: MaintenanceStats) -> None:
        """Publish the staged files, if there are any."""
        if self._staged:
            remaining = {file.path for file in after}
            retired = entries([file for file in self._snapshot.files if file.path not in remaining])
            # The record itself lists the files.
            logged = {name: value for name, value in stats.items() if not name.startswith("planned_")}
            self._transaction.commit(self._named(after, plan), retired, statistics=logged)

    def _named(self, after: Sequence[FileInfo], plan: RewritePlan) -> list[StagedFile]:
        """The staged files; their names sort in the order of the rows."""
        replacing: defaultdict[str, list[StagedFile]] = defaultdict(list)
        for path in sorted(self._staged, key=self._place):
            replacing[self._place(path)[0]].append(self._staged[path])
        # Clustered rows have an order of their own, which other files do not share.
        ordered = [file for file in after if plan.clustering is None or file.clustering == plan.clustering]
        return in_place(
            PREFIXES[plan.operation],
            [Replacement(path, staged) for path, staged in replacing.items()],
            [file.path for file in ordered if file.path not in self._staged],
            short=True,
        )

    def _execute(self, plan: RewritePlan) -> Sequence[GroupResult]:
        inputs = [file for group in plan.groups for file in group if file.path not in self._staged]
        with self._transaction.conflicts_over(entries(inputs)):
            if self._verify:  # staged files were verified when they were written
                plan = _verifying(plan, frozenset(file.path for file in inputs))
            return self._engine.rewrite(plan, self._context)


def _verifying(plan: RewritePlan, paths: frozenset[str]) -> RewritePlan:
    groups = tuple(replace(group, verify=paths.intersection(group.paths)) for group in plan.groups)
    return replace(plan, groups=groups)
