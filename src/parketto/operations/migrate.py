"""Copy the rows of one dataset into another with other partition columns, optionally through a function.

The target appears in one commit, after its rows were counted. The source is removed, if requested, in a second
commit: if the process is killed in between, both datasets are complete.
"""

from __future__ import annotations

import contextlib
import logging
import posixpath
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from parketto.arguments import Thresholds
from parketto.commit.request import CheckAdded
from parketto.commit.retention import retention_seconds
from parketto.commit.transaction import Transaction
from parketto.commit.validation import check_unchanged
from parketto.commit.verify import verify_copies, verify_published, verify_written
from parketto.display import counted
from parketto.engines.base import Context, ProgressCallback
from parketto.errors import ColumnNotFound, CommitConflict, CommitFailed, DatasetNotFound, InvalidArgument
from parketto.operations.context import DatasetContext, entries
from parketto.operations.repartition import same_schema_output
from parketto.parquet.file_format import FileFormat
from parketto.parquet.file_info import FileInfo
from parketto.parquet.output import Output, Written
from parketto.parquet.row_source import FileRows, RowSource
from parketto.planning.rewrite import check_partition_columns
from parketto.runtime.staging import StagedFile, Staging
from parketto.storage.listing import is_inside, refuse_foreign, relative
from parketto.storage.store import FileEntry

logger = logging.getLogger(__name__)

#: Transforms the rows of the source.
Preparation = Callable[[FileRows], RowSource]


@dataclass(frozen=True)
class Migration:
    """The parameters of a migration."""

    partition_by: tuple[str, ...]
    compression: str
    thresholds: Thresholds
    prepare: Preparation | None = None
    validate: bool = True
    overwrite: bool = False
    delete_source: bool = False


@dataclass(frozen=True)
class MigrationReport:
    """What a migration did or, in a dry run, would do."""

    files_read: int
    files_written: int
    rows_read: int
    rows_written: int
    partitions: int


def check_apart(source: DatasetContext, target: DatasetContext) -> None:
    """Refuse datasets that are the same or nested, however their paths are spelled."""
    if source.store.same_files(target.store) and (
        is_inside(source.root, target.root) or is_inside(target.root, source.root)
    ):
        raise InvalidArgument(
            f"the source {source.root!r} and the target {target.root!r} must be two folders, neither inside "
            "the other; to change the partitions in place, use Dataset.repartition"
        )


def migrate(
    source: DatasetContext, target: DatasetContext, wanted: Migration, progress: ProgressCallback | None
) -> MigrationReport:
    """Discover → plan → execute → verify → commit → verify → retire the source → report."""
    files = _discover(source, target, wanted)
    refuse_foreign(target.store, target.root)
    refuse_non_empty(target, wanted)
    rows, columns = prepared_rows(files, wanted)
    output = _output(target.root, files, rows, columns, wanted)

    def attempt(transaction: Transaction) -> tuple[Written, list[FileInfo]]:
        replaced = target.existing(transaction) if wanted.overwrite else []
        with _conflicts_over(source, files, transaction, replaced):
            written = target.engine.write(rows, output, target.context(transaction, progress))
        new = verify_written(target.store, written.staged, written.num_rows, output.format)
        if output.format.metadata is not None:
            verify_copies(files.files[0], new)
        if wanted.validate and written.num_rows != files.num_rows:
            raise CommitFailed(
                f"Row count mismatch after repartition: the row count of {source.root!r} is {files.num_rows:,}, "
                f"that of the files written {written.num_rows:,}. Nothing was published and the source is as it "
                "was. If the transform is meant to drop or add rows, pass validate=False"
            )
        _inherit_access(source, target, files, written.staged)
        # The source must not have changed while it was read.
        check_unchanged(source.store, entries(files.files))
        transaction.commit(
            written.staged,
            replaced,
            check_added=None if wanted.overwrite else _refuse_added(target),
            statistics={"rows_written": written.num_rows, "files_written": len(new)},
        )
        return written, new

    request = target.request("repartition", {"source": source.root, "partition_by": list(columns)})
    # Unlike a repartition in place, it replaces the rows of the target.
    request = replace(request, retention_seconds=retention_seconds("overwrite", target.retention))
    # A retry would have to discover the source again.
    written, new = target.run(request, attempt, repeatable=False)
    logger.info("published %d files with %d rows in %s", len(new), written.num_rows, target.root)
    if wanted.delete_source:
        verify_published(target.store, written.staged, new)
        _retire(source, target, files)
    return MigrationReport(
        files_read=len(files.files),
        files_written=len(new),
        rows_read=files.num_rows,
        rows_written=written.num_rows,
        partitions=_partitions(written),
    )


