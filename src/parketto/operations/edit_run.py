"""Edits inside a transaction: the tasks for files that may match, what they stage, and what conflicts with them.

Used by deletes, updates, and writes that replace the rows that match a condition.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import pyarrow as pa

from parketto.commit.request import CheckAdded
from parketto.commit.transaction import Transaction
from parketto.commit.verify import verify_edits, verify_written
from parketto.engines.base import Context, ProgressCallback
from parketto.errors import CommitConflict, InvalidArgument
from parketto.expressions.conditions import Assignment
from parketto.expressions.dispatch import assignments, predicate
from parketto.expressions.pruning import may_match
from parketto.expressions.time_zones import Clock
from parketto.operations.context import DatasetContext, entries
from parketto.operations.edits import in_same_places, write_empty_file
from parketto.operations.path_pruning import RowCondition
from parketto.parquet.bounded_columns import MentionedColumns, StatsColumns
from parketto.parquet.dataset_schema import unified
from parketto.parquet.file_info import FileInfo
from parketto.parquet.output import Output, output_like
from parketto.parquet.partition_spec import PartitionSpec, partition_spec_of
from parketto.parquet.partitions import folder_names
from parketto.parquet.snapshot import RuledOut, read_snapshot
from parketto.planning.edit_groups import EditGroup, edit_groups
from parketto.planning.naming import appended
from parketto.runtime.staging import StagedFile, Staging
from parketto.storage.hive import PartitionFilter, directory_matcher
from parketto.storage.listing import relative
from parketto.storage.store import FileEntry
from parketto.tasks.edit import Edit, Edited, EditFiles, FindMatches, Matches


@dataclass(frozen=True)
class EditRequest:
    """Which rows to edit, and how. Without changes, they are deleted."""

    operation: str
    where: Any
    changes: Mapping[str, Any] | None = None
    compression: str | None = None
    commit_id: str | None = None
    #: Whether row groups of another codec than `compression` are re-encoded; else copied ones keep theirs.
    recompress: bool = True
    #: Whether neighbouring small files that are rewritten become one file.
    pack: bool = True
    #: Whether nothing of the deleted rows may stay anywhere, not even in the log.
    purge: bool = False


@dataclass(frozen=True)
class EditRun:
    """The plan and the results of an edit: which files are searched, and which are rewritten in which groups."""

    files: Sequence[FileInfo]
    plan: Sequence[FindMatches]
    #: The files in which rows change, with their matching rows.
    edits: Sequence[tuple[FileInfo, Matches]]
    #: The files that are rewritten, in groups that become one file each. The others are removed.
    groups: Sequence[EditFiles] = ()
    #: The results of the groups; none in a dry run.
    results: Sequence[Edited] = ()
    #: The number of matching rows.
    matched: int = 0
    #: Further files, which the footer index has ruled out.
    ruled_out: RuledOut | None = None

    @classmethod
    def of(
        cls,
        files: Sequence[FileInfo],
        plan: Sequence[FindMatches],
        found: Sequence[Matches],
        request: EditRequest,
        processes: int,
        ruled_out: RuledOut | None,
    ) -> EditRun:
        """Plan how the files in which rows change are rewritten."""
        run = cls(files, plan, (), ruled_out=ruled_out)
        tasks = {task.file.path: task for task in plan}
        edits = [(task.file, each) for task, each in zip(plan, found, strict=True) if each.row_groups]
        changed = {file.path: each for file, each in edits}
        left = {
            file.path: file.num_rows - (each.num_rows if tasks[file.path].edit.removes_matches else 0)
            for file, each in edits
        }
        # Rows that move are read, even if no other row of their file is left.
        removed = {path for path, rows in left.items() if not rows and tasks[path].edit.elsewhere is None}
        groups = edit_groups(
            files,
            {path: rows for path, rows in left.items() if path not in removed},
            removed,
            paths=run.paths,
            same_codec=request.compression is None,
            pack=request.pack,
            processes=processes,
        )
        rewrites = [
            EditFiles(
                group,
                _edit_of(group, tasks[group[0].path].edit, request),
                tuple(changed[file.path] for file in group),
                request.compression,
                request.recompress,
            )
            for group in groups
        ]
        return replace(run, edits=edits, groups=rewrites, matched=sum(each.num_rows for each in found))

    @property
    def paths(self) -> Sequence[str]:
        """The paths of all listed files, also of those that were not read."""
        return [file.path for file in self.files] if self.ruled_out is None else self.ruled_out.listed

    @property
    def retired(self) -> list[FileEntry]:
        """The files in which rows change."""
        return entries([file for file, _ in self.edits])

    @property
    def emptied(self) -> list[FileInfo]:
        """The files of which no row is left in place."""
        removes = any(task.edit.removes_matches for task in self.plan)
        return [file for file, found in self.edits if removes and found.num_rows == file.num_rows]

    def staged(self, operation: str) -> list[StagedFile]:
        """The files that replace those with matching rows, under names that keep the order of rows."""
        replaced = [each for result in self.results for each in result.files.replaced]
        moved = [file for result in self.results for file in result.moved.staged]
        return [*in_same_places(operation, replaced, self.paths), *appended(moved)]

    @property
    def read(self) -> list[FileEntry]:
        """The files that were searched for matching rows."""
        return entries([task.file for task in self.plan])


@dataclass(frozen=True)
class Editor:
    """Runs an edit of a dataset."""

    dataset: DatasetContext
    request: EditRequest
    clock: Clock
    partition_filter: PartitionFilter = None

    @cached_property
    def stats_columns(self) -> StatsColumns:
        """The columns whose bounds are needed. Rows that move to other partitions need those of all columns."""
        return MentionedColumns(str(self.request.where)) if self.request.changes is None else None

    @cached_property
    def rows(self) -> RowCondition | None:
        """The rows by which folders are ruled out. A purge also looks at folders with other values."""
        request = self.request
        return None if request.purge else RowCondition(request.where, self.clock, request.changes)

    def dry_run(
        self, files: Sequence[FileInfo], progress: ProgressCallback | None, ruled_out: RuledOut | None = None
    ) -> EditRun:
        """Count matching rows; nothing is staged."""
        plan = self._plan(files, dry_run=True)
        context = Context(self.dataset.store, Staging(""), self.request.operation, progress)
        engine = self.dataset.engine
        found = engine.run(plan, context)
        return EditRun.of(files, plan, found, self.request, engine.task_processes(), ruled_out)

    def run(
        self,
        transaction: Transaction,
        files: Sequence[FileInfo],
        progress: ProgressCallback | None,
        ruled_out: RuledOut | None = None,
    ) -> EditRun:
        """Stage what replaces the files with matching rows."""
        plan = self._plan(files, dry_run=False)
        context, engine = self.dataset.context(transaction, progress), self.dataset.engine
        with transaction.conflicts_over(entries([task.file for task in plan])):
            found = engine.run(plan, replace(context, operation="match"))
            run = EditRun.of(files, plan, found, self.request, engine.task_processes(), ruled_out)
            return replace(run, results=engine.run(run.groups, context))

    def check_added(self, run: EditRun) -> CheckAdded | None:
        """Refuses concurrently added files that may match: by their paths, then by their bounds."""
        return partial(self._refuse, run.files[:1]) if self.dataset.isolation == "serializable" else None

    def checked_files(self, run: EditRun) -> Sequence[FileEntry]:
        """The files that must not have changed, besides those that are retired."""
        return run.read if self.dataset.isolation == "serializable" else ()

    def _refuse(self, known: Sequence[FileInfo], added: Sequence[FileEntry], who: Callable[[str], str]) -> None:
        matches = directory_matcher(self.partition_filter)
        root = self.dataset.root
        candidates = [entry for entry in added if matches(posixpath.dirname(relative(entry.path, root)))]
        if not candidates:
            return
        found = read_snapshot(self.dataset.store, root, candidates, self.stats_columns).files
        # The condition refers to columns of the dataset, which added files may lack.
        files = unified([*known, *self.dataset.with_path_types(found)]).files[len(known) :]
        for task in self._plan(files, dry_run=True):
            raise CommitConflict.because_of(
                task.file.path,
                operation=self.request.operation,
                matters="may contain rows that match its condition",
                who=who(task.file.path),
            )

    def _plan(self, files: Sequence[FileInfo], *, dry_run: bool) -> list[FindMatches]:
        """A task for each file whose path and footer do not exclude matching rows."""
        request, root = self.request, self.dataset.root
        spec = partition_spec_of(files)
        by_schema: dict[int, list[FileInfo]] = {}
        for file in files:
            by_schema.setdefault(id(file.schema), []).append(file)
        tasks = []
        for same in by_schema.values():
            assert same[0].schema is not None, "files to edit come from a snapshot"
            schema = spec.row_schema(same[0].schema)
            condition = predicate(request.where, schema, self.clock)
            changes = None if request.changes is None else _changes(request.changes, schema, self.clock)
            moves = any(change.column in spec.partition_by for change in changes or ())
            edit = Edit(request.operation, condition, changes, spec)
            for file, possible in zip(same, may_match(condition, same, spec.path_only), strict=True):
                if possible and file.num_rows:
                    elsewhere = _moved_output(root, files, file, spec, request) if moves else None
                    own = replace(edit, elsewhere=elsewhere) if moves else edit
                    tasks.append(FindMatches(file, own, dry_run=dry_run))
        return tasks

    def verified(self, run: EditRun) -> list[FileInfo]:
        """The staged files, if they contain exactly the rows and columns that they should."""
        store = self.dataset.store
        files = verify_edits(store, [each for result in run.results for each in result.files.replaced])
        for task, result in zip(run.groups, run.results, strict=True):
            moved = result.moved
            if task.edit.elsewhere is not None:
                files += verify_written(store, moved.staged, moved.num_rows, task.edit.elsewhere.format)
            deleted = sum(found.num_rows for found in task.matches) if task.edit.changes is None else 0
            rows = sum(file.num_rows for file in task.files)
            written = result.files.written.num_rows + moved.num_rows
            assert written == rows - deleted, "every row is kept, moved or deleted"
        return files

    def schema_file(self, run: EditRun, transaction: Transaction) -> list[StagedFile]:
        """An empty file with the schema, if the edit deletes all rows of the dataset; to publish with no other."""
        if not run.edits or len(run.edits) < len(run.files) or not transaction.lists_only(entries(run.files)):
            return []
        first = run.edits[0][0]
        output = output_like(first, "delete", self.request.compression)
        context = self.dataset.context(transaction)
        return write_empty_file(self.dataset.engine, output, first.directory, context)


def _changes(values: Mapping[str, Any], schema: pa.Schema, clock: Clock) -> tuple[Assignment, ...]:
    if not values:
        raise InvalidArgument("nothing to set: name at least one column and its new value")
    return assignments(values, schema, clock)


def _edit_of(group: EditGroup, edit: Edit, request: EditRequest) -> Edit:
    """The edit of a group, given that of its first file: all rows that move go to the same new files."""
    if edit.elsewhere is None or len(group) == 1:
        return edit
    like = output_like(group[0], request.operation, request.compression, request.changes or (), group)
    return replace(edit, elsewhere=replace(edit.elsewhere, format=like.format))


def _moved_output(
    root: str, files: Sequence[FileInfo], file: FileInfo, spec: PartitionSpec, request: EditRequest
) -> Output:
    """The output for rows that move to another partition, in the format of their source file."""
    assert file.schema is not None, "files to edit come from a snapshot"
    return replace(
        output_like(file, request.operation, request.compression, request.changes or ()),
        directory=root,
        row_schema=spec.row_schema(file.schema),
        partition_by=spec.partition_by,
        folders=folder_names(files, spec, root),
    )
