"""Which changes of columns the files of an undo have and lack, from the log alone.

A file has the columns of its time: a later `alter` rewrites only the files that are there then. A file that comes
back after it has other names or types than the rest of the dataset.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from parketto.commit.record import Record, paths_of
from parketto.commit.undone import RESTORE, undone_commits

if TYPE_CHECKING:
    from parketto.commit.past import Commits, UndoPlan

_OPERATIONS = ("alter", "unify_schema")
# A column that was only added is NULL in older files, as it was in the files that there were.
_CHANGES = ("rename", "drop", "cast")


@dataclass(frozen=True)
class ColumnChanges:
    """The commits that changed columns and are in effect, before and after each commit.

    Attributes:
        kinds: How each commit that changed columns did so.
    """

    kinds: Mapping[int, frozenset[str]]
    before: Mapping[int, frozenset[int]]
    after: Mapping[int, frozenset[int]]

    @classmethod
    def of(cls, records: Mapping[int, Record]) -> ColumnChanges:
        """Replay commits, and undos of them."""
        kinds = {number: kind for number, record in records.items() if (kind := _changed(record))}
        before, after = dict[int, frozenset[int]](), dict[int, frozenset[int]]()
        found, now = cls(kinds, before, after), frozenset[int]()
        for number in sorted(records):
            before[number] = now
            now = now | {number} if number in kinds else found.without(now, _undone(records, number))
            after[number] = now
        return found

    def without(self, now: frozenset[int], undone: Iterable[int]) -> frozenset[int]:
        """What is in effect once some commits are undone, the last one first."""
        for number in sorted(undone, reverse=True):
            if number in self.after:
                before, after = self.before[number], self.after[number]
                now = (now - (after - before)) | (before - after)
        return now


def change_in_the_way(commits: Commits, plan: UndoPlan) -> int | None:
    """The last commit because of which files that come back and files that stay would have other columns.

    Types that only differ between written rows are not in the log: footers show them.
    """
    records = commits.records
    changes, kinds = commits.column_changes, commits.column_changes.kinds
    if not kinds:
        return None
    now = changes.after[commits.numbers[-1]]
    then = changes.without(now, plan.undone)
    found: set[int] = set()
    for number, old in plan.restored:
        seen = changes.before.get(number, frozenset())
        for each in then - seen:
            found.add(each if each in now else _publisher(records, old.path, number))
        for each in seen - then:
            if "rename" in kinds[each]:
                by = commits.undone_by.get(each)
                found.add(_publisher(records, old.path, number) if by is None else by)
    if now == then:
        return max(found, default=None)
    removed = {*plan.removed}
    for path, by in commits.present.items():
        if path not in removed and by not in plan.undone:
            seen = changes.after[by]
            lacks = any(each < by and each not in seen and kinds[each] - {"cast"} for each in then - now)
            if lacks or any("rename" in kinds[each] for each in seen & (now - then)):
                found.add(by)
    return max(found, default=None)


def retiring_commit(records: Mapping[int, Record], paths: set[str], before: int | None = None) -> int | None:
    """The last commit that has retired exactly these files; None if the records have none."""
    numbers = (each for each in sorted(records, reverse=True) if before is None or each < before)
    return next((number for number in numbers if paths and paths_of(records[number].retire) == paths), None)


def _changed(record: Record) -> frozenset[str]:
    """How a commit has changed columns."""
    if record.operation not in _OPERATIONS:
        return frozenset()
    return frozenset(kind for kind in _CHANGES if record.arguments.get(kind))


def _undone(records: Mapping[int, Record], number: int) -> tuple[int, ...]:
    """The commits that a commit has undone, also by a backup."""
    record = records[number]
    if record.operation == RESTORE and "backup" in record.arguments:
        found = retiring_commit(records, paths_of(record.publish), number)
        return () if found is None else (found,)
    return undone_commits(record.operation, record.statistics)


def _publisher(records: Mapping[int, Record], path: str, before: int) -> int:
    """The last commit before another one that has published a path; that one if no record has it."""
    numbers = (each for each in sorted(records, reverse=True) if each < before)
    return next((each for each in numbers if path in paths_of(records[each].publish)), before)
