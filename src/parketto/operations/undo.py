"""Undo commits by a new one: bring the files back that they retired, and retire those that they published.

No rows are decoded. Where files can be moved, kept files are linked, so nothing is copied either.
"""

from __future__ import annotations

import contextlib
import posixpath
from collections.abc import Callable, Iterable, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from parketto.commit.past import Commits, UndoPlan, plan_restore, plan_undo
from parketto.commit.tombstones import check_tombstones_without
from parketto.commit.transaction import Transaction
from parketto.commit.undone import ONLY_MOVED, RENAMED, RESTORE, UNDO, UNDONE
from parketto.errors import CannotUndo, CommitConflict, InvalidArgument, StateUnavailable
from parketto.operations.context import DatasetContext, PastState
from parketto.operations.past_states import LoggedFiles, StateLike, commits_of, refuse_without_history
from parketto.operations.returning_files import ReturningFiles
from parketto.parquet.file_info import FileInfo
from parketto.parquet.snapshot import read_footers
from parketto.results import UndoStats
from parketto.runtime.staging import StagedFile
from parketto.storage.store import FileEntry, Store

_PARALLEL_COPIES = 16  # server-side copies at a time
_RESHAPING = frozenset({"alter", "overwrite", "repartition", "unify_schema", UNDO, RESTORE})
_SAME_TYPES = frozenset({"compact", "optimize"})  # the new files have the types of those that they replace
_KEPT = "kept"  # marks files that are not back yet


def undo(dataset: DatasetContext, number: int | None, *, dry_run: bool) -> UndoStats:
    """Undo a commit; by default the last one that is in effect."""
    if number is not None and type(number) is not int:
        raise InvalidArgument(f"number must be the number of a commit, as in history(), got {number!r}")
    refuse_without_history(dataset, "an undo", CannotUndo)
    # Chosen once: what others commit meanwhile is not the last commit that the caller means.
    chosen = _chosen(commits_of(dataset), number)

    def basis(commits: Commits) -> object:
        planned = plan_undo(commits, _chosen(commits, chosen))
        later = [each for each, record in commits.since(chosen) if record.operation in _RESHAPING]
        return planned, later

    def plan(logged: LoggedFiles) -> UndoPlan:
        return plan_undo(logged.commits, _chosen(logged.commits, chosen))

    return _run(dataset, dataset.request(UNDO, {"number": chosen}), plan, basis, dry_run=dry_run)


def restore_state(dataset: DatasetContext, to: StateLike, *, dry_run: bool) -> UndoStats:
    """Undo all commits after a state."""
    refuse_without_history(dataset, "a restore", CannotUndo)

    def plan(logged: LoggedFiles) -> UndoPlan:
        try:
            return plan_restore(logged.commits, logged.after(logged.number_at(to)))
        except StateUnavailable as error:
            raise CannotUndo(f"{error}. Nothing was changed") from error

    def basis(commits: Commits) -> object:
        return commits.last

    return _run(dataset, dataset.request(RESTORE, {"to": str(to)}), plan, basis, dry_run=dry_run)


def _chosen(commits: Commits, number: int | None) -> int:
    """The commit to undo."""
    chosen = commits.last_to_undo() if number is None else number
    if chosen is None:
        raise CannotUndo("the log has no commit to undo: none is in effect, or their records are folded")
    if chosen not in commits.records:
        first = commits.numbers[0] if commits.numbers else None
        known = f"commits from {first} to {commits.last}" if first else "no commits of this dataset"
        raise CannotUndo(
            f"commit {chosen} cannot be undone: the log has the records of {known}, and older ones are folded "
            "into a checkpoint after some time. Nothing was changed"
        )
    return chosen


