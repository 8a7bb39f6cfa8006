"""Bringing the rows of one dataset into another, under other partition columns, through a function if need be.

The target appears in one commit, after its rows were counted. The source is taken away, if at all, in a commit of
its own after that: killed in between, both are complete.
"""

from __future__ import annotations

import contextlib
import logging
import posixpath
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from parketto.commit.committing import CheckAdded
from parketto.commit.transaction import Transaction
from parketto.commit.validation import check_unchanged
from parketto.commit.verify import verify_copies, verify_published, verify_written
from parketto.engines.base import Context, ProgressCallback
from parketto.errors import ColumnNotFound, CommitConflict, CommitFailed, DatasetNotFound, InvalidArgument
from parketto.kernels.rows import FileRows, RowSource
from parketto.kernels.work import StagedFile, Staging
from parketto.kernels.write import Output, Written
from parketto.kernels.writer import FileFormat
from parketto.operations.place import Place, entries
from parketto.operations.repartition import check_one_schema, same_rows
from parketto.plan.limits import Thresholds
from parketto.plan.rewrite import check_partition_columns
from parketto.storage.footers import FileInfo
from parketto.storage.snapshot import is_inside, refuse_foreign, relative
from parketto.storage.store import FileEntry

logger = logging.getLogger(__name__)

#: Makes other rows of the rows of the source.
Preparation = Callable[[FileRows], RowSource]


@dataclass(frozen=True)
class Migration:
    """What is asked for."""

    partition_by: tuple[str, ...]
    compression: str
    thresholds: Thresholds
    prepare: Preparation | None = None
    validate: bool = True
    overwrite: bool = False
    delete_source: bool = False


@dataclass(frozen=True)
class MigrationReport:
    """What was done, or, in a dry run, would be."""

    files_read: int
    files_written: int
    rows_read: int
    rows_written: int
    partitions: int


def check_apart(source: Place, target: Place) -> None:
    """Neither dataset is the other one, or inside of it, whatever names they were given."""
    if source.store.same_files(target.store) and (
        is_inside(source.root, target.root) or is_inside(target.root, source.root)
    ):
        raise InvalidArgument(
            f"the source {source.root!r} and the target {target.root!r} must be two folders, neither inside "
            "of the other; to change the partitions in place, use Dataset.repartition"
        )


def migrate(source: Place, target: Place, wanted: Migration, progress: ProgressCallback | None) -> MigrationReport:
    """Discover → plan → execute → verify → commit → verify → retire the source → report."""
    files = _discover(source, target, wanted)
    refuse_foreign(target.store, target.root)
    refuse_filled(target, wanted)
    rows, columns = prepared(files, wanted)
    output = _output(target.root, files, rows, columns, wanted)

    def attempt(transaction: Transaction) -> tuple[Written, list[FileInfo]]:
        replaced = target.existing(transaction) if wanted.overwrite else []
        with _conflicts_over(source, files, transaction, replaced):
            written = target.engine.write(rows, output, target.context(transaction, progress))
        new = verify_written(target.store, written.staged, written.num_rows, output.format.schema.names)
        check_one_schema(new)
        if output.format.metadata is not None:
            verify_copies(files.files[0], new)
        if wanted.validate and written.num_rows != files.num_rows:
            raise CommitFailed(
                f"Row count mismatch after repartition: the row count of {source.root!r} is {files.num_rows:,}, "
                f"that of the files written {written.num_rows:,}. Nothing was published and the source is as it "
                "was. If the transform is meant to drop or add rows, pass validate=False"
            )
        _inherit_access(source, target, files, written.staged)
        # What was copied is the source as it is now: nothing of it has changed while it was read.
        check_unchanged(source.store, entries(files.files))
        transaction.commit(
            written.staged,
            replaced,
            check_added=None if wanted.overwrite else _refuse_others(target),
            statistics={"rows_written": written.num_rows, "files_written": len(new)},
        )
        return written, new

    request = target.request("repartition", {"source": source.root, "partition_by": list(columns)})
    # A source that has changed would have to be discovered anew.
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


