"""Earlier states of a dataset, from its log alone: what an undo or a restore changes, and what there was to read.

The state before a commit is the state after it, without the files that it published, with those that it retired.
So earlier states follow from the current files and the records since. Files of other programs belong to no commit:
they are part of every state, and stay.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from parketto.commit.column_changes import ColumnChanges, change_in_the_way, retiring_commit
from parketto.commit.explained_files import BASELINE, FOUND
from parketto.commit.record import Record, Retirement, paths_of
from parketto.commit.undone import RENAMED, UndoneBy, only_moves_rows, undone_commits
from parketto.display import counted
from parketto.errors import CannotUndo
from parketto.storage.hive import partition_values
from parketto.storage.store import FileEntry

#: Commits that change no file, so there is nothing to undo.
_REGISTERING = (BASELINE, FOUND)


@dataclass(frozen=True)
class Commits:
    """The complete commits of a dataset after a number, up to the last one."""

    records: Mapping[int, Record]
    #: The earliest state that the records lead to is that after this commit.
    after: int
    last: int

    @cached_property
    def numbers(self) -> list[int]:
        """The numbers of the commits, oldest first."""
        return sorted(self.records)

    @cached_property
    def undone_by(self) -> dict[int, int]:
        """For each commit that is undone, the commit that has undone it."""
        undone, found = UndoneBy(), {}
        for number in reversed(self.numbers):
            record = self.records[number]
            if (by := undone.add(number, record.operation, record.statistics)) is not None:
                found[number] = by
        return found

    @cached_property
    def retired_paths(self) -> dict[int, set[str]]:
        """The paths that each commit has retired."""
        return {number: paths_of(record.retire) for number, record in self.records.items()}

    @cached_property
    def present(self) -> dict[str, int]:
        """The paths that commits have published and no later one has retired, each with its last commit."""
        found: dict[str, int] = {}
        for number in self.numbers:
            record = self.records[number]
            for path in paths_of(record.retire):
                found.pop(path, None)
            found |= dict.fromkeys(paths_of(record.publish), number)
        return found

    @cached_property
    def column_changes(self) -> ColumnChanges:
        """Which changes of columns are in effect after each commit."""
        return ColumnChanges.of(self.records)

    def since(self, number: int) -> Iterator[tuple[int, Record]]:
        """The commits after a number, oldest first."""
        return ((each, self.records[each]) for each in self.numbers if each > number)

    def last_to_undo(self) -> int | None:
        """The last commit that is in effect and changed files, undos aside; None if there is none."""
        for number in reversed(self.numbers):
            record = self.records[number]
            is_undo = bool(undone_commits(record.operation, record.statistics))
            if number not in self.undone_by and not is_undo and (record.publish or record.retire):
                return number
        return None

    def describe(self, number: int) -> str:
        """A commit, for messages."""
        record = self.records[number]
        return f"commit {number} ({record.operation} by {record.author} at {record.at[:19]}Z)"


@dataclass(frozen=True)
class UndoPlan:
    """What undoing commits changes. Paths are relative to the dataset."""

    undone: tuple[int, ...]
    #: The files to bring back, each with the commit that retired it.
    restored: tuple[tuple[int, Retirement], ...]
    #: The files to retire.
    removed: tuple[str, ...]
    #: Whether the undone commits only moved rows.
    only_moves: bool


def plan_undo(commits: Commits, number: int) -> UndoPlan:
    """What undoing one commit changes, with later commits that only moved its rows.

    Raises:
        CannotUndo: A later commit has changed the same rows or the columns, or the commit is undone already.
    """
    record = commits.records[number]
    if (by := commits.undone_by.get(number)) is not None:
        raise CannotUndo(
            f"{commits.describe(number)} is already undone, by commit {by}. To apply it again, undo commit {by}. "
            "Nothing was changed"
        )
    if record.operation in _REGISTERING or not (record.publish or record.retire):
        raise CannotUndo(f"{commits.describe(number)} changed no file, so there is nothing to undo")
    ours = paths_of(record.publish)  # files with rows that the commit has written, wherever these are now
    undone = {number}
    restored = [(number, old) for old in record.retire]
    set_aside: set[tuple[int, str]] = set()
    blocking: list[int] = []
    for later, other in commits.since(number):
        touched = ours & commits.retired_paths[later]
        if later in commits.undone_by:
            # What it retired has come back, or will, by the commit that has undone it.
            ours -= touched
            set_aside |= {(later, path) for path in touched}
        elif cancelled := undone_commits(other.operation, other.statistics):
            ours |= _returned(other, cancelled, set_aside)
            if touched:
                blocking.append(later)  # it undid an earlier commit, whose files our commit had brought back
        elif touched and only_moves_rows(other.operation, other.arguments, other.statistics):
            ours = (ours - touched) | paths_of(other.publish)
            undone.add(later)
            restored += [(later, old) for old in other.retire if old.path not in touched]
        elif touched:
            blocking.append(later)
    if blocking:
        more = f", and {counted(len(blocking) - 1, 'earlier commit')}" if len(blocking) > 1 else ""
        raise CannotUndo(
            f"{commits.describe(number)} cannot be undone: {commits.describe(blocking[-1])}{more} changed the "
            f"same files since. Undo commit {blocking[-1]} first, or restore(to={number - 1}). Nothing was changed"
        )
    plan = UndoPlan(
        tuple(sorted(undone)), tuple(restored), tuple(sorted(ours)), _only_moves(commits.records, undone)
    )
    if (changed := change_in_the_way(commits, plan)) is not None:
        raise CannotUndo(
            f"{commits.describe(number)} cannot be undone: the files that would come back have other columns than "
            f"those that {commits.describe(changed)} has written or left. Undo commit {changed} first, or "
            f"restore(to={number - 1}). Nothing was changed"
        )
    return plan


def plan_backup(commits: Commits, retired: Iterable[str], published: Iterable[str]) -> UndoPlan:
    """What restoring a backup changes: a plan without its commit, if the log does not have its record."""
    paths = set(retired)
    number = retiring_commit(commits.records, paths)
    undone = () if number is None else (number,)
    back = [(commits.after if number is None else number, Retirement(path, "", "")) for path in sorted(paths)]
    return UndoPlan(undone, tuple(back), tuple(sorted(published)), _only_moves(commits.records, undone))


def _returned(record: Record, undone: Sequence[int], set_aside: set[tuple[int, str]]) -> set[str]:
    """The paths of the files that are back since commits were undone."""
    names = {(number, old): name for name, number, old in record.statistics.get(RENAMED, ())}
    back = {file for file in set_aside if file[0] in undone}
    set_aside -= back
    return {names.get(file, file[1]) for file in back}


def mixes_folders(commits: Commits, plan: UndoPlan) -> bool:
    """Whether files that come back have other partition columns in their paths than later commits' files."""
    removed = {*plan.removed}
    present = [path for path, by in commits.present.items() if by > plan.undone[0] and path not in removed]
    restored = {folder_columns(old.path) for _, old in plan.restored}
    return bool(restored) and len(restored.union(map(folder_columns, present))) > 1