def plan_migration(source: DatasetContext, target: DatasetContext, wanted: Migration) -> MigrationReport:
    """What a migration would do: counts rows by partition, writes nothing."""
    files = _discover(source, target, wanted)
    refuse_foreign(target.store, target.root, listed=not wanted.overwrite)
    refuse_non_empty(target, wanted)
    rows, columns = prepared_rows(files, wanted)
    counts = _row_counts(source, rows, columns)
    total = sum(counts.values())
    limit = wanted.thresholds.target_bytes or 1
    # The current size, split by rows: how well the new files compress is not known before they are written.
    sizes = [files.size_bytes * count // max(1, total) for count in counts.values()]
    return MigrationReport(
        files_read=len(files.files),
        files_written=sum(max(1, -(-size // limit)) for size in sizes) or 1,
        rows_read=files.num_rows,
        rows_written=total,
        partitions=len(counts),
    )


def count_partitions(source: DatasetContext, wanted: Migration) -> tuple[FileRows, Counter[str]]:
    """The files of the source, and the row count of each new partition."""
    source.engine.check_store(source.store)
    files = FileRows.of(source.store, source.snapshot(stats_columns=wanted.partition_by).files)
    rows, columns = prepared_rows(files, wanted)
    return files, _row_counts(source, rows, columns)


def prepared_rows(files: FileRows, wanted: Migration) -> tuple[RowSource, tuple[str, ...]]:
    """The rows to write, and the validated partition columns."""
    rows = files if wanted.prepare is None else wanted.prepare(files)
    if missing := [name for name in wanted.partition_by if name not in rows.schema.names]:
        raise ColumnNotFound(missing, rows.schema.names, "Partition columns", "in data")
    return rows, check_partition_columns(wanted.partition_by, rows.schema, "new_partition_cols")


def refuse_non_empty(target: DatasetContext, wanted: Migration) -> None:
    """Refuse a target with data files, unless they are to be overwritten."""
    if wanted.overwrite:
        return
    with contextlib.suppress(DatasetNotFound):
        found = target.listed()
        raise InvalidArgument(
            f"the target {target.root!r} already has {counted(len(found), 'data file')}, such as "
            f"{found[0].path!r}; empty it first, or pass overwrite=True to replace them"
        )


def _discover(source: DatasetContext, target: DatasetContext, wanted: Migration) -> FileRows:
    source.engine.check_store(source.store)
    source.check_exists()
    found = source.snapshot(stats_columns=wanted.partition_by).files
    if source.store.same_files(target.store):
        for directory in sorted({file.directory for file in found}):
            # A symbolic link in the source may point into the target.
            if is_inside(source.store.normalize(directory), target.root):
                raise InvalidArgument(f"{directory!r} of the source is inside the target {target.root!r}")
    files = FileRows.of(source.store, found)
    logger.info("%s: %d files, %d rows", source.root, len(files.files), files.num_rows)
    return files


def _output(root: str, files: FileRows, rows: RowSource, columns: tuple[str, ...], wanted: Migration) -> Output:
    if rows is files:
        return same_schema_output(root, files, columns, wanted.compression, wanted.thresholds)
    file_format = FileFormat(rows.schema, wanted.compression)
    return Output(root, file_format, rows.schema, columns, roll_bytes=wanted.thresholds.target_bytes)


def _row_counts(source: DatasetContext, rows: RowSource, columns: tuple[str, ...]) -> Counter[str]:
    context = Context(source.store, Staging(""), "estimate")
    return source.engine.count_partitions(rows, columns, context)


@contextlib.contextmanager
def _conflicts_over(
    source: DatasetContext, files: FileRows, transaction: Transaction, replaced: Sequence[FileEntry]
) -> Iterator[None]:
    try:
        with transaction.conflicts_over(replaced):
            yield
    except Exception:
        check_unchanged(source.store, entries(files.files))
        raise


def _refuse_added(target: DatasetContext) -> CheckAdded:
    def check(found: Sequence[FileEntry], who: Callable[[str], str]) -> None:
        if found:
            raise CommitConflict(
                f"{who(found[0].path) or 'another writer'} has added {relative(found[0].path, target.root)!r} to "
                f"{target.root!r} since the operation began; nothing was published"
            )

    return check


def _inherit_access(
    source: DatasetContext, target: DatasetContext, files: FileRows, staged: Sequence[StagedFile]
) -> None:
    """Give the new files the access rights of the source files."""
    if source.store.same_files(target.store):
        target.store.inherit_access([file.path for file in staged], [file.path for file in files.files])


def _retire(source: DatasetContext, target: DatasetContext, files: FileRows) -> None:
    request = source.request("delete-source", {"target": target.root})
    try:
        source.run(request, lambda transaction: transaction.commit([], entries(files.files)), repeatable=False)
    except CommitConflict as error:
        raise CommitConflict(
            f"the source {source.root!r} was not removed, because another writer has changed it since it "
            f"was read ({error}). The target {target.root!r} is complete as of that time"
        ) from error
    logger.info("removed the %d data files of %s", len(files.files), source.root)


def _partitions(written: Written) -> int:
    return len({posixpath.dirname(file.destination) for file in written.staged}) if written.num_rows else 0
