"""Whether files that an undo or a restore brings back can be read together with those that stay."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from parketto.commit.footer_index import MIN_FILES, FooterIndex
from parketto.commit.past import Commits, folder_columns
from parketto.errors import CannotUndo, IncompatibleTypes, InvalidArgument
from parketto.operations.context import DatasetContext
from parketto.parquet.bounded_columns import StatsColumns
from parketto.parquet.dataset_schema import layout_key, unified
from parketto.parquet.file_info import FileInfo
from parketto.parquet.partition_spec import partition_spec_of
from parketto.parquet.snapshot import read_footers, read_snapshot
from parketto.storage.listing import relative
from parketto.storage.store import FileEntry


@dataclass(frozen=True)
class ReturningFiles:
    """Files that come back.

    Attributes:
        paths: Their paths in the dataset.
        read: Reads their footers.
        since: The first commit that is undone: files from before were read together with them.
        have_same_types: Whether the files that go have the same types, so that only partitions can differ.
        what: What cannot be done if they do not fit, for the message.
        otherwise: What the caller can do instead of undoing a later commit, for the message.
    """

    paths: Sequence[str]
    read: Callable[[], Iterable[FileInfo]]
    since: int
    have_same_types: bool
    what: str
    otherwise: str

    def partition_columns(
        self, dataset: DatasetContext, commits: Commits, staying: Sequence[FileEntry]
    ) -> tuple[str, ...] | None:
        """The partition columns of all files afterwards; None if there will be no file, or they differ by now.

        Raises:
            CannotUndo: They would differ, or types would, so that nothing could read the dataset.
        """
        recent, older = list[FileEntry](), dict[tuple[str, ...], list[FileEntry]]()
        forms = {folder_columns(path) for path in self.paths}
        for entry in staying:
            path = relative(entry.path, dataset.root)
            by = commits.present.get(path)
            if by is None or by > self.since:
                recent.append(entry)
            else:
                older.setdefault(folder_columns(path), []).append(entry)
            forms.add(folder_columns(path))
        if self.paths and (len(forms) > 1 or (recent and not self.have_same_types)):
            known = (_example(dataset, entries) for entries in older.values())
            others = [*(each for each in known if each is not None), *_layouts(_representatives(dataset, recent))]
            back = _layouts(self.read())
            try:
                return _common(others + back)
            except (InvalidArgument, IncompatibleTypes) as error:
                raise self._refusal(dataset, commits, back, others, error) from error
        return next(iter(forms)) if len(forms) == 1 else None

    def _refusal(
        self,
        dataset: DatasetContext,
        commits: Commits,
        back: Sequence[FileInfo],
        others: Sequence[FileInfo],
        error: Exception,
    ) -> CannotUndo:
        """The error, with a file that comes back and one that it does not fit."""
        pairs = ((each, other) for other in reversed(others) for each in back if not _fit(each, other))
        first = next(pairs, (back[0], others[-1])) if back and others else ()
        if not first:
            return CannotUndo(f"{self.what}: {error}. Nothing was changed")
        ours, theirs = (relative(each.path, dataset.root) for each in first)
        by = commits.present.get(theirs)
        who = "no commit in the log has written" if by is None else f"{commits.describe(by)} has written"
        remedy = f"Move {theirs!r} away" if by is None else f"Undo commit {by} first{self.otherwise}"
        differ = "types" if isinstance(error, IncompatibleTypes) else "partitions"
        return CannotUndo(
            f"{self.what}: {ours!r}, which would come back, and {theirs!r}, which {who}, have other {differ}, so "
            f"that nothing could read both. {remedy}. Nothing was changed"
        )


def _common(files: Sequence[FileInfo]) -> tuple[str, ...] | None:
    """The partition columns of files that can be read together; None without files."""
    return partition_spec_of(unified(files).files).partition_by if files else None


def _fit(one: FileInfo, other: FileInfo) -> bool:
    try:
        _common([one, other])
    except (InvalidArgument, IncompatibleTypes):
        return False
    return True


def _layouts(files: Iterable[FileInfo]) -> list[FileInfo]:
    """The first file of each layout and form of partitioning, one with rows and one without."""
    found: dict[object, FileInfo] = {}
    for file in files:
        names = tuple(name for name, _ in file.partition)
        found.setdefault((layout_key(file), names, file.num_rows > 0), file)
    return list(found.values())


def _example(dataset: DatasetContext, entries: Sequence[FileEntry]) -> FileInfo | None:
    """The first of some files that has rows; None if none has."""
    footers = (next(read_footers(dataset.store, dataset.root, [entry])) for entry in entries)
    return next((each for each in footers if isinstance(each, FileInfo) and each.num_rows), None)


def _representatives(dataset: DatasetContext, entries: Sequence[FileEntry]) -> Iterable[FileInfo]:
    """Footers of files of every layout, by the footer index where there is one."""
    if len(entries) >= MIN_FILES and dataset.workspace.keeps_history:
        from parketto.operations.index_pruning import IndexSearch

        index = FooterIndex(dataset.store, dataset.workspace.path)

        def read(some: Sequence[FileEntry], columns: StatsColumns) -> Sequence[FileInfo]:
            return read_snapshot(dataset.store, dataset.root, some, columns).files

        files = IndexSearch(index, dataset.root, read, None).files(entries)
        entries = files.select(files.representatives())
    found = read_footers(dataset.store, dataset.root, entries)
    return (each for each in found if isinstance(each, FileInfo))
