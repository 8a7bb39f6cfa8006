"""Apply a maintenance policy: find what is due, and do it step by step, one commit each."""

from __future__ import annotations

import logging
import posixpath
import time
from collections import defaultdict
from collections.abc import Container, Mapping, Sequence
from functools import cached_property
from typing import Any

import pyarrow as pa

from parketto.arguments import check_columns_exist
from parketto.display import counted
from parketto.engines.base import ProgressCallback
from parketto.errors import (
    CommitConflict,
    DatasetNotFound,
    InvalidArgument,
    LockTimeout,
    OperationCancelled,
    ParkettoError,
    UnreadableFile,
    quoted,
)
from parketto.expressions.dispatch import predicate
from parketto.expressions.pruning import partition_value
from parketto.expressions.time_zones import Clock
from parketto.operations.alter import unify_schema
from parketto.operations.budget import Meter
from parketto.operations.context import DatasetContext
from parketto.operations.maintain import maintain
from parketto.operations.vacuum import vacuum
from parketto.parquet.dataset_schema import unified
from parketto.parquet.file_info import FileInfo
from parketto.parquet.partition_spec import partition_spec_of
from parketto.planning.due import (
    PartitionPlanner,
    Step,
    clustering_planner,
    compaction_planner,
    due_step,
    in_order,
)
from parketto.planning.policy import Policy
from parketto.results import LeftBecause, MaintenanceAction, MaintenanceLeft, MaintenanceRun

logger = logging.getLogger(__name__)

# What may go wrong with one partition or dataset while others can still be maintained.
FAILURES = (ParkettoError, OSError, ValueError, ImportError)

_DAY_SECONDS = 24 * 3600.0
_ROUNDS = 5  # how often the partitions that a run has rewritten are examined again

_Partitions = Mapping[str, Sequence[FileInfo]]


def apply_policy(
    dataset: DatasetContext,
    name: str,
    policy: Policy,
    meter: Meter,
    *,
    dry_run: bool,
    progress: ProgressCallback | None,
) -> MaintenanceRun:
    """Discover → find what is due → run the operations → report.

    Args:
        dataset: The dataset.
        name: Its path, for the report.
        policy: The policy.
        meter: The budget.
        dry_run: Only report what would be done.
        progress: Gets a `Progress` from each operation.
    """
    started = time.monotonic()
    run = _Run(dataset, name, policy, meter, dry_run=dry_run, progress=progress)
    run.run()
    return MaintenanceRun(
        datasets=[name],
        dry_run=dry_run,
        actions=run.actions,
        left=run.left,
        seconds=round(time.monotonic() - started, 3),
    )


