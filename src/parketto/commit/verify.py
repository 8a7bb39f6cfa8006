"""Verification: the footers of the staged files must have the rows and schemas that the plan expects."""

from __future__ import annotations

import dataclasses
import posixpath
from collections.abc import Sequence

import pyarrow as pa

from parketto.engines.base import GroupResult
from parketto.errors import CommitConflict, CommitFailed
from parketto.parquet.clustering_metadata import without_record
from parketto.parquet.file_format import FileFormat
from parketto.parquet.file_info import FileInfo, describe
from parketto.parquet.geo_area import without_bbox
from parketto.parquet.output import Output, Replaced, kept_metadata
from parketto.parquet.snapshot import read_files, read_snapshot
from parketto.runtime.staging import StagedFile
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
                f"files that replace them {rows}. Nothing was changed"
            )
        expected = dataclasses.replace(group.files[0], metadata=group.metadata)
        for info in staged:
            _check_same(expected, info)
            if group.max_rows is not None and info.num_rows > group.max_rows:
                raise CommitFailed(
                    f"a file written for {group.directory!r} has {info.num_rows} rows instead of at most "
                    f"{group.max_rows}. Nothing was changed"
                )
        verified += staged
    return verified


def verify_total(before: Sequence[FileInfo], after: Sequence[FileInfo]) -> None:
    """Raise CommitFailed if the total row count has changed."""
    rows, found = (sum(file.num_rows for file in files) for files in (before, after))
    if rows != found:
        raise CommitFailed(f"row counts differ: {rows} rows before, {found} rows after. Nothing was changed")


def _check_same(expected: FileInfo, info: FileInfo) -> None:
    if not _same_schema(expected, info):
        raise CommitFailed(
            f"the schema of a file written for {expected.directory!r} differs. Expected:\n{expected.schema}\n"
            f"written:\n{info.schema}\nNothing was changed"
        )
    if info.traits.leaves != expected.traits.leaves or info.traits.annotations != expected.traits.annotations:
        raise CommitFailed(
            f"files in {expected.directory!r} have columns that cannot be written as they are: "
            f"{_differences(expected, info)}. Nothing was changed"
        )


def _same_schema(expected: FileInfo, info: FileInfo) -> bool:
    """Whether the fields with their metadata, and the file metadata, are the expected ones."""
    assert info.schema is not None, "a footer always has a schema"
    assert expected.schema is not None, "files to rewrite come from a snapshot"
    # A rewrite drops bounding boxes that no longer hold.
    return _fields(info.schema).equals(_fields(expected.schema), check_metadata=True) and (
        without_bbox(info.metadata) == without_bbox(expected.metadata)
    )


def _fields(schema: pa.Schema) -> pa.Schema:
    """The fields as tasks of other processes return them: without the names of the entries of maps."""
    return pa.ipc.read_schema(schema.remove_metadata().serialize())


def _differences(expected: FileInfo, info: FileInfo) -> str:
    pairs = zip(expected.traits.leaves, info.traits.leaves, strict=False)
    return "; ".join(f"{before} would become {after}" for before, after in pairs if before != after)


def verify_written(
    store: Store, staged: Sequence[StagedFile], num_rows: int, planned: FileFormat
) -> list[FileInfo]:
    """The staged files of new data, if they contain all of its rows, in the columns and types of their format."""
    infos = _footers(store, staged)
    rows = sum(info.num_rows for info in infos)
    if rows != num_rows:
        raise CommitFailed(f"row counts differ: {num_rows} rows were given, {rows} written. Nothing was changed")
    if infos:
        # Parquet lacks some of Arrow's types: an empty file shows how the planned ones are stored and read.
        expected = describe(planned.encoded(None))
        for info in infos:
            _check_same(dataclasses.replace(expected, directory=info.directory, metadata=info.metadata), info)
    return infos


def verify_copies(original: FileInfo, copies: Sequence[FileInfo]) -> None:
    """Raise CommitFailed if copies differ from the original in schema or metadata, except for the clustering."""
    expected = dataclasses.replace(original, metadata=without_record(original.metadata))
    for info in copies:
        _check_same(expected, info)


def verify_conformed(
    store: Store, expected: Sequence[tuple[FileInfo, Output]], staged: Sequence[StagedFile]
) -> None:
    """Raise CommitFailed unless each file has the rows of its original, in the schema of its output."""
    for (original, output), info in zip(expected, _footers(store, staged), strict=True):
        if info.num_rows != original.num_rows:
            raise CommitFailed(
                f"row counts differ: {original.path!r} has {original.num_rows} rows, the file that replaces it "
                f"{info.num_rows}. Nothing was changed"
            )
        wanted = output.format
        _check_same(
            dataclasses.replace(
                original, schema=wanted.readable_as, traits=wanted.traits, metadata=wanted.metadata
            ),
            info,
        )


def verify_published(store: Store, staged: Sequence[StagedFile], verified: Sequence[FileInfo]) -> None:
    """Raise CommitConflict if published files are missing, or differ in size or rows."""
    found = store.stat_many([file.destination for file in staged])
    for file, info in zip(staged, verified, strict=True):
        entry = found.get(file.destination)
        if entry is None or entry.size_bytes != info.size_bytes:
            raise CommitConflict(
                f"{file.destination!r} was published and {'is gone' if entry is None else 'has changed'} since: "
                "another writer has changed the dataset"
            )
    rows = sum(info.num_rows for info in read_snapshot(store, "", found.values()).files)
    if rows != sum(info.num_rows for info in verified):
        raise CommitConflict(f"the published files now contain {rows} rows: another writer has changed them")


def verify_edits(store: Store, edits: Sequence[Replaced]) -> list[FileInfo]:
    """The staged replacements of edited files, if their rows and schemas are the expected ones."""
    infos = iter(_footers(store, [staged for each in edits for staged in each.written.staged]))
    verified = []
    for each in edits:
        staged = [next(infos) for _ in each.written.staged]
        rows = sum(info.num_rows for info in staged)
        file = each.files[0]
        if rows != each.written.num_rows:
            of = f"{file.path!r}" if len(each.files) == 1 else f"{len(each.files)} files from {file.path!r} on"
            raise CommitFailed(
                f"row counts differ: {each.written.num_rows} rows were left of {of}, {rows} were written. "
                "Nothing was changed"
            )
        expected = dataclasses.replace(file, metadata=kept_metadata(file))
        for info in staged:
            _check_same(expected, info)
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
