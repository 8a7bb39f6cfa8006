"""Delete rows for good: also from the files that are kept of earlier commits, and from known backups.

A kept file is removed in each of these cases:

- It contains rows that match the condition or have one of the keys.
- It lacks a column, so that this cannot be decided.
- A file that contained deleted rows was made from it: it may have older versions of these rows.
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
    traces = _Traces(dataset, selection, frozenset(found["rewritten_files"]))
    history = list(traces.kept())
    backups = [(path, *opened, files) for path, opened, files in traces.backups(open_backup)]
    if not dry_run:
        clear_index(dataset.workspace)  # bounds are values
        names = {posixpath.basename(manifest.folder) for manifest, _ in history} | traces.without_manifest()
        if names:
            remove_kept_folders(dataset.workspace, names)
        for _, store, location, _ in backups:
            store.remove_tree(location)
    purged = [
        *(
            PurgedFile(path=path, location="dataset", commit=None, backup=None)
            for path in found["rewritten_files"]
        ),
        *(
            PurgedFile(path=path, location="history", commit=manifest.number, backup=None)
            for manifest, files in history
            for path in files
        ),
        *(
            PurgedFile(path=path, location="backup", commit=None, backup=name)
            for name, _, _, files in backups
            for path in files
        ),
    ]
    return {**found, "purged_files": purged}


@dataclass(frozen=True)
class _Traces:
    """Finds the files outside of the dataset that held the deleted rows.

    Attributes:
        deleted_from: The files of the dataset that held them, as relative paths.
    """

    dataset: DatasetContext
    selection: Selection
    deleted_from: frozenset[str]

    @cached_property
    def _kept(self) -> KeptFiles:
        return KeptFiles(self.dataset.store, self.dataset.workspace.path)

    @cached_property
    def _manifests(self) -> Sequence[Manifest]:
        return list(self._kept.manifests())

    @cached_property
    def _ancestors(self) -> set[str]:
        """The paths of files whose rows may have gone into files with deleted rows, and those of these files."""
        records = commits_of(self.dataset).records
        steps = {
            each.number: (paths_of(each.published), {file.path for file in each.files}) for each in self._manifests
        }
        steps |= {number: (paths_of(each.publish), paths_of(each.retire)) for number, each in records.items()}
        found = set(self.deleted_from)
        for number in sorted(steps, reverse=True):
            published, retired = steps[number]
            # An interrupted purge has left its traces, too.
            is_purge = number in records and records[number].arguments.get("purge")
            if is_purge or not found.isdisjoint(published):
                found |= retired
        return found

    def kept(self) -> Iterator[tuple[Manifest, list[str]]]:
        """The commits that keep such files, each with these."""
        for manifest in self._manifests:
            entries = {
                file.path: FileEntry(f"{self._kept.workspace}/{manifest.folder}/{file.name}", file.size_bytes, "")
                for file in manifest.files
            }
            if files := self._holding(self.dataset.store, entries):
                yield manifest, files

    def without_manifest(self) -> set[str]:
        """Folders that a late process has left: nothing says what their files contain."""
        return {name for name in self._kept.names() if self._kept.manifest(name) is None}

    def backups(self, open_backup: OpenBackup) -> Iterator[tuple[str, tuple[Store, str], list[str]]]:
        """The backups that the log names and that still exist, each with such files."""
        log, identity = self.dataset.workspace.log, identity_of(self.dataset.store, self.dataset.root)
        names = self.dataset.workspace.read_log(
            lambda view: [entry["statistics"].get("backup_path") for entry in log.history(view, identity)]
        )
        for name in sorted({name for name in names if name}):
            opened = store, path = open_backup(name)
            try:
                manifest = read_manifest(store, path)
            except InvalidArgument:
                continue  # removed since
            entries = {
                file.path: FileEntry(kept_file(path, file), file.size_bytes, "") for file in manifest.retired
            }
            if files := self._holding(store, entries):
                yield name, opened, files

    def _holding(self, store: Store, entries: Mapping[str, FileEntry]) -> list[str]:
        """The files, by their paths in the dataset, that held the rows."""
        return [
            path
            for path, entry in entries.items()
            if path in self._ancestors or self._has_match(store, path, entry)
        ]

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
