"""Delete rows for good: also from the files that are kept of earlier commits, and from known backups.

A kept file is removed in each of these cases:

- It contains rows that match the condition or have one of the keys.
- It lacks a column, so that this cannot be decided.
- A file that contained deleted rows was made from it: it may have older versions of these rows. The file with the
  rows may itself be a kept one, because an earlier delete has removed them from the dataset.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import pyarrow as pa

from parketto.commit.backup import kept_file, read_manifest
from parketto.commit.identity import identity_of
from parketto.commit.index_update import clear_index
from parketto.commit.record import paths_of
from parketto.commit.recovery import recover
from parketto.commit.retention import KeptFiles, Manifest
from parketto.engines.base import Context, ProgressCallback
from parketto.errors import InvalidArgument, ParkettoError
from parketto.merge.key_rows import HasKeys
from parketto.operations.context import DatasetContext, PastState
from parketto.operations.delete_keys import KeyRequest, delete_keys
from parketto.operations.edit import edit
from parketto.operations.edit_run import EditRequest
from parketto.operations.past_states import commits_of
from parketto.operations.read import RowQuery, scan_of
from parketto.operations.vacuum import remove_kept_folders
from parketto.parquet.bounded_columns import MentionedColumns
from parketto.parquet.partition_spec import partition_spec_of
from parketto.parquet.row_source import ArrowRows
from parketto.parquet.snapshot import read_snapshot
from parketto.results import EditStats, PurgedFile
from parketto.runtime.staging import Staging
from parketto.storage.hive import PartitionFilter, directory_matcher
from parketto.storage.store import FileEntry, Store

#: Opens the place of a backup.
OpenBackup = Callable[[str], tuple[Store, str]]


class Selection(Protocol):
    """The rows to delete."""

    @property
    def partition_filter(self) -> PartitionFilter:
        """The partitions that may have them."""

    def delete(self, dataset: DatasetContext, *, dry_run: bool, progress: ProgressCallback | None) -> EditStats:
        """Delete them from the dataset."""

    def is_in(self, dataset: DatasetContext, file: FileEntry) -> bool:
        """Whether a file of an earlier state has one of them; it raises if that cannot be decided."""


@dataclass(frozen=True)
class Matching:
    """The rows that match a condition."""

    request: EditRequest
    partition_filter: PartitionFilter

    def delete(self, dataset: DatasetContext, *, dry_run: bool, progress: ProgressCallback | None) -> EditStats:
        """Delete them from the dataset."""
        request = replace(self.request, purge=True)
        return edit(dataset, request, self.partition_filter, dry_run=dry_run, progress=progress)

    def is_in(self, dataset: DatasetContext, file: FileEntry) -> bool:
        """Whether a file of an earlier state has one of them."""
        mentioned, where = MentionedColumns(str(self.request.where)), self.request.where
        snapshot = read_snapshot(dataset.snapshot_store(), dataset.root, [file], mentioned).unified()
        rows = scan_of(dataset, snapshot, RowQuery(where=where)).of_condition()
        return any(batch.num_rows for batch in rows.batches())


@dataclass(frozen=True)
class WithKeys:
    """The rows with one of the keys in a table."""

    request: KeyRequest

    @property
    def partition_filter(self) -> PartitionFilter:
        """The partitions that may have them."""
        return self.request.partition_filter

    @classmethod
    def of(cls, dataset: DatasetContext, request: KeyRequest) -> WithKeys:
        """Hold the keys in memory, because they are looked up in every kept file."""
        return cls(replace(request.in_memory(dataset), purge=True))

    @cached_property
    def _keys(self) -> pa.Table:
        source = self.request.source
        assert isinstance(source, ArrowRows), "the keys are in memory"
        return pa.Table.from_batches(source.batches, source.schema)

    def delete(self, dataset: DatasetContext, *, dry_run: bool, progress: ProgressCallback | None) -> EditStats:
        """Delete them from the dataset."""
        return delete_keys(dataset, self.request, dry_run=dry_run, progress=progress)

    def is_in(self, dataset: DatasetContext, file: FileEntry) -> bool:
        """Whether a file of an earlier state has one of them."""
        store = dataset.snapshot_store()
        files = read_snapshot(store, dataset.root, [file], self.request.keys).unified().files
        task = HasKeys(files[0], self._keys, partition_spec_of(files))
        return dataset.engine.run_here(task, Context(store, Staging(""), "purge"))


def purge(
    dataset: DatasetContext,
    request: EditRequest | KeyRequest,
    partition_filter: PartitionFilter,
    open_backup: OpenBackup,
    *,
    dry_run: bool,
    progress: ProgressCallback | None,
) -> EditStats:
    """Delete → find all files that held the rows → remove them → report. Repeated after a crash, it goes on."""
    if not dry_run:
        recover(dataset.workspace)  # staged files of dead processes may contain the rows
    selection: Selection = (
        WithKeys.of(dataset, request) if isinstance(request, KeyRequest) else Matching(request, partition_filter)
    )
    found = selection.delete(replace(dataset, retention=0.0), dry_run=dry_run, progress=progress)
    traces = _Traces(dataset, selection, frozenset(found["rewritten_files"]), open_backup)
    history, backups = traces.found()
    if not dry_run:
        clear_index(dataset.workspace)  # bounds are values
        names = {posixpath.basename(each.location) for each, _ in history} | traces.without_manifest()
        if names:
            remove_kept_folders(dataset.workspace, names)
        for each, _ in backups:
            each.store.remove_tree(each.location)
    purged = [
        *(
            PurgedFile(path=path, location="dataset", commit=None, backup=None)
            for path in found["rewritten_files"]
        ),
        *(
            PurgedFile(path=path, location="history", commit=each.number, backup=None)
            for each, files in history
            for path in files
        ),
        *(
            PurgedFile(path=path, location="backup", commit=None, backup=each.name)
            for each, files in backups
            for path in files
        ),
    ]
    return {**found, "purged_files": purged}


@dataclass(frozen=True)
class _Copies:
    """The copies of files that a commit has retired, in the workspace or in a backup.

    Attributes:
        number: The commit.
        store: Where they are.
        location: Their folder.
        name: The name of the backup; None for kept files.
        files: The copies, by the paths of the files in the dataset.
    """

    number: int
    store: Store
    location: str
    name: str | None
    files: Mapping[str, FileEntry]


#: Copies, with the paths of those that held the rows.
_Found = list[tuple[_Copies, list[str]]]


@dataclass(frozen=True)
class _Traces:
    """Finds the files outside of the dataset that held the deleted rows.

    Attributes:
        deleted_from: The files of the dataset that held them, as relative paths.
    """

    dataset: DatasetContext
    selection: Selection
    deleted_from: frozenset[str]
    open_backup: OpenBackup

    @cached_property
    def _kept(self) -> KeptFiles:
        return KeptFiles(self.dataset.store, self.dataset.workspace.path)

    @cached_property
    def _manifests(self) -> Sequence[Manifest]:
        return list(self._kept.manifests())

    def found(self) -> tuple[_Found, _Found]:
        """The commits that keep such files, and the backups that have some, each with the paths of these."""
        history, backups = list(self._history()), list(self._backups())
        holding = self._holding([*history, *backups])
        found = [
            [(each, files) for each in copies if (files := [path for path in each.files if holding(each, path)])]
            for copies in (history, backups)
        ]
        return found[0], found[1]

    def _holding(self, copies: Sequence[_Copies]) -> Callable[[_Copies, str], bool]:
        """Whether a copy, of a path, has the rows or may have older versions of them."""
        records = commits_of(self.dataset).records
        steps = {
            each.number: (paths_of(each.published), {file.path for file in each.files}) for each in self._manifests
        }
        steps |= {number: (paths_of(each.publish), paths_of(each.retire)) for number, each in records.items()}
        ancestors, matching = set(self.deleted_from), set[tuple[str, str]]()
        held = set(self.deleted_from)  # the paths of all files that held the rows
        for number in sorted({*steps, *(each.number for each in copies)}, reverse=True):
            published, retired = steps.get(number, (set[str](), set[str]()))
            # An interrupted purge has left its traces, too.
            is_purge = number in records and records[number].arguments.get("purge")
            if is_purge or not held.isdisjoint(published):
                ancestors |= retired
                held |= retired
            # Last, because a file that this commit has retired was made by an earlier one.
            for each in copies:
                if each.number == number:
                    found = {
                        path
                        for path, entry in each.files.items()
                        if path not in ancestors and self._has_match(each.store, path, entry)
                    }
                    matching |= {(each.location, path) for path in found}
                    held |= found
        return lambda each, path: path in ancestors or (each.location, path) in matching

    def _history(self) -> Iterator[_Copies]:
        """The kept files of each commit."""
        for manifest in self._manifests:
            folder = f"{self._kept.workspace}/{manifest.folder}"
            entries = {
                file.path: FileEntry(f"{folder}/{file.name}", file.size_bytes, "") for file in manifest.files
            }
            yield _Copies(manifest.number, self.dataset.store, folder, None, entries)

    def without_manifest(self) -> set[str]:
        """Folders that a late process has left: nothing says what their files contain."""
        return {name for name in self._kept.names() if self._kept.manifest(name) is None}

    def _backups(self) -> Iterator[_Copies]:
        """The backups that the log names and that still exist."""
        log, identity = self.dataset.workspace.log, identity_of(self.dataset.store, self.dataset.root)
        found = self.dataset.workspace.read_log(
            lambda view: [
                (entry["statistics"].get("backup_path"), entry["number"]) for entry in log.history(view, identity)
            ]
        )
        for name, number in sorted((name, number) for name, number in found if name):
            store, path = self.open_backup(name)
            try:
                manifest = read_manifest(store, path)
            except InvalidArgument:
                continue  # removed since
            entries = {
                file.path: FileEntry(kept_file(path, file), file.size_bytes, "") for file in manifest.retired
            }
            yield _Copies(number, store, path, name, entries)

    def _has_match(self, store: Store, path: str, entry: FileEntry) -> bool:
        """Whether a file has one of the deleted rows, or that cannot be decided."""
        if not directory_matcher(self.selection.partition_filter)(posixpath.dirname(path)):
            return False
        listed = FileEntry(f"{self.dataset.root}/{path}", entry.size_bytes, "purged")
        past = PastState(0, [listed], {(listed.path, listed.fingerprint): entry})
        try:
            return self.selection.is_in(replace(self.dataset, store=store, past=past), listed)
        except FileNotFoundError:
            return False  # removed meanwhile
        except (ParkettoError, pa.ArrowException):
            return True