class _Run:
    """One run of a policy over one dataset."""

    def __init__(
        self,
        dataset: DatasetContext,
        name: str,
        policy: Policy,
        meter: Meter,
        *,
        dry_run: bool,
        progress: ProgressCallback | None,
    ) -> None:
        self._dataset, self._name, self._policy, self._meter = dataset, name, policy, meter
        self._dry_run, self._progress = dry_run, progress
        self.actions: list[MaintenanceAction] = []
        self.left: list[MaintenanceLeft] = []
        self._damaged: set[str] = set()

    def run(self) -> None:
        """Do what is due, or note why not."""
        partitions = self._partitions()
        self._check(partitions)
        if self._policy.unify_schema and self._unify(partitions) and not self._dry_run:
            partitions = self._partitions()
        for _ in range(_ROUNDS):
            done = self._rewrite(partitions)
            if not done or self._dry_run or self._policy.cluster is None:
                break
            # Merged row groups can be skipped less, and clustering may leave small files.
            found = self._partitions(done)
            partitions = {directory: found[directory] for directory in done if directory in found}
        if self._policy.vacuum is not None:
            self._vacuum(self._policy.vacuum.days)

    def _vacuum(self, days: float) -> None:
        """Remove kept files that are old enough."""
        started, reason = time.monotonic(), f"files were replaced more than {days:g} days ago"
        try:
            stats = vacuum(self._dataset, days * _DAY_SECONDS, dry_run=self._dry_run)
        except FAILURES as error:
            self._leave("vacuum", None, reason, _kind(error), error)
            return
        if stats["commits"]:
            removed, kept = stats["files_removed"], stats["files_kept"]
            self._act("vacuum", None, reason, removed + kept, kept, 0, started)

    def _partitions(self, directories: Sequence[str] = ()) -> _Partitions:
        """The files of each directory, each with its own schema; no directories with damaged files.

        Args:
            directories: Those that matter; all if there are none.
        """
        names = [self._relative(directory) for directory in directories]
        wanted = None if None in names or not names else [name for name in names if name is not None]
        columns = self._policy.cluster.columns if self._policy.cluster else ()
        while True:
            try:
                snapshot = self._dataset.snapshot(wanted, columns, own_schemas=True, without=self._damaged)
            except UnreadableFile as error:
                directory = posixpath.dirname(error.path)
                if directory in self._damaged:
                    raise
                self._damaged.add(directory)
                self._leave(None, directory, "", "error", error)
            except DatasetNotFound:
                if not directories:
                    raise
                return {}  # other writers have removed them
            else:
                break
        found: defaultdict[str, list[FileInfo]] = defaultdict(list)
        for file in snapshot.files:
            found[file.directory].append(file)
        return found

    def _check(self, partitions: _Partitions) -> None:
        """Refuse clustering columns that no file has (some partitions may lack them), and invalid conditions."""
        self._left_alone(partitions)
        if self._policy.cluster is not None and partitions:
            files = [file for group in partitions.values() for file in group]
            schemas = {id(file.schema): file.schema for file in files if file.schema is not None}
            names = dict.fromkeys(name for schema in schemas.values() for name in schema.names)
            fields = pa.schema([(name, pa.null()) for name in names])
            paths = [name for name, _ in files[0].partition]
            check_columns_exist(self._policy.cluster.columns, fields, "cluster.columns", paths)

    def _unify(self, partitions: _Partitions) -> bool:
        """Give all files the dataset's schema, in one commit; returns whether files were rewritten."""
        try:
            found = unified([file for files in partitions.values() for file in files])
        except FAILURES as error:
            self._leave("unify_schema", None, "some files do not have the dataset's schema", "error", error)
            return False
        quiet = self._left_alone(partitions)
        due: defaultdict[str, list[FileInfo]] = defaultdict(list)
        alone: defaultdict[str, list[FileInfo]] = defaultdict(list)
        for file in found.files:
            if file.own is not None:
                (alone if file.directory in quiet else due)[file.directory].append(file)
        chosen: dict[str, list[FileInfo]] = {}
        excess: dict[str, list[FileInfo]] = {}
        refusal, size = None, 0
        for directory, files in due.items():
            wanted = _bytes(files)
            if refused := self._meter.refuses(size + wanted):
                refusal = refused
                excess[directory] = files
            else:
                chosen[directory] = files
                size += wanted
        columns = found.reconciled
        if alone:
            self._leave_files(alone, columns, "left alone", str(self._policy.leave_alone))
        if refusal:
            self._leave_files(excess, columns, "budget", refusal)
        return bool(chosen) and self._unify_files(chosen, columns)

    def _unify_files(self, chosen: Mapping[str, Sequence[FileInfo]], columns: Sequence[str]) -> bool:
        reason, started = _differing(chosen, columns), time.monotonic()
        rewritten, size = sum(map(len, chosen.values())), sum(map(_bytes, chosen.values()))
        if not self._dry_run:
            try:
                stats = unify_schema(
                    self._dataset, None, dry_run=False, progress=self._progress, directories=chosen.keys()
                )
            except FAILURES as error:
                self._leave("unify_schema", None, reason, _kind(error), error, size)
                return False
            rewritten, size = stats["files_rewritten"], stats["rewritten_bytes"]
        self._act("unify_schema", None, reason, rewritten, rewritten, size, started)
        return bool(rewritten)

    def _rewrite(self, partitions: _Partitions) -> list[str]:
        """Cluster and compact; returns the directories that were rewritten."""
        steps = []
        for directory, files in partitions.items():
            try:
                step = due_step(files, self._policy)
            except FAILURES as error:
                self._leave("optimize" if self._policy.cluster else "compact", directory, "", "error", error)
            else:
                steps += [step] if step is not None else []
        quiet = self._left_alone(partitions)
        return [step.directory for step in in_order(steps) if self._perform(step, quiet)]

    def _perform(self, step: Step, quiet: Container[str]) -> bool:
        """Do one step, or note why not; returns whether it was done."""
        left = (step.operation, step.directory, step.reason)
        if step.directory in quiet:
            self._leave(*left, "left alone", str(self._policy.leave_alone), step.rewritten_bytes)
        elif refusal := self._meter.refuses(step.rewritten_bytes):
            self._leave(*left, "budget", refusal, step.rewritten_bytes)
        elif self._dry_run:
            self._act(*left, step.files_before, step.files_after, step.rewritten_bytes, time.monotonic())
            return True
        else:
            try:
                return self._execute(step)
            except FAILURES as error:
                self._leave(*left, _kind(error), error, step.rewritten_bytes)
        return False

    def _execute(self, step: Step) -> bool:
        started = time.monotonic()
        is_clustering = step.operation == "optimize"
        planner = (clustering_planner if is_clustering else compaction_planner)(self._policy)
        within = PartitionPlanner(planner, step.directory)
        rule = self._policy.cluster if is_clustering else self._policy.compact
        assert rule is not None, "a step follows from a rule"
        stats = maintain(
            self._dataset,
            within,
            step.operation,
            self._relative(step.directory),
            dry_run=False,
            progress=self._progress,
            stats_columns=self._policy.cluster.columns if self._policy.cluster and is_clustering else (),
            until_settled=not is_clustering,
            arguments={**rule.model_dump(), "reason": step.reason},
        ).stats
        before, after = (stats[key] - within.others for key in ("before_file_count", "after_file_count"))
        if not stats["compacted_file_count"]:
            logger.info("%s of %s: another writer has done it", step.operation, step.directory)
            return False
        size = stats["rewritten_bytes"]
        self._act(step.operation, step.directory, step.reason, before, after, size, started)
        return True

    @cached_property
    def _clock(self) -> Clock:
        """One time for the whole run."""
        return self._dataset.clock()

    def _left_alone(self, partitions: _Partitions) -> Container[str]:
        """The directories of the partitions for which `leave_alone` is TRUE."""
        condition = self._policy.leave_alone
        if condition is None or not partitions:
            return ()
        files = [group[0] for group in partitions.values()]
        spec = partition_spec_of(files)
        if not spec.partition_by:
            raise InvalidArgument(
                f"leave_alone is a condition over partition columns, and {self._name!r} has none: {condition!r}"
            )
        stored = {item.name: item.type for file in files if file.schema is not None for item in file.schema}
        types = {**stored, **spec.path_only}
        values = {
            name: pa.array([partition_value(dict(file.partition).get(name), types[name]) for file in files])
            for name in spec.partition_by
        }
        rows = pa.record_batch(values)
        try:
            matches = predicate(condition, rows.schema, self._clock).matches(rows)
        except InvalidArgument as error:
            raise InvalidArgument(f"leave_alone: {error}") from error
        return {file.directory for file, alone in zip(files, matches.to_pylist(), strict=True) if alone}

    def _relative(self, directory: str | None) -> str | None:
        """A partition as the report and `partition_filter` name it; None is the whole dataset."""
        return None if directory is None else directory[len(self._dataset.root) :].strip("/") or None

    def _act(
        self,
        operation: str,
        directory: str | None,
        reason: str,
        before: int,
        after: int,
        size: int,
        started: float,
    ) -> None:
        self._meter.spend(size)
        self.actions.append(
            MaintenanceAction(
                dataset=self._name,
                operation=operation,
                partition=self._relative(directory),
                reason=reason,
                files_before=before,
                files_after=after,
                rewritten_bytes=size,
                seconds=round(time.monotonic() - started, 3),
            )
        )

    def _leave(
        self,
        operation: str | None,
        directory: str | None,
        reason: str,
        because: LeftBecause,
        details: Any,
        size: int = 0,
    ) -> None:
        if was_stopped(details):
            raise details
        self.left.append(
            MaintenanceLeft(
                dataset=self._name,
                operation=operation,
                partition=self._relative(directory),
                reason=reason,
                because=because,
                details=str(details),
                bytes=size,
            )
        )

    def _leave_files(
        self, files: Mapping[str, Sequence[FileInfo]], columns: Sequence[str], because: LeftBecause, details: str
    ) -> None:
        size = sum(map(_bytes, files.values()))
        self._leave("unify_schema", None, _differing(files, columns), because, details, size)


def was_stopped(error: Any) -> bool:
    """Whether somebody has ended the run: by cancelling its jobs, or by Ctrl-C in the middle of a commit."""
    return isinstance(error, OperationCancelled) or isinstance(
        getattr(error, "__cause__", None), KeyboardInterrupt
    )


def _differing(files: Mapping[str, Sequence[FileInfo]], columns: Sequence[str]) -> str:
    count = sum(map(len, files.values()))
    return (
        f"{counted(count, 'file')} in {counted(len(files), 'partition')} "
        f"{'does' if count == 1 else 'do'} not have the dataset's schema; columns that differ: {quoted(columns)}"
    )


def _bytes(files: Sequence[FileInfo]) -> int:
    return sum(file.size_bytes for file in files)


def _kind(error: Exception) -> LeftBecause:
    return "conflict" if isinstance(error, CommitConflict | LockTimeout) else "error"
