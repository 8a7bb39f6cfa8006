"""Remove duplicate rows in place; only files that lose rows are rewritten."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

import pyarrow as pa

from parketto.arguments import MEGABYTE, check_columns_exist, check_names
from parketto.commit.transaction import Transaction
from parketto.engines.base import Context, ProgressCallback
from parketto.errors import CommitConflict, InvalidArgument
from parketto.merge.dropping import DropRows
from parketto.merge.duplicates import (
    CompareBucket,
    DuplicateRules,
    Found,
    Piece,
    ReadKeys,
    SpooledRows,
    by_file,
)
from parketto.operations.context import Backups, DatasetContext, entries
from parketto.operations.edits import drop_groups, drop_stats, staged_drops
from parketto.parquet.file_info import FileInfo
from parketto.parquet.partition_spec import PartitionSpec, partition_spec_of
from parketto.parquet.snapshot import read_snapshot
from parketto.results import EditStats
from parketto.runtime.staging import StagedFile
from parketto.sorting.order import check_orderable
from parketto.storage.hive import PartitionFilter, directory_matcher
from parketto.storage.listing import relative
from parketto.storage.store import FileEntry

_READ_BYTES = 32 * MEGABYTE  # files of one task that reads keys: smaller tasks would cost more to start
_BUCKET_BYTES = 16 * MEGABYTE  # keys of one bucket, decoded; larger buckets are compared in several passes
_MAX_BUCKETS = 4096  # more would make the batches of a bucket too small to read efficiently
_POSITION_BYTES = 16  # of a row in a bucket, besides its key


@dataclass(frozen=True)
class DuplicateRequest:
    """Which rows are duplicates, and which of them is kept."""

    #: None: all columns.
    keys: tuple[str, ...] | None
    order_by: tuple[str, ...] = ()
    compression: str | None = None
    partition_filter: PartitionFilter = None
    commit_id: str | None = None
    #: Whether neighbouring small files that are rewritten become one file.
    pack: bool = True

    @classmethod
    def of(
        cls,
        key_columns: str | Sequence[str] | None,
        order_by: str | Sequence[str] | None,
        compression: str | None,
        partition_filter: PartitionFilter,
        commit_id: str | None,
        *,
        pack: bool = True,
    ) -> DuplicateRequest:
        """Check what can be checked without any data."""
        if key_columns is None and order_by is not None:
            raise InvalidArgument("order_by needs key_columns: exact duplicates do not differ in any column")
        keys = None if key_columns is None else check_names("key_columns", _listed(key_columns))
        order = () if order_by is None else check_names("order_by", _listed(order_by))
        return cls(keys, order, compression, partition_filter, commit_id, pack)


def _listed(names: str | Sequence[str]) -> Sequence[str]:
    return [names] if isinstance(names, str) else names


def deduplicate(
    dataset: DatasetContext,
    request: DuplicateRequest,
    *,
    dry_run: bool,
    progress: ProgressCallback | None,
    backups: Backups | None = None,
) -> EditStats:
    """Discover → read keys → compare → rewrite → verify → commit → report."""
    dataset.check_exists(request.partition_filter)

    def attempt(transaction: Transaction) -> EditStats:
        files = dataset.snapshot_in(transaction, request.partition_filter, request.keys).files
        context = dataset.context(transaction, progress)
        with transaction.conflicts_over(entries(files)):
            found = _duplicates(dataset, files, request, context)
            drops = [(files[number], rows.count) for number, rows in sorted(found.items())]
            groups = drop_groups(dataset.engine, files, drops, request.compression, pack=request.pack)
            rows = {files[number].path: each for number, each in found.items()}
            tasks = [
                DropRows(group, tuple(rows[file.path] for file in group), "deduplicate", request.compression)
                for group in groups
            ]
            results = None if dry_run else dataset.engine.run(tasks, context)
        scanned = sum(file.num_rows > 0 for file in files)
        if results is None:
            return drop_stats(dataset.root, files, scanned, drops, groups, dry_run=True)
        staged: list[StagedFile] = []

        def stats(backup_path: str | None) -> EditStats:
            return drop_stats(dataset.root, files, scanned, drops, groups, staged, backup_path=backup_path)

        if drops or request.commit_id is not None:
            serializable = dataset.isolation == "serializable"
            staged = staged_drops(dataset, transaction, files, drops, groups, results)
            transaction.commit(
                staged,
                entries([file for file, _ in drops]),
                read=entries(files) if serializable else (),
                check_added=_ConflictCheck(dataset, request).refuse if serializable else None,
                statistics=stats,
            )
        return stats(transaction.backup_path)

    arguments = {
        "key_columns": request.keys,
        "order_by": request.order_by or None,
        "partition_filter": request.partition_filter,
        "compression": request.compression,
    }
    return dataset.run(
        dataset.request("deduplicate", arguments, request.commit_id),
        attempt,
        known=lambda statistics: cast("EditStats", statistics),
        backups=backups,
        dry_run=dry_run,
    )


def _duplicates(
    dataset: DatasetContext, files: Sequence[FileInfo], request: DuplicateRequest, context: Context
) -> Mapping[int, SpooledRows]:
    """The rows to drop of each file that has any, by its position."""
    spec = partition_spec_of(files)
    assert files[0].schema is not None, "files to read come from a snapshot"
    rules = _rules(request, spec.row_schema(files[0].schema), files, spec)
    quiet = replace(context, progress=None)
    folder = context.staging.spool_path("duplicates")
    context.store.make_dirs(folder)
    reading = _reading(files, spec, rules, folder)
    found: list[Found] = dataset.engine.run(reading, replace(context, operation="match"))
    buckets: dict[int, list[Piece]] = {}
    for each in found:
        for bucket, piece in each.pieces:
            buckets.setdefault(bucket, []).append(piece)
    # A bucket with a single piece was compared when it was read.
    comparing = [
        CompareBucket(tuple(pieces), rules, f"{folder}/bucket-{bucket}.rows")
        for bucket, pieces in sorted(buckets.items())
        if len(pieces) > 1
    ]
    found += dataset.engine.run(comparing, quiet)
    return by_file(found)


def _rules(
    request: DuplicateRequest, schema: pa.Schema, files: Sequence[FileInfo], spec: PartitionSpec
) -> DuplicateRules:
    keys = tuple(schema.names) if request.keys is None else request.keys
    check_columns_exist(keys, schema, "key_columns")
    check_columns_exist(request.order_by, schema, "order_by")
    check_orderable(request.order_by, schema)
    with_nulls = any(_may_be_null(file, name, spec) for name in keys for file in files)
    return DuplicateRules(keys, request.order_by, with_nulls)


def _may_be_null(file: FileInfo, name: str, spec: PartitionSpec) -> bool:
    if name in spec.path_only:
        return dict(file.partition)[name] is None
    return file.num_rows > 0 and file.column_stats(name).null_count != 0


def _reading(files: Sequence[FileInfo], spec: PartitionSpec, rules: DuplicateRules, folder: str) -> list[ReadKeys]:
    """Tasks that read the keys of neighbouring files, of a similar size."""
    assert files[0].schema is not None, "files to read come from a snapshot"
    share = len({*rules.keys, *rules.order_by}) / max(1, len(spec.row_schema(files[0].schema).names))
    encoded = sum(group.total_byte_size for file in files for group in file.row_groups)
    rows = sum(file.num_rows for file in files)
    buckets = min(_MAX_BUCKETS, 1 + int(encoded * share + rows * _POSITION_BYTES) // _BUCKET_BYTES)
    groups: list[list[tuple[int, FileInfo]]] = []
    size = _READ_BYTES
    for number, file in enumerate(files):
        if not file.num_rows:
            continue
        if size >= _READ_BYTES:
            groups.append([])
            size = 0
        groups[-1].append((number, file))
        size += int(file.size_bytes * share)
    return [
        ReadKeys(tuple(group), spec, rules, buckets, f"{folder}/read-{number}")
        for number, group in enumerate(groups)
    ]


@dataclass(frozen=True)
class _ConflictCheck:
    """Refuses concurrently added files with rows: they may be duplicates."""

    dataset: DatasetContext
    request: DuplicateRequest

    def refuse(self, added: Sequence[FileEntry], who: Callable[[str], str]) -> None:
        matches = directory_matcher(self.request.partition_filter)
        root = self.dataset.root
        candidates = [entry for entry in added if matches(relative(entry.path, root).rpartition("/")[0])]
        if not candidates:
            return
        for file in read_snapshot(self.dataset.store, root, candidates).files:
            if file.num_rows:
                raise CommitConflict.because_of(
                    file.path, operation="deduplicate", matters="may have the same keys", who=who(file.path)
                )