def _run(
    dataset: DatasetContext,
    request: Any,
    plan: Callable[[LoggedFiles], UndoPlan],
    basis: Callable[[Commits], object],
    *,
    dry_run: bool,
) -> UndoStats:
    """Discover → plan → stage links or copies → commit → report.

    Args:
        dataset: The dataset.
        request: The operation, as the log records it.
        plan: What to change.
        basis: What of the log the plan relies on: if it differs at the commit, that is a conflict.
        dry_run: Only report.
    """
    if dry_run:
        logged = LoggedFiles.of(dataset)
        changes = _Changes.of(dataset, logged, plan(logged))
        changes.partition_columns()
        return changes.stats(dry_run=True)

    def attempt(transaction: Transaction) -> UndoStats:
        logged = LoggedFiles.of(dataset, transaction.listing)
        changes = _Changes.of(dataset, logged, plan(logged))
        stats = changes.stats(dry_run=False)
        if not (changes.restored or changes.removed):
            return {**stats, "undone": []}
        partition_by = changes.partition_columns()

        def check_log() -> None:
            if basis(commits_of(dataset)) != basis(logged.commits):
                raise CommitConflict("another writer has committed meanwhile; nothing was changed, run it again")

        transaction.commit(
            changes.staged(transaction),
            changes.removed,
            check_added=_refuse_added if changes.may_reshape else None,
            follows=partition_by,
            names_may_exist=True,
            statistics={**_logged(stats), RENAMED: changes.renamed},
            validate=check_log,
        )
        return stats

    return dataset.run(request, attempt)


def _logged(stats: UndoStats) -> dict[str, Any]:
    """What the log keeps: the record has the paths anyway."""
    names = (UNDONE, ONLY_MOVED, "files_restored", "bytes_restored", "files_removed", "bytes_removed")
    return {name: stats[name] for name in names}  # type: ignore[literal-required]


@dataclass(frozen=True)
class _Restored:
    """A file to bring back: where it is kept, its new path in the dataset, its old one, and who retired it."""

    kept: FileEntry
    path: str
    number: int
    old: str


