"""The files that `write_from` reads: one file, a folder, or all that match a glob pattern."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from fsspec import AbstractFileSystem

from parketto.engines.arrow_files import arrow_file_rows
from parketto.engines.base import Engine, FileFormatName
from parketto.engines.text_types import KnownTypes
from parketto.errors import DatasetNotFound, IncompatibleTypes, InvalidArgument, SourceNotFound, quoted
from parketto.operations.context import DatasetContext
from parketto.operations.read import row_schema
from parketto.operations.sources import path_rows
from parketto.parquet.row_source import FileRows, RowSource
from parketto.parquet.snapshot import read_snapshot
from parketto.storage.listing import relative, retry_on_vanished_files
from parketto.storage.opening import open_store
from parketto.storage.options import GivenOptions
from parketto.storage.store import FileEntry, Store

FORMATS: tuple[FileFormatName, ...] = ("csv", "json", "parquet", "arrow")
_SUFFIXES: dict[str, FileFormatName] = {
    ".csv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".arrows": "arrow",
    ".feather": "arrow",
}
#: A path or glob pattern, or several.
SourcePaths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
_WILDCARD = re.compile(r"[*?\[]")


@dataclass(frozen=True)
class SourceFiles:
    """Files of one format."""

    store: Store
    #: The folder that contains them all; partition columns are read from the folders below it.
    root: str
    entries: Sequence[FileEntry]
    format: FileFormatName
    #: Whether they are all files of a folder, which may be a dataset.
    is_folder: bool = False

    @property
    def paths(self) -> list[str]:
        """Their paths, as the caller can open them."""
        return [self.store.url(entry.path) for entry in self.entries]


def check_format(given: Any) -> FileFormatName | None:
    """The validated format; None: the one that the suffix names."""
    if given is None or given in FORMATS:
        return given  # type: ignore[no-any-return]
    if f".{given}" in _SUFFIXES:
        return _SUFFIXES[f".{given}"]
    raise InvalidArgument(f"unknown format {given!r}; valid formats: {quoted(FORMATS)}")


def find_all_source_files(
    paths: SourcePaths,
    given: FileFormatName | None,
    filesystem: AbstractFileSystem | None = None,
    storage_options: GivenOptions = None,
) -> SourceFiles:
    """The files of one path or glob pattern, or of several, in this order.

    Raises:
        SourceNotFound: One of them has none.
        InvalidArgument: Formats are unknown, or differ; or the paths are on different filesystems.
    """
    if isinstance(paths, str | os.PathLike):
        return find_source_files(paths, given, filesystem, storage_options)
    found = [find_source_files(path, given, filesystem, storage_options) for path in paths]
    if not found:
        raise InvalidArgument("there are no files to read: the list of paths is empty")
    if len(kinds := {each.format for each in found}) > 1:
        raise InvalidArgument(f"the files have several formats: {', '.join(sorted(kinds))}; write them one by one")
    first, *others = found
    if not others:
        return first
    if any(not each.store.same_files(first.store) for each in others):
        raise InvalidArgument("the files are on different filesystems; write them one by one")
    root = posixpath.commonpath([each.root for each in found])
    entries = {entry.path: entry for each in found for entry in each.entries}
    return SourceFiles(first.store, root, list(entries.values()), first.format)


def find_source_files(
    path: str | os.PathLike[str],
    given: FileFormatName | None,
    filesystem: AbstractFileSystem | None = None,
    storage_options: GivenOptions = None,
) -> SourceFiles:
    """The files of a path or glob pattern, in the order of their paths.

    Raises:
        SourceNotFound: There are none.
        InvalidArgument: Their format is unknown, or they have several.
    """
    store, location = open_store(path, filesystem, storage_options)
    if (entry := store.stat(location)) is not None:
        root = location.rpartition("/")[0]
        return SourceFiles(store, root, [entry], given or _format_of([entry]))
    text = os.fspath(path)
    if (wildcard := _WILDCARD.search(text)) is None or store.is_dir(location):
        found = _visible(store, location)
        known = [each for each in found if _suffix_format(each) in ((given,) if given else FORMATS)]
        return SourceFiles(store, location, *_of_one_format(path, known or found, given), is_folder=True)
    folder, _, _ = text[: wildcard.start()].rpartition("/")
    pattern = text[len(folder) :].lstrip("/")
    store, root = open_store(folder or ("/" if text.startswith("/") else "."), filesystem, storage_options)
    matches = re.compile(_regex(pattern)).fullmatch
    found = [each for each in _visible(store, root) if matches(relative(each.path, root))]
    return SourceFiles(store, root, *_of_one_format(path, found, given))


def known_types(dataset: DatasetContext, *, evolve: bool = False) -> KnownTypes:
    """The types of the columns that a dataset has, for files that have none."""
    with suppress(DatasetNotFound, IncompatibleTypes):
        schema = row_schema(retry_on_vanished_files(dataset.root, dataset.snapshot))
        return KnownTypes({item.name: item.type for item in schema}, evolve)
    return KnownTypes()


def source_of(
    files: SourceFiles,
    engine: Engine,
    storage_options: GivenOptions = None,
    known: Callable[[], KnownTypes] = KnownTypes,
) -> tuple[RowSource, list[str]]:
    """The rows of files, and the paths that are read. `known` gives the types of columns in text files."""
    if files.format == "arrow":
        return arrow_file_rows(files.store, files.entries), files.paths
    if files.format != "parquet":
        return engine.scan_files(files.store, files.entries, files.format, known()), files.paths
    engine.check_store(files.store)
    if files.is_folder:
        rows, _ = path_rows(files.root, engine, files.store.fs, storage_options)
    else:
        snapshot = read_snapshot(files.store, files.root, files.entries, None)
        rows = FileRows.of(files.store, snapshot.files)
    return rows, [files.store.url(file.path) for file in rows.files]


def _visible(store: Store, root: str) -> list[FileEntry]:
    """All files below a folder that are not hidden, by path."""
    try:
        listed = list(store.list_files(root))
    except (FileNotFoundError, NotADirectoryError):
        return []
    hidden = re.compile(r"(^|/)[._][^/=]*(/|$)").search
    return sorted((each for each in listed if not hidden(relative(each.path, root))), key=lambda each: each.path)


def _of_one_format(
    path: str | os.PathLike[str], found: Sequence[FileEntry], given: FileFormatName | None
) -> tuple[Sequence[FileEntry], FileFormatName]:
    if not found:
        raise SourceNotFound(f"no files match {os.fspath(path)!r}")
    if given is not None:
        return found, given
    kinds = sorted({kind for each in found if (kind := _suffix_format(each)) is not None})
    if len(kinds) > 1:
        raise InvalidArgument(
            f"{os.fspath(path)!r} contains files of several formats: {', '.join(kinds)}; select one with "
            f"format=, or with a pattern such as '*.{kinds[0]}'"
        )
    return found, _format_of(found)


def _format_of(found: Sequence[FileEntry]) -> FileFormatName:
    """The format that the suffix of every file names."""
    kinds = {_suffix_format(each): each for each in found}
    if None in kinds:
        raise InvalidArgument(
            f"the format of {kinds[None].path!r} is unknown: supported suffixes are {quoted(_SUFFIXES)} (text "
            f"also with '.gz'); otherwise name it with format=, one of {quoted(FORMATS)}"
        )
    return next(kind for kind in kinds if kind is not None)


def _suffix_format(entry: FileEntry) -> FileFormatName | None:
    name = entry.path.rpartition("/")[2].lower().removesuffix(".gz")
    return _SUFFIXES.get(os.path.splitext(name)[1])


def _regex(pattern: str) -> str:
    """A regular expression for a glob pattern: `*` and `?` within one folder, `**/` for any folders."""
    parts = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    pieces = re.split(r"(\*\*/|\*\*|\*|\?|\[!?[^\]]+\])", pattern)
    return "".join(
        parts.get(piece) or (piece.replace("[!", "[^") if piece.startswith("[") else re.escape(piece))
        for piece in pieces
    )