def plan_migration(source: Place, target: Place, wanted: Migration) -> MigrationReport:
    """What a migration would do. Rows are counted by partition; nothing is written."""
    files = _discover(source, target, wanted)
    refuse_foreign(target.store, target.root, listed=not wanted.overwrite)
    refuse_filled(target, wanted)
    rows, columns = prepared(files, wanted)
    counts = _counted(source, rows, columns)
    total = sum(counts.values())
    limit = wanted.thresholds.target_bytes or 1
    # As large as it is now, shared out by rows: only writing tells how well it compresses.
    sizes = [files.size_bytes * count // max(1, total) for count in counts.values()]
    return MigrationReport(
        files_read=len(files.files),
        files_written=sum(max(1, -(-size // limit)) for size in sizes) or 1,
        rows_read=files.num_rows,
        rows_written=total,
        partitions=len(counts),
    )


def count_partitions(source: Place, wanted: Migration) -> tuple[FileRows, Counter[str]]:
    """The files of the source, and how many rows would be in each partition."""
    source.engine.check_store(source.store)
    files = FileRows.of(source.store, source.snapshot(stats_columns=wanted.partition_by).files)
    rows, columns = prepared(files, wanted)
    return files, _counted(source, rows, columns)


def prepared(files: FileRows, wanted: Migration) -> tuple[RowSource, tuple[str, ...]]:
    """The rows to write, and the columns that they are partitioned by: these are there."""
    rows = files if wanted.prepare is None else wanted.prepare(files)
    if missing := [name for name in wanted.partition_by if name not in rows.schema.names]:
        raise ColumnNotFound(missing, rows.schema.names, "Partition columns", "in data")
    return rows, check_partition_columns(wanted.partition_by, rows.schema, "new_partition_cols")


def refuse_filled(target: Place, wanted: Migration) -> None:
    """Rows would stand beside others that are none of this."""
    if wanted.overwrite:
        return
    with contextlib.suppress(DatasetNotFound):
        found = target.listed()
        raise InvalidArgument(
            f"the target {target.root!r} has {len(found)} data file(s) already, such as {found[0].path!r}; empty "
            "it first, or pass overwrite=True to replace them"
        )


def _discover(source: Place, target: Place, wanted: Migration) -> FileRows:
    source.engine.check_store(source.store)
    source.check_exists()
    found = source.snapshot(stats_columns=wanted.partition_by).files
    if source.store.same_files(target.store):
        for directory in sorted({file.directory for file in found}):
            # A link inside of the source may lead into the target.
            if is_inside(source.store.normalize(directory), target.root):
                raise InvalidArgument(f"{directory!r} of the source is inside of the target {target.root!r}")
    files = FileRows.of(source.store, found)
    logger.info("%s: %d files, %d rows", source.root, len(files.files), files.num_rows)
    return files


def _output(root: str, files: FileRows, rows: RowSource, columns: tuple[str, ...], wanted: Migration) -> Output:
    if rows is files:
        return same_rows(root, files, columns, wanted.compression, wanted.thresholds)
    file_format = FileFormat(rows.schema, wanted.compression)
    return Output(root, file_format, rows.schema, columns, roll_bytes=wanted.thresholds.target_bytes)


def _counted(source: Place, rows: RowSource, columns: tuple[str, ...]) -> Counter[str]:
    context = Context(source.store, Staging(""), "estimate")
    return source.engine.count_partitions(rows, columns, context)


@contextlib.contextmanager
def _conflicts_over(
    source: Place, files: FileRows, transaction: Transaction, replaced: Sequence[FileEntry]
) -> Iterator[None]:
    try:
        with transaction.conflicts_over(replaced):
            yield
    except Exception:
        check_unchanged(source.store, entries(files.files))
        raise


def _refuse_others(target: Place) -> CheckAdded:
    def check(found: Sequence[FileEntry], who: Callable[[str], str]) -> None:
        if found:
            raise CommitConflict(
                f"{who(found[0].path) or 'somebody else'} has put {relative(found[0].path, target.root)!r} into "
                f"{target.root!r} meanwhile; nothing was published"
            )

    return check


def _inherit_access(source: Place, target: Place, files: FileRows, staged: Sequence[StagedFile]) -> None:
    """Copies of private files are private, too."""
    if source.store.same_files(target.store):
        target.store.inherit_access([file.path for file in staged], [file.path for file in files.files])


def _retire(source: Place, target: Place, files: FileRows) -> None:
    request = source.request("delete-source", {"target": target.root})
    try:
        source.run(request, lambda transaction: transaction.commit([], entries(files.files)), repeatable=False)
    except CommitConflict as error:
        raise CommitConflict(
            f"the source {source.root!r} was not removed, because somebody else has changed it since it was "
            f"read ({error}). The target {target.root!r} is complete as of then"
        ) from error
    logger.info("removed the %d data files of %s", len(files.files), source.root)


def _partitions(written: Written) -> int:
    return len({posixpath.dirname(file.destination) for file in written.staged}) if written.num_rows else 0
