"""Decides, from the matches of all files, what happens to every file and every source row."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from parketto.merge.rules import Change, MergeRules
from parketto.merge.scope import Scope
from parketto.parquet.file_info import FileInfo
from parketto.runtime.arrays import Indices


@dataclass(frozen=True)
class FileMatches:
    """The source rows (by number) that update rows of a file, and the number of rows that they update or delete.

    `same_folder` is true for source rows that belong to the directory of the file.
    """

    file: FileInfo
    sources: Indices
    same_folder: npt.NDArray[np.bool_]
    num_rows: int
    #: The source rows that have their key in the file, whether they update it or not; None: `sources`.
    matched: Indices | None = None
    #: The number of rows with a key of the source that stay as they are.
    untouched: int = 0


@dataclass(frozen=True)
class FileRewrite:
    """A file to rewrite; the source rows that update it in place, and those that move rows out of it."""

    file: FileInfo
    in_place: Indices
    moves_out: Indices
    #: The number of rows that are left.
    num_rows: int


@dataclass(frozen=True)
class MergeDecision:
    """What happens to every file and every source row."""

    #: Files that are rewritten.
    rewrites: tuple[FileRewrite, ...]
    #: Files that are deleted, because none of their rows remain.
    removals: tuple[FileInfo, ...]
    #: Source rows that are written to new files.
    additions: Indices
    inserted: int
    updated: int
    deleted: int


def decide(
    rules: MergeRules,
    change: Change,
    files: Sequence[FileInfo],
    matches: Sequence[FileMatches],
    source_rows: int,
    refused: Indices | None = None,
    scope: Scope | None = None,
) -> MergeDecision:
    """Decide what happens to each row.

    Args:
        rules: The rules of the merge.
        change: What an update does to a row.
        files: All files of the target.
        matches: The matches of files, in path order.
        source_rows: The number of source rows.
        refused: Source rows that are not inserted.
        scope: Limits a full merge to some rows of the files.
    """
    is_matched = _mask(
        source_rows, [found.sources if found.matched is None else found.matched for found in matches]
    )
    if refused is not None:
        is_matched[refused] = True
    missing = np.flatnonzero(~is_matched) if rules.inserts else np.empty(0, np.int64)
    if not rules.edits:
        return MergeDecision((), (), missing, len(missing), 0, 0)
    in_place = _firsts([found.sources[found.same_folder] for found in matches], source_rows)
    is_updated = _mask(source_rows, [found.sources for found in matches])
    is_moved = is_updated & ~_mask(source_rows, in_place)
    moved, none = np.flatnonzero(is_moved), np.empty(0, np.int64)
    moves_out = [none for _ in matches]
    if change.updated is not None and len(moved):
        # Columns that are not updated move along, so the row moves out of the first file that has it.
        moves_out = _firsts([found.sources[is_moved[found.sources]] for found in matches], source_rows)
        moved = none
    updated = int(is_updated.sum())
    # A full merge also rewrites files in which some rows stay, and others have no source row.
    touched = [
        each
        for each in zip(matches, in_place, moves_out, strict=True)
        if each[0].num_rows or (rules.removes_missing and each[0].untouched)
    ]
    edited = sum(found.num_rows for found, _, _ in touched)
    gone = 0
    removals = [
        found.file
        for found, updates, moves in touched
        if not len(moves) and not _left(rules, found, updates, scope)
    ]
    rest: list[FileInfo] = []
    if rules.removes_missing:
        total = sum(file.num_rows for file in files) if scope is None else scope.num_rows
        gone = total - edited - sum(found.untouched for found, _, _ in touched)
        hit = {found.file.path for found, _, _ in touched}
        rest = [file for file in files if file.path not in hit and file.num_rows]
        removals += [file for file in rest if scope is None or not scope.rows_outside(file)]
    removed = {file.path for file in removals}
    rewrites = [
        FileRewrite(found.file, updates, moves, _left(rules, found, updates, scope))
        for found, updates, moves in touched
    ]
    rewrites += [FileRewrite(file, none, none, 0 if scope is None else scope.rows_outside(file)) for file in rest]
    return MergeDecision(
        rewrites=tuple(each for each in rewrites if each.file.path not in removed),
        removals=tuple(removals),
        additions=np.concatenate([missing, moved]),
        inserted=len(missing),
        updated=updated,
        deleted=edited - updated + gone,
    )


def _left(rules: MergeRules, found: FileMatches, in_place: Indices, scope: Scope | None) -> int:
    """The number of rows that are left of a file."""
    stays = found.untouched if rules.removes_missing else found.file.num_rows - found.num_rows
    outside = 0 if scope is None else scope.rows_outside(found.file)
    return len(in_place) + stays + outside


def distinct_numbers(numbers: Indices) -> Indices:
    """Distinct numbers, sorted. NumPy's own `unique` takes ten times as long if there are many.

    >>> distinct_numbers(np.array([3, 1, 3])).tolist()
    [1, 3]
    """
    ordered = np.sort(numbers)
    return ordered[np.append(True, ordered[1:] != ordered[:-1])] if len(ordered) else ordered


def _mask(source_rows: int, sources: Iterable[Indices]) -> npt.NDArray[np.bool_]:
    """A mask of the source rows that occur in any of `sources`."""
    found = np.zeros(source_rows, np.bool_)
    for each in sources:
        found[each] = True
    return found


def _firsts(sources: Sequence[Indices], source_rows: int) -> list[Indices]:
    """For each file, those of its source rows that no earlier file has, sorted."""
    taken = np.zeros(source_rows, np.bool_)
    firsts = []
    for each in sources:
        firsts.append(distinct_numbers(each[~taken[each]]))
        taken[each] = True
    return firsts
