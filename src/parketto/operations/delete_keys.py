"""Delete the rows whose key is in a table; only files with such rows are rewritten."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import cast

import pyarrow as pa

from parketto.arguments import DEFAULT_CODEC, check_names
from parketto.commit.transaction import Transaction
from parketto.engines.base import Context, ProgressCallback
from parketto.errors import ColumnNotFound, CommitConflict
from parketto.merge.dropping import DropRows
from parketto.merge.key_rows import CountRows, KeyLookup, key_fields
from parketto.merge.keys import may_share_key
from parketto.merge.rules import MergeRules
from parketto.merge.source import Prepared, PrepareSource
from parketto.operations.context import Backups, DatasetContext, entries
from parketto.operations.edits import drop_groups, drop_stats, staged_drops
from parketto.parquet.dataset_schema import unified
from parketto.parquet.decoded_types import decoded_schema
from parketto.parquet.file_format import FileFormat
from parketto.parquet.file_info import FileInfo
from parketto.parquet.output import Output
from parketto.parquet.partition_spec import PartitionSpec, partition_spec_of
from parketto.parquet.row_source import ArrowRows, FileRows, FrameRows, RowSource
from parketto.parquet.snapshot import read_files, read_snapshot
from parketto.results import EditStats
from parketto.runtime.staging import StagedFile, Staging
from parketto.storage.hive import PartitionFilter, directory_matcher
from parketto.storage.listing import relative
from parketto.storage.store import FileEntry


@dataclass(frozen=True)
class KeyRequest:
    """The keys of the rows to delete."""

    source: RowSource
    keys: tuple[str, ...]
    compression: str | None = None
    partition_filter: PartitionFilter = None
    commit_id: str | None = None
    #: Whether nothing of the deleted rows is to stay anywhere; see `purge`.
    purge: bool = False
    #: Whether neighbouring small files that are rewritten become one file.
    pack: bool = True

    @classmethod
    def of(
        cls,
        source: RowSource,
        key_columns: str | Sequence[str],
        compression: str | None,
        partition_filter: PartitionFilter,
        commit_id: str | None,
        *,
        pack: bool = True,
    ) -> KeyRequest:
        """Check what can be checked without any data."""
        names = [key_columns] if isinstance(key_columns, str) else key_columns
        keys = check_names("key_columns", names)
        return cls(source, keys, compression, partition_filter, commit_id, pack=pack)

    def in_memory(self, dataset: DatasetContext) -> KeyRequest:
        """The same request with keys that can be read several times, also if a stream or a frame has them."""
        names = self.source.schema.names
        if missing := [name for name in self.keys if name not in names]:
            raise ColumnNotFound(missing, names, "key_columns of the keys")
        context = Context(dataset.store, Staging(""), "delete")
        parts = dataset.engine.scan(self.source, _Columns(self.keys), context)
        schema = pa.schema([decoded_schema(self.source.schema).field(name) for name in self.keys])
        batches = [batch for part in parts if part is not None for batch in part.to_batches()]
        return replace(self, source=ArrowRows(schema, batches))


@dataclass(frozen=True)
class _Columns:
    """Reads some columns of the rows of a source."""

    names: tuple[str, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> pa.Table | None:
        found = [batch.select(list(self.names)) for batch in batches]
        return pa.Table.from_batches(found) if found else None


def delete_keys(
    dataset: DatasetContext,
    request: KeyRequest,
    *,
    dry_run: bool,
    progress: ProgressCallback | None,
    backups: Backups | None = None,
) -> EditStats:
    """Discover → find and rewrite → verify → commit → report."""
    dataset.check_exists(request.partition_filter)

    def attempt(transaction: Transaction) -> EditStats:
        files = dataset.snapshot_in(transaction, request.partition_filter, request.keys).files
        context = dataset.context(transaction, progress)
        prepared = prepared_keys(dataset, request.source, request.keys, files, context)
        tasks = _tasks(files, prepared, request)
        with transaction.conflicts_over(entries([task.lookup.file for task in tasks])):
            counts = dataset.engine.run(tasks, context if dry_run else replace(context, operation="match"))
            matched = [(task.lookup, count) for task, count in zip(tasks, counts, strict=True) if count]
            drops = [(lookup.file, count) for lookup, count in matched]
            groups = drop_groups(dataset.engine, files, drops, request.compression, pack=request.pack)
            if dry_run:
                return drop_stats(dataset.root, files, len(tasks), drops, groups, dry_run=True)
            lookups = {lookup.file.path: lookup for lookup, _ in matched}
            dropping = [
                DropRows(
                    group,
                    tuple(lookups[file.path] for file in group),
                    "delete",
                    request.compression,
                    recompress=True,
                )
                for group in groups
            ]
            results = dataset.engine.run(dropping, context)
        staged: list[StagedFile] = []

        def stats(backup_path: str | None) -> EditStats:
            return drop_stats(dataset.root, files, len(tasks), drops, groups, staged, backup_path=backup_path)

        if drops or request.commit_id is not None:
            serializable = dataset.isolation == "serializable"
            conflicts = _ConflictCheck(dataset, request, prepared, files[0], context)
            staged = staged_drops(dataset, transaction, files, drops, groups, results)
            transaction.commit(
                staged,
                entries([file for file, _ in drops]),
                read=entries([task.lookup.file for task in tasks]) if serializable else (),
                check_added=conflicts.refuse if serializable else None,
                statistics=stats,
            )
        return stats(transaction.backup_path)

    arguments = {
        "key_columns": request.keys,
        "purge": request.purge or None,
        "partition_filter": request.partition_filter,
        "compression": request.compression,
    }
    return dataset.run(
        dataset.request("delete", arguments, request.commit_id),
        attempt,
        known=lambda statistics: cast("EditStats", statistics),
        backups=backups,
        dry_run=dry_run,
        repeatable=request.source.repeatable,
    )


def prepared_keys(
    dataset: DatasetContext,
    source: RowSource,
    keys: tuple[str, ...],
    files: Sequence[FileInfo],
    context: Context,
) -> Prepared:
    """The distinct keys of a source, checked, sorted and spooled for the tasks."""
    spec = partition_spec_of(files)
    assert files[0].schema is not None, "files to read come from a snapshot"
    schema = key_fields(keys, source.schema, spec.row_schema(files[0].schema), spec)
    path = context.staging.spool_path("keys.arrow")
    context.store.make_dirs(path.rpartition("/")[0])
    rows = readable_rows(dataset, source, context)
    # Rows have no folder of their own: keys are looked up in every file.
    # A key that the dataset's types cannot hold matches no row.
    task = PrepareSource(
        rows, schema, replace(spec, partition_by=()), MergeRules("deduplicate", keys), path, skips_misfits=True
    )
    if isinstance(rows, ArrowRows):
        return dataset.engine.run_here(task, context)
    return dataset.engine.run([task], replace(context, progress=None))[0]


def readable_rows(dataset: DatasetContext, source: RowSource, context: Context) -> ArrowRows | FileRows:
    """A source that every task can read: a frame is written to staged files that are never published."""
    if not isinstance(source, FrameRows):
        return source
    output = Output(dataset.root, FileFormat(source.schema, DEFAULT_CODEC), source.schema, prefix="source")
    written = dataset.engine.write(source, output, replace(context, progress=None))
    files = read_files(context.store, [file.path for file in written.staged])
    return FileRows(source.schema, context.store, tuple(files))


def _tasks(files: Sequence[FileInfo], prepared: Prepared, request: KeyRequest) -> list[CountRows]:
    """A task for each file whose footer does not exclude the keys."""
    spec: PartitionSpec = partition_spec_of(files)
    if not prepared.num_rows:
        return []
    return [
        CountRows(KeyLookup(file, prepared, request.keys, spec))
        for file in files
        if may_share_key(file, request.keys, prepared.ranges)
    ]


@dataclass(frozen=True)
class _ConflictCheck:
    """Refuses concurrently added files with rows that the operation would delete."""

    dataset: DatasetContext
    request: KeyRequest
    prepared: Prepared
    #: A file in the dataset's schema.
    like: FileInfo
    context: Context

    def refuse(self, added: Sequence[FileEntry], who: Callable[[str], str]) -> None:
        matches = directory_matcher(self.request.partition_filter)
        root = self.dataset.root
        candidates = [entry for entry in added if matches(relative(entry.path, root).rpartition("/")[0])]
        if not candidates:
            return
        found = read_snapshot(self.dataset.store, root, candidates, self.request.keys).files
        tasks = _tasks(
            unified([self.like, *self.dataset.with_path_types(found)]).files[1:], self.prepared, self.request
        )
        counts = self.dataset.engine.run(tasks, replace(self.context, progress=None))
        for task, count in zip(tasks, counts, strict=True):
            if count:
                path = task.lookup.file.path
                raise CommitConflict.because_of(
                    path, operation="delete", matters="has rows with these keys", who=who(path)
                )