@dataclass(frozen=True)
class _Changes:
    """A plan with the files that it means."""

    dataset: DatasetContext
    commits: Commits
    plan: UndoPlan
    restored: Sequence[_Restored]
    removed: Sequence[FileEntry]
    #: The files that stay.
    staying: Sequence[FileEntry]
    #: What the undone commits were.
    operations: Set[str]

    @classmethod
    def of(cls, dataset: DatasetContext, logged: LoggedFiles, plan: UndoPlan) -> _Changes:
        """Find the files.

        Raises:
            CannotUndo: A file to bring back is not kept, or another program has changed one to retire.
        """
        check_tombstones_without(dataset.workspace, logged.commits, plan.undone)
        taken, restored = set(logged.names), []
        for number, old in plan.restored:
            if not logged.is_kept(old):
                why = logged.why_not_kept(number, old)
                raise CannotUndo(f"commit {plan.undone[0]} cannot be undone: {why}. Nothing was changed")
            path = _free_name(old.path, number, taken)
            taken.add(path)
            restored.append(_Restored(logged.kept[old.path, old.fingerprint], path, number, old.path))
        published = {new.path: new for _, record in logged.commits.since(0) for new in record.publish}
        removed, gone = [], set(plan.removed)
        for path in plan.removed:
            entry, new = logged.current.get(path), published[path]
            moves = dataset.store.atomic_move
            if (
                entry is None
                or entry.size_bytes != new.size_bytes
                or (moves and entry.fingerprint != new.fingerprint)
            ):
                how = "removed" if entry is None else "replaced"
                raise CannotUndo(
                    f"commit {plan.undone[0]} cannot be undone: another program has {how} {path!r}, which a "
                    "commit had written. Nothing was changed"
                )
            removed.append(entry)
        staying = [entry for path, entry in logged.current.items() if path not in gone]
        operations = {logged.commits.records[number].operation for number in plan.undone}
        return cls(dataset, logged.commits, plan, restored, removed, staying, operations)

    def partition_columns(self) -> tuple[str, ...] | None:
        """The partition columns of all files afterwards; None if there will be no file.

        Raises:
            CannotUndo: They would differ, or types would, so that nothing could read the dataset.
        """
        if not self.plan.undone:
            return None  # nothing changes
        number = self.plan.undone[0]
        back = ReturningFiles(
            [file.path for file in self.restored],
            self._footers,
            since=number,
            have_same_types=self.operations <= _SAME_TYPES,
            what=f"commit {number} cannot be undone",
            otherwise=f", or restore(to={number - 1})",
        )
        return back.partition_columns(self.dataset, self.commits, self.staying)

    def _footers(self) -> Iterable[FileInfo]:
        """The footers of the files to bring back, as if they were back."""
        root = self.dataset.root
        kept = {
            FileEntry(f"{root}/{file.path}", file.kept.size_bytes, f"{_KEPT} {file.kept.fingerprint}"): file.kept
            for file in self.restored
        }
        places = {(entry.path, entry.fingerprint): place for entry, place in kept.items()}
        store = replace(self.dataset, past=PastState(0, (), places)).snapshot_store()
        return (each for each in read_footers(store, root, list(kept)) if isinstance(each, FileInfo))

    @property
    def may_reshape(self) -> bool:
        """Whether the undone commits may have changed the partitions or types of all files."""
        return not self.operations.isdisjoint(_RESHAPING)

    @property
    def renamed(self) -> list[tuple[str, int, str]]:
        """The files that get another name, because theirs is taken."""
        return [(file.path, file.number, file.old) for file in self.restored if file.path != file.old]

    def staged(self, transaction: Transaction) -> list[StagedFile]:
        """Stage the files to bring back."""
        store, root = self.dataset.store, self.dataset.root
        staged = [
            transaction.staging.restored_file(number, *posixpath.split(f"{root}/{file.path}"))
            for number, file in enumerate(self.restored)
        ]
        if not staged:
            return []
        store.make_dirs(posixpath.dirname(staged[0].path))
        pairs = list(zip(self.restored, staged, strict=True))
        try:
            if store.parallel_copies:
                with ThreadPoolExecutor(_PARALLEL_COPIES, thread_name_prefix="parketto-copy") as pool:
                    list(pool.map(lambda pair: _link_or_copy(store, pair[0].kept, pair[1].path), pairs))
            else:
                for file, copy in pairs:
                    _link_or_copy(store, file.kept, copy.path)
        except FileNotFoundError as error:
            raise CommitConflict(f"a kept file was just removed ({error}); nothing was changed") from error
        return staged

    def stats(self, *, dry_run: bool) -> UndoStats:
        """The report."""
        root = self.dataset.root
        return UndoStats(
            undone=list(self.plan.undone),
            files_restored=len(self.restored),
            bytes_restored=sum(file.kept.size_bytes for file in self.restored),
            files_removed=len(self.removed),
            bytes_removed=sum(entry.size_bytes for entry in self.removed),
            restored_files=sorted(file.path for file in self.restored),
            removed_files=sorted(entry.path[len(root) + 1 :] for entry in self.removed),
            only_moved_rows=self.plan.only_moves,
            dry_run=dry_run,
        )


def _refuse_added(added: Sequence[FileEntry], who: Callable[[str], str]) -> None:
    """Refuse files that were added meanwhile: a new plan checks whether they fit."""
    for entry in added[:1]:
        matters = "may have other partitions or types than the files that come back"
        raise CommitConflict.because_of(entry.path, operation="undo", matters=matters, who=who(entry.path))


def _free_name(path: str, number: int, taken: set[str]) -> str:
    """The path, or another name in its folder if that is taken.

    >>> _free_name("day=1/a.parquet", 7, {"day=1/a.parquet"})
    'day=1/a-restored-7.parquet'
    """
    stem, suffix = posixpath.splitext(path)
    found, attempt = path, 0
    while found in taken:
        again = f"-{attempt}" if attempt else ""
        found, attempt = f"{stem}-restored-{number}{again}{suffix}", attempt + 1
    return found


def _link_or_copy(store: Store, kept: FileEntry, destination: str) -> None:
    # The commit gives new files the access rights of those that they replace, which only an owner may do.
    if store.atomic_move and store.is_own(kept.path):
        with contextlib.suppress(OSError):  # not all filesystems have hard links
            store.link(kept.path, destination)
            return
    store.copy(kept.path, destination, kept.size_bytes)
