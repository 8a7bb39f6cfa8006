"""Verification: what was staged, read back from its footers, must add up to what the plan promised."""

from __future__ import annotations

import dataclasses
import posixpath
from collections.abc import Sequence

from parketto.engines.base import GroupResult
from parketto.errors import CommitConflict, CommitFailed
from parketto.kernels.work import StagedFile
from parketto.kernels.write import Written
from parketto.plan.rewrite import FileGroup
from parketto.rowgroups.area import without_area
from parketto.storage.clustering import without_record
from parketto.storage.footers import FileInfo
from parketto.storage.snapshot import read_files, read_snapshot
from parketto.storage.store import Store


def verify_groups(
    store: Store, results: Sequence[GroupResult], stats_columns: Sequence[str] = ()
) -> list[FileInfo]:
    """The staged files of rewritten groups, if rows and schemas are exactly those of their inputs."""
    infos = iter(_footers(store, [staged for result in results for staged in result.staged], stats_columns))
    verified = []
    for result in results:
        group = result.group
        staged = [next(infos) for _ in result.staged]
        rows = sum(info.num_rows for info in staged)
        if rows != group.num_rows:
            raise CommitFailed(
                f"row counts differ: {len(group)} files in {group.directory!r} have {group.num_rows} rows, the "
                f"files written for them {rows}. Nothing was changed"
            )
        for info in staged:
            _check_same(group, info)
            if group.max_rows is not None and info.num_rows > group.max_rows:
                raise CommitFailed(
                    f"a file written for {group.directory!r} has {info.num_rows} rows instead of at most "
                    f"{group.max_rows}. Nothing was changed"
                )
        verified += staged
    return verified


def verify_total(before: Sequence[FileInfo], after: Sequence[FileInfo]) -> None:
    """Whatever has become of the files, together they have as many rows as before."""
    rows, found = (sum(file.num_rows for file in files) for files in (before, after))
    if rows != found:
        raise CommitFailed(
            f"row counts differ: there are {rows} rows, and there would be {found}. Nothing was changed"
        )


def _check_same(group: FileGroup, info: FileInfo) -> None:
    if not _same_schema(group, info):
        raise CommitFailed(
            f"the schema of a file written for {group.directory!r} differs. Expected:\n{group.schema}\n"
            f"written:\n{info.schema}\nNothing was changed"
        )
    if info.traits.leaves != group.traits.leaves or info.traits.annotations != group.traits.annotations:
        raise CommitFailed(
            f"files in {group.directory!r} have columns that cannot be written back as they are: "
            f"{_differences(group, info)}. Nothing was changed"
        )


def _same_schema(group: FileGroup, info: FileInfo) -> bool:
    """Fields with their metadata, and the file's metadata as it was put together for the group."""
    assert info.schema is not None, "a footer always has a schema"
    fields = info.schema.remove_metadata().equals(group.schema.remove_metadata(), check_metadata=True)
    # An area that no longer holds is left out.
    return fields and without_area(info.metadata) == without_area(group.metadata)


def _differences(group: FileGroup, info: FileInfo) -> str:
    pairs = zip(group.traits.leaves, info.traits.leaves, strict=False)
    return "; ".join(f"{before} would become {after}" for before, after in pairs if before != after)


def verify_written(
    store: Store, staged: Sequence[StagedFile], num_rows: int, names: Sequence[str]
) -> list[FileInfo]:
    """The staged files of new data, if they hold all of its rows and columns."""
    infos = _footers(store, staged)
    rows = sum(info.num_rows for info in infos)
    if rows != num_rows:
        raise CommitFailed(f"row counts differ: {num_rows} rows were given, {rows} written. Nothing was changed")
    for info in infos:
        if info.schema is None or list(info.schema.names) != list(names):
            raise CommitFailed(f"the columns written differ from those given: {list(names)}. Nothing was changed")
    return infos


def verify_copies(original: FileInfo, copies: Sequence[FileInfo]) -> None:
    """Files that have rows of other files have their schema and metadata to the letter, but for their layout."""
    expected = FileGroup((dataclasses.replace(original, metadata=without_record(original.metadata)),))
    for info in copies:
        _check_same(expected, info)


def verify_published(store: Store, staged: Sequence[StagedFile], verified: Sequence[FileInfo]) -> None:
    """The files are where they should be, with all of their bytes and rows."""
    found = store.stat_many([file.destination for file in staged])
    for file, info in zip(staged, verified, strict=True):
        entry = found.get(file.destination)
        if entry is None or entry.size_bytes != info.size_bytes:
            raise CommitConflict(
                f"{file.destination!r} was published and {'is gone' if entry is None else 'has changed'} since: "
                "somebody else is working on the dataset"
            )
    rows = sum(info.num_rows for info in read_snapshot(store, "", found.values()).files)
    if rows != sum(info.num_rows for info in verified):
        raise CommitConflict(f"the files published have {rows} rows by now: somebody else has changed them")


def verify_edits(store: Store, edits: Sequence[tuple[FileInfo, Written]]) -> list[FileInfo]:
    """The staged successors of files whose rows were changed, if rows and schemas are what they should be."""
    infos = iter(_footers(store, [staged for _, written in edits for staged in written.staged]))
    verified = []
    for file, written in edits:
        staged = [next(infos) for _ in written.staged]
        rows = sum(info.num_rows for info in staged)
        if rows != written.num_rows:
            raise CommitFailed(
                f"row counts differ: {written.num_rows} rows were left of {file.path!r}, {rows} were written. "
                "Nothing was changed"
            )
        for info in staged:
            _check_same(FileGroup((file,)), info)
        verified += staged
    return verified


def _footers(store: Store, staged: Sequence[StagedFile], stats_columns: Sequence[str] = ()) -> list[FileInfo]:
    try:
        infos = read_files(store, [file.path for file in staged], stats_columns)
    except FileNotFoundError as error:
        raise CommitFailed(f"a staged file is missing: {error}. Nothing was changed") from error
    return [
        dataclasses.replace(info, directory=posixpath.dirname(file.destination))
        for info, file in zip(infos, staged, strict=True)
    ]