def folder_columns(path: str) -> tuple[str, ...]:
    """The partition columns in a path relative to the dataset."""
    return tuple(name for name, _ in partition_values(posixpath.dirname(path)))


def _only_moves(records: Mapping[int, Record], numbers: Iterable[int]) -> bool:
    found = (records[number] for number in numbers)
    return all(only_moves_rows(each.operation, each.arguments, each.statistics) for each in found)


@dataclass(frozen=True)
class PastFiles:
    """The files after a commit: those that are still there, and those that later commits have retired.

    Attributes:
        number: The commit.
        present: The files that are in the dataset now, by path.
        retired: The others, by path, each with the commit that retired it.
        later: The files that later commits have published, and that are in the dataset now.
    """

    number: int
    present: Mapping[str, FileEntry]
    retired: Mapping[str, tuple[int, Retirement]]
    later: Mapping[str, FileEntry]


def files_after(commits: Commits, number: int, current: Mapping[str, FileEntry]) -> PastFiles:
    """The files after a commit.

    Args:
        commits: The commits since, or more.
        number: The commit.
        current: The files after the last commit, by path.
    """
    *_, found = past_files(commits, current, number)
    return found


def past_files(commits: Commits, current: Mapping[str, FileEntry], until: int) -> Iterator[PastFiles]:
    """The files after each commit, the last one first. A result is valid until the next one."""
    present, later = dict(current), dict[str, FileEntry]()
    retired: dict[str, tuple[int, Retirement]] = {}
    for number in range(commits.last, until - 1, -1):
        yield PastFiles(number, present, retired, later)
        record = commits.records.get(number)
        if record is None or number == until:
            continue
        for new in record.publish:
            retired.pop(new.path, None)
            if new.path in present:
                later[new.path] = present.pop(new.path)
        for old in record.retire:
            # A file of another program that has this name now was not there then.
            present.pop(old.path, None)
            same = later.get(old.path)
            if same is not None and same.fingerprint == old.fingerprint:
                present[old.path] = later.pop(old.path)  # it is back, because a commit was undone
            else:
                retired[old.path] = number, old


def plan_restore(commits: Commits, past: PastFiles) -> UndoPlan:
    """What undoing all commits after a state changes."""
    undone = [number for number in commits.numbers if number > past.number]
    return UndoPlan(
        tuple(undone),
        tuple(past.retired.values()),
        tuple(sorted(past.later)),
        _only_moves(
            commits.records, [each for each in undone if commits.records[each].operation not in _REGISTERING]
        ),
    )
